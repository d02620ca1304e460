"""Whatever lies under the names of a run's files, nothing outside of the run changes.

The names are those of ``scalelab.records.layout``. In the place of each comes a link, a
pipe, a folder and a device, and then every command looks at the run.
"""

import hashlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import chdir
from itertools import product
from pathlib import Path
from types import FrameType

import pytest
from kept_fits import once
from measured_runs import measured_run
from promised import skip_or_fail
from warm_interpreter import WarmInterpreter

from scalelab.cli.main import run
from scalelab.recommend import by_device
from scalelab.records.layout import NAMES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PATIENCE_S = 20
SECRET = "not-of-this-run "
EXPERIMENT = """\
name: made
command: python train.py {local_batch_size}
launcher: per_node
code: {snapshot: [train.py]}
env: {TOKEN: secret}
measure: {long_trial: none, warmup_steps: 2, steps: 20}
job: {epochs: 2, samples_per_epoch: 1000}
gpus: 1
local_batch_size: 16
site: {name: hpc, scheduler: slurm, device_type: cuda, gpus_per_node: 2}
"""
COMMANDS = (
    "status runs/made",
    "recommend runs/made --max-time 1h",
    "recommend runs/made --sbatch",
    "export runs/made -o made.csv",
    "stop runs/made",
    "sweep made.yaml --yes",
    "follow runs/made ./job.log",
)
FOLDERS = sorted(
    {str(folder) for name in NAMES for folder in Path(name).parents if folder != Path()}
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run that holds a file of every name."""
    home = tmp_path_factory.mktemp("template")
    (home / "runs").mkdir()
    for place in (home, home / "runs"):
        (place / "train.py").write_text("print('step 1')\n")
    (home / "made.yaml").write_text(EXPERIMENT)
    lines = [f"step {n} loss 1.0 50 ms/step" for n in range(1, 100)]
    (home / "job.log").write_text("\n".join(lines))
    store = measured_run(home / "runs" / "made", EXPERIMENT)
    for name in NAMES:
        path = present(store.directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() and name not in ("driver.stop", "driver.lease"):
            path.touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for command in COMMANDS:  # answers are kept from now on
            run(command.split())

    return home


def present(directory: Path, name: str) -> Path:
    """Return the path of a name, with the words of an entry that is there."""
    path = directory
    for part in Path(name).parts:
        near = path.iterdir() if part.isupper() and path.is_dir() else ()
        entries = sorted(entry for entry in near if entry.is_dir() == (part != "FILE"))
        path = entries[0] if entries else path / part
    return path


@pytest.fixture(scope="module", autouse=True)
def _answers_once() -> Iterator[None]:
    """Answer a question of the same rows once: here files are under test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_device, "answer", once(by_device.answer))
        yield


