import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_interpreter import WarmInterpreter

from scalelab.experiment.spec import Experiment


def test_what_it_writes_can_be_planned(
    scalelab: Callable[..., Any], here: Path
) -> None:
    ended = scalelab("init")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "Wrote experiment.yaml. Edit it. Next: scalelab try experiment.yaml\n"
    )
    missing = scalelab("plan", "experiment.yaml")
    missing.assert_refused()
    assert "'train.py' does not exist in" in missing.err
    Path("train.py").write_text("")
    text = Path("experiment.yaml").read_text()
    Path("experiment.yaml").write_text(text + "site: {gpus_per_node: 8}\n")
    planned = scalelab("plan", "experiment.yaml")
    assert planned.code == 0
    assert planned.out.startswith("my-model on site local: 27 trials\n")


def test_its_lines_are_short_and_complete() -> None:
    from scalelab.cli.init_command import TEMPLATE

    assert TEMPLATE.isascii()
    assert max(map(len, TEMPLATE.splitlines())) <= 88
    experiment = Experiment.from_text(TEMPLATE)
    assert experiment.job is not None
    assert experiment.learning_rate is not None


def test_nothing_is_overwritten(scalelab: Callable[..., Any], here: Path) -> None:
    Path("mine.yaml").write_text("name: precious\n")
    scalelab("init", "mine.yaml").assert_refused()
    assert Path("mine.yaml").read_text() == "name: precious\n"
    scalelab("init", "absent/mine.yaml").assert_refused()
    scalelab("init", ".").assert_refused()
    assert sorted(path.name for path in here.iterdir()) == ["mine.yaml"]


def test_a_folder_that_is_not_there_is_refused_before_anything_is_imported(
    here: Path,
) -> None:
    Path("fine.py").write_text("x = 1")
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\nfrom scalelab.cli import main\n"
            "code = main.run(['init', 'absent/mine.yaml', '--from', 'fine.py'])\n"
            "print(code, *({'yaml', 'pandas', 'torch'} & {*sys.modules}))",
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "absent/mine.yaml cannot be written: there is no folder ab" in ended.stderr
    assert ended.stdout == "2\n"


def test_the_schema_is_json(scalelab: Callable[..., Any]) -> None:
    ended = scalelab("schema")
    assert (ended.code, ended.err) == (0, "")
    schema = json.loads(ended.out)
    assert schema["title"] == "ScaleLab experiment"
    assert {"name", "gpus", "workload", "command"} <= set(schema["properties"])


# Batches counted in each epoch anew, an evaluation at the end of each, and accumulation
# that is shared out over all ranks.
TRAIN = """
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--epochs", type=int, default=1000)
parser.add_argument("--out", required=True)
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
for epoch in range(args.epochs):
    for batch in range(1, 31):
        time.sleep(0.003 * args.batch_size)
        if os.environ.get("RANK", "0") == "0":
            print(f"Epoch: [{epoch}][{batch:2d}/30]\\tTime 0.1 (0.1)\\tLoss 7.0 (7.0)")
    print("Test: [1/1]\\tTime 0.1 (0.1)\\tLoss 6.0 (6.0)")
"""


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_proposal_is_swept(
    scalelab: Callable[..., Any],
    here: Path,
    warm: WarmInterpreter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    Path("train.py").write_text(TRAIN)
    interpreter = Path("envs/mine/python")  # beside the code, and not copied with it
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)
    printed = subprocess.run(
        [sys.executable, "train.py", "--out", "out", "--epochs", "1"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    Path("sample.log").write_bytes(printed.stdout)
    ended = scalelab("init", "--from", "train.py", "--log", "sample.log")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "Wrote experiment.yaml. Found in train.py: --batch-size {local_batch_size}, "
        "--out {trial_dir}.\n"
        "Fill in job.samples_per_epoch, and remove the # before job.\n"
        "Next: scalelab try experiment.yaml\n"
    )
    assert scalelab("plan", "experiment.yaml").code == 0
    text = Path("experiment.yaml").read_text()
    assert "\nmetrics: imagenet              # reads 30 steps of sample.log\n" in text
    text = re.sub(
        "^gpus: .*$",
        "gpus: 1",
        text.replace("repeats: 3", "repeats: 1, long_trial: none"),
        flags=re.M,
    )
    own = text.replace("  python train.py", f"  {interpreter} train.py")
    assert own != text
    Path("experiment.yaml").write_text(own)
    swept = warm("sweep", "experiment.yaml", timeout_s=240)
    assert swept.returncode == 0, swept.stderr
    assert "1/1 done" in swept.stdout + swept.stderr


TRAINS_EPOCHS = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--epochs", type=int, default=700)
args = parser.parse_args()
torch.set_num_threads(1)
data = TensorDataset(torch.randn(90, 8), torch.randn(90, 1))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(args.epochs):
    for x, y in DataLoader(data, batch_size=args.batch_size):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_samples_of_an_epoch_are_left_to_the_data_loader(
    scalelab: Callable[..., Any], here: Path, warm: WarmInterpreter
) -> None:
    Path("train.py").write_text(TRAINS_EPOCHS)
    ended = scalelab("init", "--from", "train.py")
    assert (ended.code, ended.err) == (0, "")
    assert "Fill in" not in ended.out
    text = Path("experiment.yaml").read_text()
    assert "\njob: {epochs: 700}\n" in text
    shorter = text.replace("repeats: 3", "repeats: 1, long_trial: none")
    Path("experiment.yaml").write_text(
        re.sub("^name: .*$", "name: train", shorter, flags=re.M)
    )
    warm("sweep", "experiment.yaml", timeout_s=240).check_returncode()
    answered = scalelab("recommend", "runs/train", "--json")
    answer = json.loads(answered.out)
    facts = {fact["kind"]: fact for fact in answer["facts"]}
    assert facts["epoch_of_loader"]["samples"] == 90
    (row,) = answer["rows"]
    assert row["samples"]["value"] == 700 * 90
    asked = scalelab("recommend", "runs/train", "--json", "--epochs", "70")
    assert json.loads(asked.out)["rows"][0]["samples"]["value"] == 70 * 90


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "absent.py"], "'absent.py' cannot be read: No such file"),
        (["--from", "wrong.py"], "'wrong.py' is no Python script: "),
        (["--from", "fine.py", "--log", "absent.log"], "'absent.log' cannot be read"),
        (["--from", "fine.py", "--log", "binary.log"], "'binary.log' is no text"),
        (["--log", "binary.log"], "--log 'binary.log' needs --from"),
        (["--from", "{own} train.py"], "command holds {own}, which is no placeholder"),
    ],
)
def test_what_cannot_be_proposed_is_said_and_nothing_written(
    scalelab: Callable[..., Any], here: Path, arguments: list[str], message: str
) -> None:
    Path("wrong.py").write_text("def f(:")
    Path("fine.py").write_text("x = 1")
    Path("{own} train.py").write_text("x = 1")
    Path("binary.log").write_bytes(b"step 1\n\0")
    ended = scalelab("init", *arguments)
    ended.assert_refused()
    assert message in ended.err
    assert not Path("experiment.yaml").exists()


def test_a_proposal_overwrites_nothing(
    scalelab: Callable[..., Any], here: Path
) -> None:
    Path("experiment.yaml").write_text("name: precious\n")
    Path("fine.py").write_text("x = 1")
    scalelab("init", "--from", "fine.py").assert_refused()
    assert Path("experiment.yaml").read_text() == "name: precious\n"
