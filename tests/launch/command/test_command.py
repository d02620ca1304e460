from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from command_specs import REGEX, command_spec

from scalelab.errors import SpecError
from scalelab.experiment.program import MetricsSource
from scalelab.launch.command.attempt import CommandAttempt
from scalelab.launch.protocol import ProcessRequest
from scalelab.launch.rendezvous import Meeting
from scalelab.records.attempt import AttemptSpec

MEETING = Meeting.parse("tcp://127.0.0.1:4711")


def output_of(spec: AttemptSpec) -> Path:
    return Path(spec.directory) / "output"


def requests(spec: AttemptSpec, node_rank: int = 0) -> tuple[ProcessRequest, ...]:
    return CommandAttempt(spec, node_rank).requests(MEETING, "127.0.0.1")


def argv(spec: AttemptSpec, node_rank: int = 0) -> tuple[str, ...]:
    return requests(spec, node_rank)[0].task.argv


def test_placeholders_are_filled_after_the_line_is_split(tmp_path: Path) -> None:
    spec = command_spec(
        tmp_path / "a b ü",
        command=(
            "python 'my train.py' --lr={learning_rate} --out {trial_dir} "
            "{local_batch_size}x{gradient_accumulation_steps} ${HOME} {unknown}"
        ),
        ranks=2,
        accumulation=2,
    )
    out = str(tmp_path / "a b ü" / "attempt" / "output")
    assert argv(spec) == (
        "python",
        "my train.py",
        "--lr=0.1",
        "--out",
        out,
        "2x2",
        "${HOME}",
        "{unknown}",
    )


def test_placeholders_have_the_values_of_the_node(tmp_path: Path) -> None:
    spec = command_spec(tmp_path, ranks=(3, 1), depth=18)
    values = dict(CommandAttempt(spec, 1).values)
    assert values.pop("trial_dir") == output_of(spec)
    assert values == {
        "local_batch_size": 2,
        "global_batch_size": 8,
        "batch_size_per_node": 2,
        "gradient_accumulation_steps": 1,
        "accumulation_steps_of_all_ranks": 4,
        "world_size": 4,
        "num_nodes": 2,
        "gpus_per_node": 1,
        "parallelism": "ddp",
        "precision": "fp32",
        "seed": 7,
        "repeat": 0,
        "trial_id": spec.trial.trial_id,
        "depth": 18,
        "learning_rate": 0.1,
        "base_learning_rate": 0.1,
        "warmup_samples": 0,
    }
    assert CommandAttempt(spec, 0).values["batch_size_per_node"] == 6


def test_placeholders_of_a_process_are_filled_for_each(tmp_path: Path) -> None:
    command = "python {rank} {local_rank} {node_rank} {master_addr}:{master_port}"
    spec = command_spec(tmp_path, ranks=(1, 2), command=command, env={"ME": "r{rank}"})
    first, second = requests(spec, node_rank=1)
    assert first.task.argv == ("python", "1", "0", "1", "127.0.0.1:4711")
    assert second.task.argv == ("python", "2", "1", "1", "127.0.0.1:4711")
    assert (second.env["ME"], second.env["SCALELAB_LOCAL_RANK"]) == ("r2", "1")


def test_rank_finds_what_torchrun_sets(tmp_path: Path) -> None:
    spec = command_spec(tmp_path, ranks=(2, 2), threads_per_rank=3)
    ranks = requests(spec, node_rank=1)
    assert [each.rank for each in ranks] == [2, 3]
    wanted = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "NODE_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
        "OMP_NUM_THREADS": "3",
        "TORCHELASTIC_RUN_ID": spec.attempt_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "SCALELAB_GLOBAL_BATCH_SIZE": "8",
        "SCALELAB_TRIAL_DIR": str(output_of(spec)),
    }
    env = ranks[1].env
    assert {name: env.get(name) for name in wanted} == wanted
    assert "PET_MASTER_PORT" not in env


def test_programs_are_those_of_this_environment(tmp_path: Path) -> None:
    env = requests(command_spec(tmp_path))[0].env
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_only_rank_0_writes_metrics(tmp_path: Path) -> None:
    spec = command_spec(tmp_path, ranks=(1, 1))
    files = [requests(spec, node)[0].env["SCALELAB_METRICS"] for node in (0, 1)]
    assert files == [str(output_of(spec) / "metrics.jsonl"), os.devnull]
    spec = command_spec(tmp_path, metrics=REGEX)
    assert requests(spec)[0].env["SCALELAB_METRICS"] == os.devnull


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("{trial_dir}/a {seed}.jsonl", "attempt/output/a 7.jsonl"),
        ("logs/x.jsonl", "code/logs/x.jsonl"),
    ],
)
def test_metrics_file_may_be_elsewhere(
    tmp_path: Path, template: str, path: str
) -> None:
    spec = command_spec(tmp_path, metrics=MetricsSource(jsonl=template))
    assert CommandAttempt(spec, 0).metrics_path == tmp_path / path


