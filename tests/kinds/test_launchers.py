"""What holds for every launcher, and what the built-in ones start."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.inputs.document import Scalar
from scalelab.inputs.placeholders import PLACEHOLDERS
from scalelab.kinds.launchers import (
    LAUNCHERS,
    LaunchedProcess,
    Launcher,
    RecommendedJob,
)
from scalelab.testing.launchers import LauncherContract, job_of, process_of


class TestEveryLauncher(LauncherContract):
    @pytest.fixture(params=LAUNCHERS.built_in, ids=lambda row: row.name)
    def row(self, request: pytest.FixtureRequest) -> Launcher:
        found: Launcher = request.param
        return found


def process() -> LaunchedProcess:
    return process_of(3)


def job(command: str, num_nodes: int = 1) -> RecommendedJob:
    return job_of(*shlex.split(command), num_nodes=num_nodes)


@pytest.mark.parametrize("launcher", LAUNCHERS.built_in, ids=lambda row: row.name)
def test_processes_find_where_to_meet(launcher: Launcher) -> None:
    env = launcher.environment(process())
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.7", "4711")


def test_every_process_has_the_placeholders_of_its_place() -> None:
    assert process().placeholders == {
        "rank": 3,
        "local_rank": 0,
        "node_rank": 1,
        "num_processes": 4,
        "master_addr": "10.0.0.7",
        "master_port": 4711,
        "rendezvous": "10.0.0.7:4711",
        "coordinator": "10.0.0.7:4711",
    }
    assert process().placeholders.keys() <= PLACEHOLDERS.keys()


def test_ranks_find_what_torchrun_sets() -> None:
    assert LAUNCHERS["torchrun"].environment(process()) == {
        "RANK": "3",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1",
        "NODE_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RUN_ID": "abc-1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def test_one_process_starts_its_own_ranks_and_is_none_itself() -> None:
    none = LAUNCHERS["none"]
    assert none.processes(("0", "1"), 0) == (("0", "1"),)
    env = none.environment(process())
    assert env.keys() == {"MASTER_ADDR", "MASTER_PORT", "PET_MASTER_PORT"}


def test_one_process_is_for_one_node() -> None:
    LAUNCHERS["none"].check_nodes(1, "the trial")
    LAUNCHERS["torchrun"].check_nodes(2, "the trial")
    message = (
        "launcher=none starts one process per trial, but the trial has 2 nodes. Use "
        "launcher: torchrun, per_node or another that spans nodes, or keep every trial "
        "on one node."
    )
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        LAUNCHERS["none"].check_nodes(2, "the trial")


@pytest.mark.parametrize(
    ("command", "end"),
    [
        ("python a.py 'b c'", "--nproc-per-node=4 a.py 'b c'"),
        ("./a", "--nproc-per-node=4 --no-python ./a"),
        ("python -u a.py", "--nproc-per-node=4 --no-python python -u a.py"),
        ("python -m mine 1", "--nproc-per-node=4 --no-python python -m mine 1"),
        (
            "conda run python a.py",
            "--nproc-per-node=4 --no-python conda run python a.py",
        ),
        ("python a.py ${HOME}", "--nproc-per-node=4 a.py '${HOME}'"),
        (
            "python a.py --rank {rank}",
            "--nproc-per-node=4 --no-python bash -c "
            "'exec python a.py --rank \"$RANK\"'",
        ),
    ],
)
def test_torchrun_starts_the_recommended_job(command: str, end: str) -> None:
    torchrun = LAUNCHERS["torchrun"]
    assert torchrun.job_lines(job(command)) == [f"torchrun --standalone {end}"]
    (line,) = torchrun.job_lines(job(command, 2))
    assert line.startswith("srun --nodes=2 torchrun --nnodes=2 --rdzv-backend=c10d ")
    assert '--rdzv-endpoint="$(first):$((1 + 2))"' in line
    assert line.endswith(end)


def test_words_of_a_process_are_read_by_a_shell_and_others_are_not(
    tmp_path: Path,
) -> None:
    show = tmp_path / "show"
    show.write_text('#!/bin/sh\nfor word; do echo "[$word]"; done\n')
    show.chmod(0o755)
    asked = job(f"{show} 'run {{rank}} of $HOME' a{{seed}}b '' x{{rank}}{{rank}}")
    said = subprocess.run(
        ["bash", "-c", asked.line({"rank": "$RANK"})],
        env={"RANK": "3 4", "PATH": os.environ["PATH"], "HOME": "/h"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == [
        "[run 3 4 of $HOME]",
        "[a{seed}b]",
        "[]",
        "[x3 43 4]",
    ]


def test_one_process_finds_in_a_job_what_it_finds_in_a_trial() -> None:
    lines = LAUNCHERS["none"].job_lines(job("python a.py {rank} {master_port}"))
    assert lines == [
        "export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((1 + 2)) "
        "PET_MASTER_PORT=$((1 + 2))",
        'python a.py 0 "$MASTER_PORT"',
    ]
    names = {word.partition("=")[0] for word in lines[0].split() if "=" in word}
    assert names == LAUNCHERS["none"].environment(process()).keys()


@pytest.mark.parametrize(
    ("launcher", "options", "message"),
    [
        (
            "srun",
            {"per": "node"},
            "has no options: remove per, or write only the name.",
        ),
        ("jax", {"pre": "node"}, "unknown key 'pre'. Did you mean 'per'? Valid: per."),
        ("jax", {"per": "gpu"}, "per='gpu' is not known. Valid: device, node."),
        (
            "tf_config",
            {"parameter_servers": 65},
            "parameter_servers=65 must be at most 64. Processes on the first node that "
            "hold parameters and no device.",
        ),
        (
            "tf_config",
            {"parameter_servers": True},
            "parameter_servers=True must be a whole number. Processes on the first "
            "node that hold parameters and no device.",
        ),
    ],
)
def test_options_of_a_launcher_are_checked(
    launcher: str, options: dict[str, Scalar], message: str
) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        LAUNCHERS[launcher].with_options(options)


def test_options_say_which_processes_start() -> None:
    tf_config = LAUNCHERS["tf_config"].with_options(
        {"per": "node", "parameter_servers": 2}
    )
    assert tf_config.processes(("0", "1"), 0) == ((), (), (), ("0", "1"))
    assert tf_config.processes(("0", "1"), 1) == (("0", "1"),)
    assert tf_config.ends_with_rank_0
    assert not LAUNCHERS["tf_config"].ends_with_rank_0


def test_the_schema_of_experiments_lists_the_launchers() -> None:
    known, full = Experiment.json_schema()["$defs"]["LauncherChoice"]["anyOf"]
    assert (known["type"], known["enum"]) == ("string", list(LAUNCHERS.names))
    assert full["required"] == ["name"]
