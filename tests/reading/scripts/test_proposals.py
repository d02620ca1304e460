"""Experiments that are proposed for a script: what is read, and what is written."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.experiment.presets import PRESETS
from scalelab.experiment.spec import Experiment
from scalelab.reading.logs.match import MAX_LOG_BYTES, match
from scalelab.reading.reading import Reading
from scalelab.reading.scripts import script as scripts
from scalelab.reading.scripts.proposal import Proposal, read
from scalelab.reading.scripts.script import MAX_SCRIPT_BYTES, read_script

OUTPUTS = Path(__file__).parents[1] / "samples" / "outputs"
ARGPARSE = """
import argparse, os
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("-b", "--batch-size", type=int, default=48)
parser.add_argument("--lr", "--learning-rate", type=float, default=3e-4)
parser.add_argument("--grad-accum", type=int, default=2)
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--out", dest="output_dir", default="out")
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--precision", default="bf16")
parser.add_argument("--workers", type=int, default=4)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--tokenizer", required=True)
dist.init_process_group()
"""
NANOGPT = """
import os, torch
batch_size = 12
gradient_accumulation_steps = 5 * 8
learning_rate = 6e-4
max_iters = 600000
out_dir = 'out'
exec(open('configurator.py').read())
world = int(os.environ['WORLD_SIZE'])
gradient_accumulation_steps //= world
"""


def written(directory: Path, text: str, name: str = "train.py") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(textwrap.dedent(text))
    return path


def proposed(
    path: Path, log: Path | None = None, directory: Path | None = None
) -> tuple[Reading[str], Experiment]:
    script = read_script(path)
    found = read(
        Proposal(
            script=script,
            log=match(log, script.all_packages) if log else None,
            log_name=log.name if log else "",
            directory=directory or path.parent,
        )
    )
    return found, Experiment.from_text(found.value, directory=directory or path.parent)


@pytest.mark.parametrize(
    ("line", "scales"),
    [
        ("sgd = SGD(parameters, lr=args.lr * dist.get_world_size())", True),
        ("lr = base_lr * hvd.size()", True),
        ("args.lr *= args.world_size", True),
        ("scaled = world_size * args.learning_rate", True),
        ("lr = args.lr * args.batch_size / 256", False),
        ("plr = args.lr", False),
        ("loss = loss / dist.get_world_size()", False),
    ],
)
def test_a_rate_that_the_script_scales_gets_no_rule(
    tmp_path: Path, line: str, scales: bool
) -> None:
    found, experiment = proposed(written(tmp_path, f"{ARGPARSE}{line}\n"))
    assert experiment.learning_rate is not None
    assert experiment.learning_rate.base == (3e-4,)
    assert ("the script multiplies it by its ranks" in found.value) is scales
    assert ("rule: linear" in found.value) is not scales


def test_options_of_argparse_become_placeholders(tmp_path: Path) -> None:
    found, experiment = proposed(written(tmp_path, ARGPARSE))
    assert experiment.command == (
        "python train.py --batch-size {local_batch_size} "
        "--grad-accum {gradient_accumulation_steps} --lr {learning_rate} --seed {seed} "
        "--out {trial_dir} --precision {precision} --tokenizer TOKENIZER DATA"
    )
    assert experiment.local_batch_size == (48,)
    assert experiment.gradient_accumulation_steps == 2
    assert experiment.learning_rate is not None
    assert experiment.learning_rate.base == (3e-4,)
    assert experiment.seed == (7,)
    assert experiment.precision == ("bf16",)
    assert experiment.job is None
    assert "\n# job: {epochs: 30, samples_per_epoch: NUMBER}\n" in found.value
    assert found.doubts == (
        "data in the command",
        "--tokenizer in the command",
        "job.samples_per_epoch, and remove the # before job",
    )
    assert "#       epochs of the training, 30 by default\n" in found.value
    assert "Nothing in the script shows" not in found.value
    assert max(map(len, found.value.splitlines())) <= 88


@pytest.mark.parametrize(
    ("loads", "is_seen"),
    [
        ("from torch.utils.data import DataLoader\nd = DataLoader([], 8)", True),
        ("import torch, timm\nd = timm.data.create_loader([], 8)", True),
        ("from transformers import Trainer\nTrainer(None).train()", True),
        ("import torch\nd = torch.randn(90, 8)", False),
        ("from mine import MyLoader\nd = MyLoader(8)", False),
    ],
)
def test_a_data_loader_that_is_seen_tells_the_samples_of_an_epoch(
    tmp_path: Path, loads: str, is_seen: bool
) -> None:
    script = f"import argparse\n{loads}\np = argparse.ArgumentParser()\n"
    script += "p.add_argument('--epochs', type=int, default=30)\n"
    script += "p.add_argument('--batch-size', type=int, default=8)\n"
    found, experiment = proposed(written(tmp_path, script))
    assert experiment.job == (Job(epochs=30) if is_seen else None)
    assert any("samples_per_epoch" in each for each in found.doubts) is not is_seen


def test_globals_of_a_configurator_are_options(tmp_path: Path) -> None:
    written(tmp_path, "import model", "configurator.py")
    written(tmp_path, "", "model.py")
    found, experiment = proposed(written(tmp_path, NANOGPT))
    assert experiment.command == (
        "python train.py --batch_size={local_batch_size} "
        "--gradient_accumulation_steps={accumulation_steps_of_all_ranks} "
        "--learning_rate={learning_rate} --out_dir={trial_dir}"
    )
    assert experiment.job is None
    assert "\n# job: {steps: 600000, global_batch_size: NUMBER}\n" in found.value
    assert set(experiment.snapshot_paths) == {"train.py", "configurator.py"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "from absl import flags\nflags.DEFINE_integer('batch_size', 8, 'own')",
            "--batch_size={local_batch_size}",
        ),
        (
            "import click\n@click.option('-n', '--batch-size', default=8)\n"
            "@click.argument('data')\ndef main(batch_size, data): ...",
            "--batch-size {local_batch_size} DATA",
        ),
        (
            "from transformers import HfArgumentParser, TrainingArguments as T\n"
            "import transformers\n"
            "HfArgumentParser((Own, transformers.TrainingArguments))",
            "--per_device_train_batch_size {local_batch_size} "
            "--gradient_accumulation_steps {gradient_accumulation_steps} "
            "--learning_rate {learning_rate} --seed {seed} --output_dir {trial_dir}",
        ),
        (
            "import keras\np.add_argument('--batch-size', default=64)",
            "--batch-size {global_batch_size}",
        ),
        (
            "p.add_argument('--batch-size', default=64)\n"
            "args.batch_size = int(args.batch_size / ngpus_per_node)",
            "--batch-size {batch_size_per_node}",
        ),
        (
            "p.add_argument('--batch-size')\nargs.batch_size //= dist.get_world_size()",
            "--batch-size {global_batch_size}",
        ),
        ("p.add_argument('--dtype', default='bfloat16')", ""),
        (
            "p.add_argument('--save', default='models/net.pt')\n"
            "p.add_argument('--log-file')\np.add_argument('--output-dir', default='o')",
            "--output-dir {trial_dir} --save {trial_dir}/net.pt "
            "--log-file {trial_dir}/log_file",
        ),
        (
            "p.add_argument('--out', default='result.json')\n"
            "p.add_argument('--save-path', dest='save', default='{epoch} of it.pt')",
            "--out {trial_dir}/result.json --save-path {trial_dir}/save",
        ),
        (
            "p.add_argument('--mini-batch-size', default=8)\n"
            "p.add_argument('--test-mini-batch-size', default=9)",
            "--mini-batch-size {local_batch_size}",
        ),
        (
            "@dataclass\nclass Optim:\n  lr: float = 1e-3\n"
            "@dataclass\nclass Args:\n  batch_size: int = 32\n  optim: Optim\n"
            "args = tyro.cli(Args)",
            "--batch-size {local_batch_size} --optim.lr {learning_rate}",
        ),
        (
            "from trl import SFTConfig, TrlParser\n"
            "types = (ScriptArguments, SFTConfig)\nTrlParser(types)",
            "--per_device_train_batch_size {local_batch_size} "
            "--gradient_accumulation_steps {gradient_accumulation_steps} "
            "--learning_rate {learning_rate} --seed {seed} --output_dir {trial_dir}",
        ),
        (
            "class Mine(TrainingArguments):\n  seed: int = 1\nHfArgumentParser(Mine)",
            "--per_device_train_batch_size {local_batch_size} "
            "--gradient_accumulation_steps {gradient_accumulation_steps} "
            "--learning_rate {learning_rate} --seed {seed} --output_dir {trial_dir}",
        ),
        (
            "config_flags.DEFINE_config_file('config')\nFLAGS.config.batch_size\n"
            "FLAGS.config.optim.learning_rate",
            "--config.batch_size={local_batch_size} "
            "--config.optim.learning_rate={learning_rate} --config=CONFIG",
        ),
        ("p.add_argument('--save', type=int, default=5)", ""),
        (
            "p.add_argument('data')\np.add_argument('output_dir')\n"
            "p.add_argument('--lr')",
            "--lr {learning_rate} DATA {trial_dir}",
        ),
        ("p.add_argument('--bad\\nname: x', default=1)", ""),
        ("p.add_argument('--a', dest='b\\nc: d', required=True)", "--a A"),
        ("p.add_argument(*names, **more)", ""),
        ("print('nothing')", ""),
    ],
)
def test_options_are_found_where_they_are_plain(
    tmp_path: Path, text: str, words: str
) -> None:
    found, experiment = proposed(written(tmp_path, text))
    assert experiment.command == f"python train.py {words}".rstrip()
    is_any_understood = "{" in words or "dtype" in text
    assert ("put placeholders such as" in found.value) != is_any_understood


def test_files_beside_the_script_come_along(tmp_path: Path) -> None:
    written(tmp_path, "import layers", "model.py")
    written(tmp_path, "import model", "layers.py")
    written(tmp_path / "tools", "", "loss.py")
    written(tmp_path / "numpy", "no code", "readme.txt")
    script = written(tmp_path, "import numpy, model, os\nfrom tools.loss import x")
    _, experiment = proposed(script)
    assert experiment.snapshot_paths == ("layers.py", "model.py", "tools/", "train.py")


def test_a_file_of_another_place_does_not_come_along(tmp_path: Path) -> None:
    elsewhere = written(tmp_path / "tools", "x = 1", "own.py")
    script = written(tmp_path / "code", f"print('{elsewhere}')")
    _, experiment = proposed(script)
    assert experiment.snapshot_paths == ("train.py",)
    assert experiment.command == "python train.py"


def test_a_script_elsewhere_gives_the_root(tmp_path: Path) -> None:
    script = written(tmp_path / "their code", "x = 1")
    _, experiment = proposed(script, directory=tmp_path / "mine")
    assert experiment.code_root == tmp_path / "their code"
    assert experiment.name == "their-code-train"


@pytest.mark.parametrize(
    ("folder", "file", "name"),
    [
        ("vit", "train.py", "vit-train"),
        ("2024", "train.py", "2024-train"),
        ("a", "null.py", "null"),
        ("a", "_my model!.py", "my-model"),
        ("a", "\N{GREEK SMALL LETTER MU}.py", "my-model"),
    ],
)
def test_the_experiment_is_named_after_the_script(
    tmp_path: Path, folder: str, file: str, name: str
) -> None:
    _, experiment = proposed(written(tmp_path / folder, "x = 1", file))
    assert experiment.name == name
    assert file in experiment.snapshot_paths


def test_nothing_of_the_script_is_run(tmp_path: Path) -> None:
    script = written(tmp_path, f"open({str(tmp_path / 'seen')!r}, 'w')\n1 / 0")
    proposed(script)
    assert not (tmp_path / "seen").exists()


@pytest.mark.parametrize("name", PRESETS)
def test_the_preset_of_a_sample_is_found(tmp_path: Path, name: str) -> None:
    script = written(tmp_path, "import torch")
    found, experiment = proposed(script, OUTPUTS / f"{name}.txt")
    assert experiment.metrics is not None
    assert experiment.metrics.preset == name
    assert f"steps of {name}.txt" in found.value


def test_a_sample_that_no_preset_reads_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "own.log"
    log.write_bytes(b"hello\n\x1b[31mStep\x1b[0m 3 of 9: fine\n" + b"\xff\n")
    found, experiment = proposed(written(tmp_path, "import transformers"), log)
    assert "# Nothing reads a step of own.log" in found.value
    assert "\n# Step 3 of 9: fine\n" in found.value
    assert experiment.metrics is None  # the optimizer's steps are seen


def test_a_script_without_torch_needs_an_expression_for_its_steps(
    tmp_path: Path,
) -> None:
    log = tmp_path / "own.log"
    log.write_text("hello\nStep 3 of 9: fine\n")
    found, experiment = proposed(written(tmp_path, "import numpy"), log)
    assert "\n# Step 3 of 9: fine\n" in found.value
    assert "metrics.regex, the expression for a line that reports a step" in (
        found.doubts
    )
    assert experiment.metrics is not None
    assert experiment.metrics.preset is None


def test_lines_that_no_preset_reads_may_count_batches(tmp_path: Path) -> None:
    log = tmp_path / "own.log"
    lines = [f"epoch {e}: [{b}/40] loss 2.5" for e in (1, 2) for b in (10, 20, 30)]
    log.write_text("\n".join(lines))
    found, experiment = proposed(written(tmp_path, "import torch"), log)
    assert "# own.log counts batches of each epoch anew." in found.value
    assert experiment.metrics is not None
    (expression,) = experiment.metrics.regex or ()
    match = re.search(expression, lines[-1])
    assert match is not None
    assert match.groupdict() == {
        "epoch": "2",
        "batch_of_epoch": "30",
        "batches_of_epoch": "40",
        "loss": "2.5",
    }
    assert not [each for each in found.doubts if "metrics" in each]


@pytest.mark.parametrize(
    ("package", "name"),
    [("transformers", "huggingface"), ("lightning.pytorch", "lightning")],
)
def test_without_a_sample_imports_suggest_a_preset(
    tmp_path: Path, package: str, name: str
) -> None:
    found, experiment = proposed(written(tmp_path, f"import {package}"))
    assert experiment.metrics is not None
    assert experiment.metrics.preset == name
    assert "guessed: it imports" in found.value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot be read: No such file or directory\. Give the"),
        (b"", r"is empty\. Give the Python script"),
        (b"\n \n", "is empty"),
        (b"def f(:\n", r"is no Python script: .* \(line 1\)\. Give the script"),
        (b"a\0b", "is no Python script: .*null bytes"),
        (b"\xff\xfe", "is no Python script"),
        (
            b"x = 1\n" * (MAX_SCRIPT_BYTES // 6 + 1),
            r"more than 1,048,576 bytes\. Give",
        ),
    ],
)
def test_what_is_no_script_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "train.py"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        read_script(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", r"is empty\. Give a few hundred lines"),
        (b"step 1\n\0", r"is no text: it holds NUL bytes\. Give what"),
        (
            b"step 1\n" * (MAX_LOG_BYTES // 7 + 1),
            r"more than 16,777,216 bytes\. G",
        ),
    ],
)
def test_what_is_no_log_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "sample.log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        match(path)


def test_options_and_ranks_are_looked_for_in_modules_beside_the_script(
    tmp_path: Path,
) -> None:
    written(tmp_path, "p.add_argument('--batch-size', default=8)", "params.py")
    written(tmp_path, "def start():\n    init_process_group()", "ranks.py")
    script = written(tmp_path, "from params import args\nimport ranks")
    found, experiment = proposed(script)
    assert experiment.command == "python train.py --batch-size {local_batch_size}"
    assert experiment.local_batch_size == (8,)
    assert "launcher: torchrun" in found.value


def test_ranks_of_mpi_get_its_launcher(tmp_path: Path) -> None:
    _, experiment = proposed(written(tmp_path, "from mpi4py import MPI"))
    assert experiment.launcher.name == "mpirun"


def test_a_script_that_joins_no_ranks_gets_one_device(tmp_path: Path) -> None:
    found, experiment = proposed(written(tmp_path, "import torch"))
    assert (experiment.gpus, experiment.launcher.name) == ((1,), "none")
    assert (
        "# One process on one device: nothing in the script, or in mod" in found.value
    )


def test_a_part_of_a_package_is_started_as_a_module(tmp_path: Path) -> None:
    package = tmp_path / "src" / "clip_train"
    written(package, "", "__init__.py")
    written(package, "p.add_argument('--lr', default=0.1)", "params.py")
    script = written(package, "from clip_train.params import parse\nimport distributed")
    _, experiment = proposed(script, directory=tmp_path)
    assert experiment.command == "python -m clip_train.train --lr {learning_rate}"
    assert experiment.code_root == tmp_path / "src"
    assert experiment.snapshot_paths == ("clip_train/",)


def test_a_table_is_guessed_where_nothing_else_sees_the_steps(tmp_path: Path) -> None:
    text = "csv.writer(open(f'{out}/log.csv'))\nx = 'log.csv'"
    found, experiment = proposed(written(tmp_path, text))
    assert experiment.metrics is not None
    assert experiment.metrics.csv == "{trial_dir}/log.csv"
    assert "# Guessed: it seems to write them there" in found.value
    found, _ = proposed(written(tmp_path, f"import torch\n{text}"))
    assert "metrics: {csv" not in found.value
    assert "seen where PyTorch's optimizer steps" in found.value


def test_relative_imports_are_followed(tmp_path: Path) -> None:
    package = tmp_path / "nets"
    written(package, "", "__init__.py")
    written(package / "tools", "from .ranks import start", "__init__.py")
    written(package / "tools", "def start(): init_process_group()", "ranks.py")
    script = written(tmp_path, "from nets import tools")
    found, experiment = proposed(script)
    assert experiment.snapshot_paths == ("nets/", "train.py")
    assert "launcher: torchrun" in found.value


HYDRA = """
import hydra
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg): ...
"""


def test_keys_of_hydra_are_overridden(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    written(conf, "defaults: [data: small, _self_]\nlr: 0.5\nepochs: 3", "config.yaml")
    written(conf / "data", "batch_size: 24\nroot: ./data", "small.yaml")
    written(tmp_path / "data", "a,b", "rows.csv")
    found, experiment = proposed(written(tmp_path, HYDRA))
    assert experiment.command == (
        "python train.py data.batch_size={local_batch_size} lr={learning_rate} "
        "hydra.run.dir={trial_dir}"
    )
    assert experiment.local_batch_size == (24,)
    assert experiment.snapshot_paths == ("conf/", "data/", "train.py")
    assert "# job: {epochs: 3, samples_per_epoch: NUMBER}" in found.value


def test_configurations_above_the_script_raise_the_root(tmp_path: Path) -> None:
    written(tmp_path / "configs", "batch_size: 24", "config.yaml")
    text = HYDRA.replace('"conf"', '"../configs"')
    _, experiment = proposed(written(tmp_path / "src", text))
    assert experiment.code_root == tmp_path
    assert experiment.command is not None
    assert experiment.command.startswith("python src/train.py batch_size={local_bat")
    assert experiment.snapshot_paths == ("configs/", "src/train.py")


def test_a_config_dict_is_read_where_its_flag_has_a_default(tmp_path: Path) -> None:
    config = "def get_config():\n  config.batch_size = 48\n  config.optim.lr = 0.3"
    written(tmp_path / "configs", config, "small.py")
    flag = "config_flags.DEFINE_config_file('config', 'configs/small.py')"
    _, experiment = proposed(written(tmp_path, flag))
    assert experiment.command == (
        "python train.py --config.batch_size={local_batch_size} "
        "--config.optim.lr={learning_rate}"
    )
    assert experiment.local_batch_size == (48,)
    assert experiment.snapshot_paths == ("configs/small.py", "train.py")


def test_data_beside_the_script_come_along_or_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "data", "text", "wiki.txt")
    options = "p.add_argument('--data', default='./data')"
    script = written(tmp_path, options)
    _, experiment = proposed(script)
    assert experiment.snapshot_paths == ("data/", "train.py")
    assert experiment.command == "python train.py"
    monkeypatch.setattr(scripts, "MOST_COPIED_BYTES", 3)
    _, experiment = proposed(script)
    assert experiment.snapshot_paths == ("train.py",)
    assert experiment.command == f"python train.py --data {tmp_path / 'data'}"


def test_data_beside_a_script_further_down_are_named(tmp_path: Path) -> None:
    written(tmp_path / "lm" / "data", "text", "wiki.txt")
    script = written(tmp_path / "lm", "p.add_argument('--data', default='./data')")
    _, experiment = proposed(script, directory=tmp_path)
    assert experiment.command == f"python lm/train.py --data {tmp_path}/lm/data"


def test_the_interpreter_is_that_of_the_active_environment(tmp_path: Path) -> None:
    written(tmp_path / "mine" / "bin", "", "python")
    own = {"VIRTUAL_ENV": sys.prefix, "CONDA_PREFIX": str(tmp_path / "mine")}
    assert scripts.interpreter({}) == "python"
    assert scripts.interpreter(own) == "python"
    assert scripts.interpreter({"CONDA_PREFIX": str(tmp_path)}) == "python"
    mine = {"VIRTUAL_ENV": str(tmp_path / "mine"), "CONDA_PREFIX": sys.prefix}
    assert scripts.interpreter(mine) == str(tmp_path / "mine" / "bin" / "python")


def test_another_interpreter_stands_in_the_command(tmp_path: Path) -> None:
    script = written(tmp_path, "x = 1")
    proposal = Proposal(
        script=read_script(script),
        log=None,
        log_name="",
        directory=tmp_path,
        python="/e/python",
    )
    found = read(proposal)
    assert "\n  /e/python train.py\n" in found.value
    assert "# The Python of the active environment" in found.value
