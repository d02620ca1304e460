"""What every launcher promises."""

import re
import subprocess

import pytest

from scalelab.errors import SpecError
from scalelab.kinds.launchers import LaunchedProcess, Launcher, RecommendedJob
from scalelab.testing.installed import RowContract

_NODES = (("0", "1", "2"), ("5",))


def process_of(rank: int) -> LaunchedProcess:
    """Return one of four processes, of which the first node has three."""
    node_rank = int(rank == 3)
    return LaunchedProcess(
        rank=rank,
        local_rank=0 if node_rank else rank,
        node_rank=node_rank,
        num_processes=4,
        world_size=4,
        num_nodes=2,
        local_world_size=1 if node_rank else 3,
        master_addr="10.0.0.7",
        master_port=4711,
        hosts=("10.0.0.7", "10.0.0.8"),
        ports=((4712, 4713, 4714), (4715,)),
        devices_on_nodes=(3, 1),
        device_ids=(),
        attempt_id="abc-1",
    )


def job_of(*argv: str, num_nodes: int = 1) -> RecommendedJob:
    """Return a job with four devices on each of its nodes."""
    return RecommendedJob(
        argv=argv,
        num_nodes=num_nodes,
        devices_per_node=4,
        on_each_node="srun --nodes=2" if num_nodes > 1 else "",
        on_each_device="srun --nodes=2 --ntasks-per-node=4",
        first_host="$(first)",
        hosts="$(all)",
        port="$((1 + 2))",
    )


class LauncherContract(RowContract):
    """What every launcher promises."""

    registry_path = "scalelab.kinds.launchers:LAUNCHERS"

    def test_processes_hold_every_device_of_their_node_once(
        self, row: Launcher
    ) -> None:
        """A process may have no device, as a parameter server has none."""
        for node_rank, devices in enumerate(
            _NODES[:1] if row.only_one_node else _NODES
        ):
            held = row.processes(devices, node_rank)
            assert [device for devices in held for device in devices] == list(devices)

    def test_the_environment_is_text(self, row: Launcher) -> None:
        """Values of other types cannot be passed to a program."""
        for name, value in row.environment(process_of(3)).items():
            assert isinstance(value, str), name

    def test_processes_can_tell_themselves_apart(self, row: Launcher) -> None:
        """No two processes of a node find the same environment."""
        if len(row.processes(_NODES[0], 0)) > 1:
            first, second = (row.environment(process_of(rank)) for rank in (0, 1))
            assert first != second

    def test_job_lines_are_a_script_that_holds_the_command(self, row: Launcher) -> None:
        """Placeholders of a process are filled in, but for ``unknown_placeholders``."""
        names = process_of(0).placeholders.keys() - {*row.unknown_placeholders}
        of_process = [f"{{{name}}}" for name in names]
        for num_nodes in (1, 1 if row.only_one_node else 2):
            job = job_of("a.py", " ".join(of_process), num_nodes=num_nodes)
            text = "\n".join(row.job_lines(job))
            assert "a.py" in text
            assert [value for value in of_process if value in text] == []
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)

    def test_unknown_placeholders_are_placeholders(self, row: Launcher) -> None:
        """A command that uses one is refused."""
        assert {*row.unknown_placeholders} <= process_of(0).placeholders.keys()

    def test_trials_on_several_nodes_run_or_are_refused(self, row: Launcher) -> None:
        """``only_one_node`` says why, in the message after the name."""
        row.check_nodes(1, "the trial")
        if row.only_one_node:
            words = re.escape(f"launcher={row.name} {row.only_one_node}, but the trial")
            with pytest.raises(SpecError, match=words):
                row.check_nodes(2, "the trial")
        else:
            row.check_nodes(2, "the trial")

    def test_options_that_it_does_not_have_are_refused(self, row: Launcher) -> None:
        """An option of a launcher stands beside its name in an experiment."""
        assert type(row.with_options({})) is type(row)
        with pytest.raises(SpecError, match=f"launcher={row.name}.*no_such_option"):
            row.with_options({"no_such_option": 1})
