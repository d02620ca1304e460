"""The program accepts each command that an answer prints."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from command_lines import read
from measured_runs import COMMAND, EMULATED, completed, measured_run

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.inputs.problems import for_the_command_line
from scalelab.plan.further import further_trial
from scalelab.session import load
from scalelab.session.answer import Answer

Run = Callable[..., Any]
ACCEPTED = (0, 3)  # 3: nothing meets what was asked
MEASURED = """\
name: measured
workload: {name: digits_mlp, hidden_sizes: [64]}
measure: {long_trial: none, warmup_steps: 2, steps: 30}
job: {epochs: 40, samples_per_epoch: 1437, target: val_acc >= 0.9}
gpus: [1, 2]
local_batch_size: [4, 8]
learning_rate: 0.1
site: {device_type: cpu, gpus_per_node: 2}
"""
GROUPS = """\
site:
  scheduler: slurm
  device_type: cuda
  nodes: 4
  node_groups:
    old: {gpus_per_node: 2, price_per_gpu_hour: 0.9}
    new: {gpus_per_node: 4, price_per_gpu_hour: 2.5}
node_group: [old, new]
"""
TABLE = "gpus,nodes,batch_per_gpu,images_per_s,device\n" + "".join(
    f"{n},{-(-n // 8)},32,{factor * rate},{device}\n"
    for device, factor in {"A100": 1.0, "H100": 2.1}.items()
    for n, rate in {1: 790, 2: 1560, 4: 3080, 8: 6050, 16: 11000, 32: 2060}.items()
)
ONE_NODE = "site: {device_type: cpu, gpus_per_node: 2}\n"
SLURM = ONE_NODE.replace("{", "{scheduler: slurm, nodes: 3, ")


def of_groups(trial: Any) -> Any:
    name = {"old": "K80", "new": "A100"}[trial.node_group]
    return completed(trial, device_name=name)


def made(name: str, text: str, ending: Callable[[Any], Any] = completed) -> Path:
    """Return a run of an experiment whose file lies in the working directory."""
    text = f"name: {name}\n" + text.partition("\n")[2]
    Path("runs").mkdir(exist_ok=True)
    for place in (Path(), Path("runs")):
        (place / "train.py").write_text("")  # of the command, which is not run
    Path(f"{name}.yaml").write_text(text)
    measured_run(Path("runs", name).absolute(), text, ending)
    return Path("runs", name)


def table() -> Path:
    from scalelab.session import import_table

    Path("table.csv").write_text(TABLE)
    columns = {"device_name": "device"}
    import_table("table.csv", "runs/table", column=columns, accept_doubts=True)
    return Path("runs", "table")


SOURCES: Mapping[str, Callable[[], Path]] = {
    "one node": lambda: made("alone", MEASURED),
    "a cluster": lambda: made("cluster", MEASURED.replace(ONE_NODE, SLURM)),
    "one repeat": lambda: made("once", EMULATED.replace("repeats: 2", "repeats: 1")),
    "a command": lambda: made("trained", COMMAND),
    "unlike nodes": lambda: made(
        "unlike", MEASURED.replace(ONE_NODE, GROUPS), of_groups
    ),
    "a table": table,
}
QUESTIONS: tuple[Mapping[str, Any], ...] = (
    {},
    {"max_time": "1s"},
    {"max_time": "30h", "confidence": 0.6},
    {"max_gpu_hours": "1gpu-h"},
    {"gpus": [3, 6]},
    {"gpus": [3, 6], "accept_unmeasured": True},
    {"accept_unmeasured": True},
    {"price": "2usd", "max_cost": "1usd"},
    {"price": "2usd", "max_time": "2h", "accept_unmeasured": True},
    {"gpus": [1]},
)
JOB = {"samples": 10_000_000}


def printed(answer: Answer) -> Iterator[str]:
    """Yield the commands that an answer prints; a report has one more."""
    with for_the_command_line():
        command, _ = answer.next_command
    if command:
        yield command
    if answer.what_if:
        yield answer.what_if["command"]


def assert_accepted(command: str, scalelab: Run) -> None:
    """Read a command as the program would before any trial starts."""
    _, name, *words = shlex.split(command)
    read(command)
    if name != "sweep":
        ended = scalelab(name, *words)
        assert ended.code in ACCEPTED, (command, ended.err)
        return

    experiment = Experiment.from_file(words[0])
    options = dict(zip(words[1::2], words[2::2], strict=True))
    text = options["--trial"]
    group = dict(pair.split("=") for pair in text.split(",")).get("node_group")
    site = experiment.resolve_site(options.get("--site")).in_group(group)
    further_trial(experiment, site, text, ())


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "a table",
        *(
            pytest.param(source, marks=pytest.mark.repetition)
            for source in SOURCES
            if source != "a table"
        ),
    ],
)
def test_each_command_of_an_answer_is_accepted(
    source: str, here: Path, scalelab: Run
) -> None:
    run = load(SOURCES[source]())
    job = {} if run.job else {"job": JOB}
    num_answers, seen = 0, set[str]()
    for question in QUESTIONS:
        try:
            answer = run.recommend(**question, **job, what_if=True)
        except SpecError:  # a question that unlike devices do not allow
            continue
        num_answers += 1
        commands = [*printed(answer)]
        seen |= {command.split()[1] for command in commands}
        for command in commands:
            assert_accepted(command, scalelab)

    assert num_answers >= len(QUESTIONS) - 1
    assert seen