@pytest.fixture
def home(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Copy the run, beside a folder that nothing may change."""
    home = tmp_path / "home"
    shutil.copytree(template, home)
    monkeypatch.chdir(home)
    # A question names the folder of its history: equal ones are answered once.
    config = template.parent / "config"
    shutil.rmtree(config, ignore_errors=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    signal.signal(signal.SIGALRM, give_up)
    yield home
    signal.alarm(0)


def give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("a command hangs")


def link_to_a_file(path: Path, outside: Path) -> None:
    victim = outside / "victim"
    victim.write_text(SECRET * 300)  # without a line end
    path.symlink_to(victim)


def link_to_what_was_there(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "moved")


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "inner").write_text("x")


def device(path: Path, outside: Path) -> None:
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        skip_or_fail("only root makes devices")


def contents(directory: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


TOP = [name for name in (*NAMES, *FOLDERS) if "/" not in name]
DEEPER = [name for name in (*NAMES, *FOLDERS) if "/" in name]
REPEATED = (
    *product(DEEPER, [pipe]),
    *product(NAMES, (folder, device)),
    *product(FOLDERS, (link_to_a_file, device)),
)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *product(NAMES, [link_to_a_file]),
        *product(FOLDERS, [link_to_what_was_there]),
        *product(TOP, [pipe]),
        *(pytest.param(*case, marks=pytest.mark.repetition) for case in REPEATED),
    ],
)
def test_no_command_hangs_fails_or_leaves_the_run(
    home: Path,
    name: str,
    place: Callable[[Path, Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    outside = home.parent / "outside"
    outside.mkdir()
    path = present(home / "runs" / "made", name)
    if path.exists():
        path.rename(outside / "moved")
    path.parent.mkdir(parents=True, exist_ok=True)
    place(path, outside)
    before = contents(outside)

    for command in COMMANDS:
        signal.alarm(PATIENCE_S)
        status = run(command.split())
        signal.alarm(0)
        printed = capsys.readouterr()
        assert status in (0, 1, 2, 3, 4), command
        assert "Traceback" not in printed.out + printed.err, command
        assert SECRET not in printed.out + printed.err, command
        assert contents(outside) == before, command


WORDS = {
    "HASH": r"[0-9a-f]+",
    "TRIAL": r"[0-9a-f]{12}",
    "FILE": r".+",
    "NODE": r"\d+",
    "PROCESS": r"[\w-]+",
    "JOB": r"[\w-]+",
    "001": r"\d{3,}",
    "0001": r"\d{4,}",
    "rank-0": r"rank-\d+",
}


def pattern(name: str) -> re.Pattern[str]:
    """Return what matches the paths of a name."""
    words = re.split(r"\b(0*1|rank-0|[A-Z]+)\b", name)
    return re.compile("".join(WORDS.get(word, re.escape(word)) for word in words))


@pytest.mark.parametrize(
    "text",
    [
        "workload: {name: digits_mlp, hidden_sizes: [8]}\n"
        "measure: {kind: [throughput, convergence], long_trial: none, steps: 20, "
        "repeats: 1}\n"
        "job: {target: val_acc >= 0.5, epochs: 2, samples_per_epoch: 1437}\n",
        "command: python train.py\nlauncher: torchrun\n"
        "code: {snapshot: [train.py]}\nenv: {TOKEN: secret}\n"
        "measure: {long_trial: none, steps: 20, warmup_steps: 2, repeats: 1}\n",
        "command: python train.py {width}\nlauncher: none\ntune: {width: [1, 2]}\n"
        "objective: loss\nmeasure: {kind: convergence}\njob: {samples: 800}\n",
    ],
    ids=["workload", "command", "search"],
)
def test_every_file_of_a_sweep_has_a_name(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: WarmInterpreter
) -> None:
    monkeypatch.chdir(tmp_path)
    program = """\
import time
import torch
layer = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(1, 101):
    layer(torch.ones(8, 1)).sum().backward()
    optimizer.step()
    time.sleep(0.005)
    print(f"step {step} loss {1 / step}", flush=True)
"""
    Path("train.py").write_text(program)
    if "command" in text:
        text += r"metrics: {regex: 'step (?P<step>\d+) loss (?P<loss>\S+)'}" + "\n"
    site = "site: {device_type: cpu, gpus_per_node: 2}"
    shared = f"name: made\ngpus: 1\nlocal_batch_size: 8\n{site}\n"
    Path("made.yaml").write_text(shared + text)
    swept = warm(*SWEEP)
    assert swept.returncode == 0, swept.stderr

    patterns = [*map(pattern, NAMES)]
    run_directory = Path("runs/made")
    unnamed = {
        name
        for path in run_directory.rglob("*")
        if path.is_file()
        and (name := str(path.relative_to(run_directory)))
        and not any(known.fullmatch(name) for known in patterns)
    }
    assert unnamed == set()


PROGRAM = """\
import time
for step in range(1, 61):
    time.sleep(0.003)
    print(f"step {step} loss {1 / step}", flush=True)
"""
GROWING = r"""
name: made
command: python train.py {local_batch_size}
launcher: none
code: {snapshot: [train.py]}
env: {TOKEN: secret}
metrics: {regex: 'step (?P<step>\d+) loss (?P<loss>\S+)'}
measure: {long_trial: none, warmup_steps: 2, steps: 20, repeats: 1}
gpus: 1
local_batch_size: [8]
site: {device_type: cpu, gpus_per_node: 1}
"""
SWEEP = ("sweep", "made.yaml", "--yes")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, warm: WarmInterpreter) -> Path:
    """Sweep one trial, and ask for another one."""
    home = tmp_path_factory.mktemp("swept")
    (home / "train.py").write_text(PROGRAM)
    (home / "made.yaml").write_text(GROWING)
    with chdir(home):
        warm(*SWEEP).check_returncode()
    (home / "made.yaml").write_text(GROWING.replace("[8]", "[8, 16]"))
    return home


@pytest.mark.parametrize(
    "name",
    [*TOP, *(pytest.param(name, marks=pytest.mark.repetition) for name in DEEPER)],
)
def test_a_sweep_that_goes_on_writes_through_no_link(
    name: str,
    swept: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    shutil.copytree(swept, home)
    outside.mkdir()
    path = present(home / "runs" / "made", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(outside / "moved")
        link_to_what_was_there(path, outside)
    else:
        link_to_a_file(path, outside)

    before = contents(outside)
    monkeypatch.chdir(home)
    status = run(SWEEP)
    printed = capsys.readouterr()
    assert status in (0, 1, 2, 3, 4)
    assert "Traceback" not in printed.out + printed.err
    assert contents(outside) == before
