"""Presets: how the output of well-known training programs reports its steps.

A preset is one row. Where an experiment names it under ``metrics``, its expressions
stand for what a user could have written there; what reads the output of a command knows
of no preset.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalelab.errors import SpecError
from scalelab.inputs.fields import several
from scalelab.inputs.problems import one_of, shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """How one program or framework reports its steps on its output."""

    name: str
    reads: str
    regex: tuple[str, ...]
    evaluation: tuple[str, ...]
    # That a script imports whose output is probably this one: with a sample of output,
    # too, the preset whose packages are imported is preferred.
    packages: tuple[str, ...] = ()


_NUMBER = r"[-+\d.eE]+"
# What tqdm prints between the description of a bar and its counts.
_BAR = r"\d+%\|[^|]*\|"

_ROWS = (
    Preset(
        name="huggingface",
        reads="the progress bar of a Trainer, and the losses it logs",
        regex=(
            rf"^\s*{_BAR} *(?P<step>\d+)/(?P<steps_in_all>\d+) \[",
            # Version 5 logs numbers as texts.
            rf"'loss': '?(?P<loss>{_NUMBER})",
            rf"'eval_loss': '?(?P<eval_loss>{_NUMBER})",
            rf"'eval_accuracy': '?(?P<eval_accuracy>{_NUMBER})",
        ),
        # A bar inside another one ends by moving the cursor up again.
        evaluation=(r"\x1b\[A$", "'eval_loss'"),
        packages=("transformers", "trl"),
    ),
    Preset(
        name="accelerate",
        reads=(
            "the bars of scripts that use accelerate, such as those of diffusers; they "
            "count optimiser steps: `Steps:`, nameless, or `Epoch 0:` with step=..."
        ),
        regex=(
            rf"^\s*(?:Steps: +)?{_BAR} *(?P<step>\d+)/(?P<steps_in_all>\d+) \[",
            rf"^\s*Epoch \d+: +{_BAR}.*[ ,]step=(?P<step>\d+)",
            rf"\W(?:step_)?loss=(?P<loss>{_NUMBER})",
        ),
        evaluation=(r"\x1b\[A$", "Running validation"),
        packages=("accelerate", "diffusers"),
    ),
    Preset(
        name="lightning",
        reads="the bar of TQDMProgressBar, and train_loss, val_loss and val_acc in it",
        regex=(
            rf"^\s*Epoch \d+: +{_BAR} *"
            r"(?P<batch_of_epoch>\d+)/(?P<batches_of_epoch>\d+) \[",
            rf"\btrain_loss(?:_step)?=(?P<train_loss>{_NUMBER})",
            rf"\bval_loss(?:_epoch)?=(?P<val_loss>{_NUMBER})",
            rf"\bval_acc(?:_epoch)?=(?P<val_acc>{_NUMBER})",
        ),
        evaluation=(r"^\s*(?:Validation|Sanity Checking|Testing)\b",),
        packages=("lightning", "pytorch_lightning"),
    ),
    Preset(
        name="nanogpt",
        reads="`iter 10: loss ...`; evaluations are `step 250: train loss ...`",
        regex=(
            rf"^iter (?P<step>\d+): loss (?P<loss>{_NUMBER}),",
            rf"^step \d+: train loss \S+ val loss (?P<val_loss>{_NUMBER})",
        ),
        evaluation=(r"^step \d+: train loss",),
    ),
    Preset(
        name="imagenet",
        reads="`Epoch: [0][ 11/5005] ...` of PyTorch's ImageNet example",
        regex=(
            r"^Epoch: \[\d+\]\[ *(?P<batch_of_epoch>\d+)/ *(?P<batches_of_epoch>\d+)\]",
            rf"^Epoch: .*\bLoss (?P<loss>{_NUMBER})",
            rf"^ \* +Acc@1 +(?P<val_acc1>{_NUMBER})",
        ),
        evaluation=(r"^Test: \[", r"^ \* +Acc@1"),
    ),
    Preset(
        name="metric_logger",
        reads=(
            "`Epoch: [0]  [ 20/1251]  eta: ...` of the MetricLogger of torchvision's "
            "references, DETR, DINO, MAE, DeiT and ConvNeXt"
        ),
        regex=(
            r"\bEpoch: \[\d+\]\s+\[ *"
            r"(?P<batch_of_epoch>\d+)/(?P<batches_of_epoch>\d+)\]\s+eta:",
            rf"\bEpoch: .*\s(?:train_)?loss: (?P<loss>{_NUMBER})",
            rf"\* +Acc@1 +(?P<val_acc1>{_NUMBER})",
        ),
        evaluation=(r"\bTest:\s", r"\* +Acc@1"),
    ),
    Preset(
        name="timm",
        reads="`Train: 0 [  50/1251 (  4%)]  Loss: ...` of timm's train.py",
        regex=(
            r"\bTrain: \d+ \[ *"
            r"(?P<step_of_epoch>\d+)/(?P<steps_of_epoch>\d+) \( *\d+%\)\]",
            rf"\bTrain: .*\bLoss: +(?P<loss>{_NUMBER})",
            rf"^Test.* Acc@1: *\S+ \( *(?P<val_acc1>{_NUMBER})\)",
        ),
        evaluation=(r"^Test(?: \(\w+\))?: \[",),
        packages=("timm",),
    ),
    Preset(
        name="open_clip",
        reads=(
            "`Train Epoch: 0 [  16/6400 (0%)] ...` of open_clip, samples of all ranks"
        ),
        regex=(
            r"\bTrain Epoch: (?P<epoch>\d+) \[ *(?P<samples_of_epoch>\d+)/"
            r"(?P<samples_in_epoch>\d+) \((?P<percent_of_epoch>\d+)%\)\]",
            rf"\bTrain Epoch: .*\bLoss: (?P<loss>{_NUMBER})",
        ),
        evaluation=(r"\bEval Epoch: \d", r"^Test set: "),
        packages=("open_clip", "open_clip_train"),
    ),
    Preset(
        name="mnist",
        reads=(
            "`Train Epoch: 1 [640/60000 (1%)]`, a tab, `Loss: ...` of PyTorch's MNIST "
            "example and of Horovod's, samples of one rank"
        ),
        regex=(
            r"\bTrain Epoch: (?P<epoch>\d+) \[(?P<samples_of_rank>\d+)/"
            rf"(?P<samples_in_epoch>\d+) \(\d+%\)\]\tLoss: (?P<loss>{_NUMBER})",
        ),
        evaluation=(r"^Test set: ",),
    ),
    Preset(
        name="keras",
        reads="the bar of fit with verbose=1, which is its default",
        regex=(
            r"^[\x08\s]*(?:\x1b\[1m)?\s*(?P<batch_of_epoch>\d+)/"
            # The bar ends the line where it is no colour but [====>...].
            r"(?:(?P<batches_of_epoch>\d+)|Unknown)(?:\x1b\[0m)? [\x1b\[]",
            rf" - loss: (?P<loss>{_NUMBER})",
            rf" - val_loss: (?P<val_loss>{_NUMBER})",
            rf" - val_accuracy: (?P<val_accuracy>{_NUMBER})",
        ),
        evaluation=(" - val_",),
        packages=("keras",),
    ),
    Preset(
        name="torchtitan",
        reads="`step: 10  loss: ...`, in colour too; evaluations are `validate step:`",
        regex=(
            r"(?<!validate )step: +(?P<step>\d+) +\S*"
            rf"loss: +(?P<loss>{_NUMBER})",
            rf"validate step: +\d+ +\S*loss: +(?P<val_loss>{_NUMBER})",
        ),
        evaluation=("validate step:",),
        packages=("torchtitan",),
    ),
    Preset(
        name="megatron",
        reads="`iteration 10/ 1000`, the samples and the loss after it, of Megatron-LM",
        regex=(
            r"\biteration +(?P<step>\d+)/ *\d+ \|",
            r"\| consumed samples: +(?P<samples>\d+) \|",
            rf"\| lm loss: (?P<lm_loss>{_NUMBER})",
            rf"\| lm loss value: (?P<val_lm_loss>{_NUMBER})",
        ),
        evaluation=("validation loss at ", r"^\s*Evaluating (?:on|iter) "),
        packages=("megatron",),
    ),
)
# The presets by name, in the order in which users see them.
PRESETS: Mapping[str, Preset] = {row.name: row for row in _ROWS}


def expanded(values: Mapping[str, Any]) -> dict[str, Any]:
    r"""Return what a user could have written instead of a preset.

    Expressions of the user's own come after those of the preset: where both find a
    group in a line, the user's counts.

    >>> expanded({"preset": "nanogpt", "evaluation": "saving"})["evaluation"]
    ['^step \\d+: train loss', 'saving']
    """
    name = values["preset"]
    if name not in PRESETS:
        raise SpecError(
            f"preset={shown(name)} is not known. {one_of(PRESETS, str(name))} For any "
            r"other output write {regex: 'step (?P<step>\d+)'}.",
            code="unknown_preset",
        )

    for file in ("jsonl", "csv", "tensorboard"):
        if values.get(file) is not None:
            raise SpecError(
                f"preset={name} reads the output of the command, so it cannot stand "
                f"beside {file}. Remove one of the two.",
                code="preset_with_file",
            )

    row = PRESETS[name]
    return {
        **values,
        "regex": [*row.regex, *several(values.get("regex"))],
        "evaluation": [*row.evaluation, *several(values.get("evaluation"))],
    }
