"""Commands under a launcher that another distribution has added."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_specs import MEET, TICKER, command_spec
from distributions import install
from waiting import wait_until
from watching import is_running

from scalelab.errors import SpecError
from scalelab.experiment.checks import check_kinds
from scalelab.experiment.program import framework_of
from scalelab.experiment.spec import Experiment
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.launchers import LAUNCHERS
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptSpec
from scalelab.session import sweep

TOY = """
import json
from scalelab.kinds.launchers import Launcher

class Toy(Launcher):
    name = "toy"
    ports_per_process = 2
    ends_with_rank_0 = True

    def environment(self, process):
        known = {"rank": process.rank, "hosts": process.hosts, "ports": process.ports}
        return {"TOY": json.dumps(known), "TOY_RANK": str(process.rank)}

    def job_lines(self, job):
        return ["toyrun " + job.command]

TOY = Toy()
"""
STEPS = TICKER.replace("held = meet()\n", "")
# Says who it is; rank 0 trains, the others serve it for ever.
PROGRAM = (
    MEET
    + """
import os, pathlib, sys, time
os.environ |= {"RANK": os.environ["TOY_RANK"], "WORLD_SIZE": "2"}
held = meet()
out = pathlib.Path(os.environ["SCALELAB_TRIAL_DIR"])
mine = out / ("rank-" + os.environ["TOY_RANK"] + ".json")
mine.with_suffix(".tmp").write_text(os.environ["TOY"] + "\\n" + str(os.getpid()))
mine.with_suffix(".tmp").rename(mine)
if os.environ["TOY_RANK"] != "0":
    time.sleep(600)
while not (out / "rank-1.json").exists():
    time.sleep(0.001)
"""
)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a distribution with a launcher, for this process and those it starts."""
    folder = tmp_path / "installed"
    folder.mkdir()
    install(folder, "toy", "scalelab.launchers", code=TOY, toy="toy_rows:TOY")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    known = vars(LAUNCHERS)
    known.pop("_outside", None)
    yield
    known.pop("_outside", None)
    LAUNCHERS._loaded.clear()


def told(spec: AttemptSpec, rank: int) -> tuple[dict[str, object], int]:
    """Return what a process found in its environment, and its process id."""
    file = Path(spec.directory, "output", f"rank-{rank}.json")
    wait_until(file.exists, f"{file.name} is there")
    known, pid = file.read_text().splitlines()
    return json.loads(known), int(pid)


def test_an_unknown_launcher_is_refused_with_the_names_there_are() -> None:
    text = "name: a\ncommand: python a.py\ngpus: 1\nlocal_batch_size: 1\n"
    message = (
        r"^launcher='tochrun' is not known\. Did you mean 'torchrun'\? "
        r"Valid: torchrun, per_node, none, srun, mpi, mpirun, tf_config, jax\.$"
    )
    with pytest.raises(SpecError, match=message):
        check_kinds(Experiment.from_text(text + "launcher: tochrun\n"))
    assert Experiment.from_text(text).launcher.name == "torchrun"


def test_schema_lists_the_launchers(toy: None) -> None:
    schema = Experiment.json_schema()
    names = schema["$defs"]["LauncherChoice"]["anyOf"][0]["enum"]
    assert (names[0], names[-1]) == ("torchrun", "toy")
    assert schema["properties"]["launcher"]["default"] == {"name": "torchrun"}


@pytest.mark.usefixtures("toy")
def test_end_of_rank_0_ends_processes_that_never_end(
    agent: NodeAgent, tmp_path: Path
) -> None:
    spec = command_spec(
        tmp_path,
        PROGRAM + STEPS.replace("100_000", "40"),
        ranks=2,
        launcher="toy",
        steps=500,
    )
    assert not framework_of(spec.program)
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    (first, _), (second, pid) = told(spec, 0), told(spec, 1)
    assert not is_running(pid)
    assert first["hosts"] == ["127.0.0.1"]
    (ports,) = first["ports"]
    assert len(set(ports)) == 4
    assert {**second, "rank": 0} == first


@pytest.mark.slow
def test_trial_is_over_when_all_its_processes_have_ended(
    agent: NodeAgent, tmp_path: Path
) -> None:
    late = """held = meet()
if os.environ["RANK"] == "1":
    time.sleep(1)
    raise SystemExit(7)
"""
    program = TICKER.replace("held = meet()\n", late).replace("100_000", "40")
    result = agent.run(command_spec(tmp_path, program, ranks=2, steps=500), 0, None)
    assert (result.outcome, result.rank) == (Outcome.FAILED, 1), result


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_sweep_on_two_nodes_finds_the_launcher(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    steps = STEPS.replace("* 8", '* int(os.environ["SCALELAB_GLOBAL_BATCH_SIZE"])')
    (code / "program.py").write_text(PROGRAM + steps)
    file = tmp_path / "toy.yaml"
    file.write_text(
        "name: toy\ncommand: python program.py {rank}\nlauncher: toy\n"
        "code: {root: code, snapshot: program.py}\ngpus: 2\nlocal_batch_size: 8\n"
        "measure: {long_trial: none, warmup_steps: 2, steps: 20, repeats: 1}\n"
        "site: {device_type: cpu, nodes: 2, gpus_per_node: 1}\n"
    )
    rows = sweep(file, directory=tmp_path / "run").observations
    assert set(rows["outcome"]) == {"completed"}, rows["reason"].tolist()
    (found,) = (tmp_path / "run").glob("trials/*/001/output/rank-1.json")
    known = json.loads(found.read_text().splitlines()[0])
    assert (known["rank"], len(known["hosts"])) == (1, 2)
    assert [len(ports) for ports in known["ports"]] == [2, 2]


def test_node_without_the_distribution_says_so(
    agent: NodeAgent, tmp_path: Path
) -> None:
    result = agent.run(command_spec(tmp_path, TICKER, launcher="toy"), 0, None)
    assert result.outcome is Outcome.REFUSED
    assert result.reason.startswith("launcher='toy' is not known.")