def test_process_runs_in_the_code_and_on_its_core(tmp_path: Path) -> None:
    spec = command_spec(tmp_path, ranks=2)
    ranks = requests(spec)
    assert [each.cores for each in ranks] == [
        (int(device),) for device in spec.placement.shares[0].device_ids
    ]
    assert {each.directory for each in ranks} == {str(tmp_path / "code")}
    assert ranks[1].log == str(spec.files.log(1))


def test_all_devices_of_the_node_are_visible(tmp_path: Path) -> None:
    ranks = requests(command_spec(tmp_path, ranks=2, device_type="cuda"))
    visible = {each.env["CUDA_VISIBLE_DEVICES"] for each in ranks}
    assert len(visible) == 1
    assert visible.pop().count(",") == 1
    assert {each.env["CUDA_DEVICE_ORDER"] for each in ranks} == {"PCI_BUS_ID"}
    assert {each.cores for each in ranks} == {()}


def test_own_variables_win(tmp_path: Path) -> None:
    env = {"OMP_NUM_THREADS": "9", "OUT": "{trial_dir}/x", "SHELL_LIKE": "${HOME}"}
    spec = command_spec(tmp_path, env=env)
    found = requests(spec)[0].env
    assert found["OMP_NUM_THREADS"] == "9"
    assert found["OUT"] == f"{output_of(spec)}/x"
    assert found["SHELL_LIKE"] == "${HOME}"


def test_launcher_none_starts_one_process_for_all_devices(tmp_path: Path) -> None:
    spec = command_spec(tmp_path, ranks=2, launcher="none")
    (process,) = requests(spec)
    assert process.rank == 0
    assert process.cores == tuple(map(int, spec.placement.shares[0].device_ids))
    # It starts its own ranks, which must not take it for one of them.
    assert not {"RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"} & process.env.keys()
    assert process.env["MASTER_PORT"] == process.env["PET_MASTER_PORT"] == "4711"
    assert process.env["SCALELAB_WORLD_SIZE"] == "2"


def test_launcher_none_is_for_one_node(tmp_path: Path) -> None:
    spec = command_spec(tmp_path, ranks=(1, 1), launcher="none")
    message = (
        r"^launcher=none starts one process per trial, but this trial has 2 nodes\. "
        r"Use launcher: torchrun, per_node or another that spans nodes, or keep every "
        r"trial on one node\.$"
    )
    with pytest.raises(SpecError, match=message):
        requests(spec)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "python 'train.py",
            r'^command="python \'train\.py" is no command line: No closing quotation\. '
            "No shell reads it: quote words that hold spaces, and escape single",
        ),
        ("  ", r"^command is empty\. Write the program and its arguments\.$"),
        (
            "pyhton train.py",
            r"^command: 'pyhton' is no program that can be executed in .*code or on "
            r"its PATH\. No shell reads the command: write, for example, python ",
        ),
        ("./train.py", r"^command: '\./train\.py' is no program that can be exec"),
    ],
)
def test_command_line_that_cannot_be_run_is_refused(
    tmp_path: Path, command: str, message: str
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    with pytest.raises(SpecError, match=message):
        requests(command_spec(tmp_path, command=command))


def test_executable_file_of_the_code_can_be_run(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    script = tmp_path / "code" / "train.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert argv(command_spec(tmp_path, command="./train.sh -x")) == ("./train.sh", "-x")


def test_an_axis_that_is_called_as_a_placeholder_of_a_process_is_meant(
    tmp_path: Path,
) -> None:
    spec = command_spec(tmp_path, command="python {rank} {local_rank}", ranks=2, rank=8)
    assert [request.task.argv for request in requests(spec)] == [
        ("python", "8", "0"),
        ("python", "8", "1"),
    ]
    assert {request.env["SCALELAB_RANK"] for request in requests(spec)} == {"8"}
    assert [request.env["RANK"] for request in requests(spec)] == ["0", "1"]
