"""One node's part of an attempt that runs a command: its processes, made once.

A program finds the environment that its launcher's row describes, so a script written
for ``torchrun`` runs unchanged. As under ``torchrun`` the store at
``MASTER_ADDR:MASTER_PORT`` is served before the first rank starts
(``TORCHELASTIC_USE_AGENT_STORE``), on a port that is bound from then on: no other
program can take it.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from scalelab.experiment.command_values import placeholder_values, variable_of
from scalelab.experiment.program import INSIDE, CommandProgram
from scalelab.inputs.placeholders import fill_placeholders
from scalelab.kinds.launchers import LaunchedProcess
from scalelab.kinds.registry import imported
from scalelab.launch.protocol import CommandTask, ProcessRequest
from scalelab.launch.ranks.requests import cores_of
from scalelab.launch.rendezvous import Meeting, network_environment
from scalelab.reading.scripts.first_words import check_program, search_path, words_of
from scalelab.records.attempt import AttemptSpec


class CommandAttempt:
    """One node's part of an attempt, whose program must be a command."""

    def __init__(self, spec: AttemptSpec, node_rank: int) -> None:
        assert isinstance(spec.program, CommandProgram)
        self.spec, self.node_rank, self.program = spec, node_rank, spec.program
        self.launcher = launcher = self.program.launcher_row()
        # of each process, by node
        self.device_ids = tuple(
            launcher.processes(share.device_ids, rank)
            for rank, share in enumerate(spec.placement.shares)
        )
        # The value of {trial_dir}, a directory of this attempt alone: no file of the
        # program can be taken for one of ScaleLab's.
        self.output_directory = Path(spec.directory) / "output"
        self.values = placeholder_values(
            spec.trial,
            devices_on_node=len(spec.placement.shares[node_rank].device_ids),
            directory=self.output_directory,
        )
        # The file, or folder of event files, to report to; None: its output is read.
        self.metrics_path: Path | None = None

        if (path := self.program.metrics.path) is not None:
            filled = fill_placeholders(path, self.values)
            self.metrics_path = Path(self.program.code_directory, filled)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each process on the node."""
        first = sum(map(len, self.device_ids[: self.node_rank]))
        return tuple(range(first, first + len(self.device_ids[self.node_rank])))

    @property
    def serves_store(self) -> bool:
        """Whether the node serves the store where the processes meet."""
        return self.node_rank == 0 and self.launcher.serves_store

    @property
    def num_ports(self) -> int:
        """Free ports that the node must find before any process starts."""
        is_meeting = self.node_rank == 0 and not self.launcher.serves_store
        return len(self.ranks) * self.launcher.ports_per_process + is_meeting

    def requests(self, meeting: Meeting, address: str) -> tuple[ProcessRequest, ...]:
        """Return the processes that the node starts."""
        self.launcher.check_nodes(len(self.spec.placement.shares), "this trial")
        spec, threads = self.spec, str(self.spec.threads_per_rank)
        devices = ",".join(spec.placement.shares[self.node_rank].device_ids)
        shared = {
            # python and torchrun are those of this environment.
            "PATH": search_path(),
            # Python passes every line on as it is printed, not in blocks.
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": devices if spec.device_type == "cuda" else "",
            **network_environment("tcp://", address),
        }

        return tuple(
            self._request(self._process(local_rank, meeting), devices, shared)
            for local_rank, devices in enumerate(self.device_ids[self.node_rank])
        )

    def _process(self, local_rank: int, meeting: Meeting) -> LaunchedProcess:
        placement, is_cuda = self.spec.placement, self.spec.device_type == "cuda"
        return LaunchedProcess(
            rank=self.ranks[local_rank],
            local_rank=local_rank,
            node_rank=self.node_rank,
            num_processes=sum(map(len, self.device_ids)),
            world_size=placement.world_size,
            num_nodes=len(placement.shares),
            local_world_size=len(placement.shares[self.node_rank].device_ids),
            master_addr=meeting.hosts[0],
            master_port=meeting.port,
            hosts=meeting.hosts,
            ports=meeting.ports,
            devices_on_nodes=tuple(len(share.device_ids) for share in placement.shares),
            device_ids=self.device_ids[self.node_rank][local_rank] if is_cuda else (),
            attempt_id=self.spec.attempt_id,
        )

    def _environment_of_probe(self, env: Mapping[str, str]) -> dict[str, str]:
        inherited = os.environ.get("PYTHONPATH", "")
        behind = env.get("PYTHONPATH", inherited)
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(INSIDE), behind])),
            "SCALELAB_PROBE": str(self.spec.files.probe / str(self.node_rank)),
            "SCALELAB_PROBE_WARMUP": str(self.spec.trial.measurement.warmup_steps),
        }

    def _request(
        self,
        process: LaunchedProcess,
        device_ids: tuple[str, ...],
        shared: Mapping[str, str],
    ) -> ProcessRequest:
        spec, program = self.spec, self.program
        # An axis of the experiment may have one of these names; then it is meant.
        values = {**process.placeholders, **self.values}
        is_told = process.rank == 0 and program.metrics.jsonl is not None

        env = {
            **shared,
            **{variable_of(name): str(value) for name, value in values.items()},
            **self.launcher.environment(process),
            "SCALELAB_METRICS": str(self.metrics_path if is_told else os.devnull),
            **program.inherited,
        }
        for name, value in program.env.items():
            env[name] = fill_placeholders(value, values)

        words = words_of(program.command)
        argv = tuple(fill_placeholders(word, values) for word in words)
        check_program(argv[0], env["PATH"], program.code_directory)

        if not program.without_probe:
            env |= self._environment_of_probe(env)
        if self.launcher.starter is not None:
            argv = imported(self.launcher.starter)(process, argv, env)

        return ProcessRequest(
            rank=process.rank,
            task=CommandTask(argv=argv),
            cores=tuple(
                core for device_id in device_ids for core in cores_of(spec, device_id)
            ),
            env=env,
            log=str(spec.files.log(process.rank)),
            directory=program.code_directory,
        )
