"""The built-in workloads: where each is, and what a plan needs to know of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from scalelab.kinds.trainers import WorkloadFacts

CLASSIFIER_METRICS = ("val_acc", "val_loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltInWorkload:
    """A workload that has a name of its own.

    Parameters
    ----------
    check
        Path of a function without torch that refuses parameters before anything runs;
        see :func:`~scalelab.training.workloads.transformer_shape.check_transformer`.
    """

    path: str
    facts: WorkloadFacts
    preload: tuple[str, ...] = ()
    check: str | None = None


_HOME = "scalelab.training.workloads"
BUILT_IN_WORKLOADS: Mapping[str, BuiltInWorkload] = {
    "digits_mlp": BuiltInWorkload(
        path=f"{_HOME}.digits_mlp:DigitsMlp",
        facts=WorkloadFacts(metrics=CLASSIFIER_METRICS),
        preload=("sklearn.datasets",),
    ),
    "resnet_cifar": BuiltInWorkload(
        path=f"{_HOME}.resnet_cifar:ResnetCifar",
        facts=WorkloadFacts(metrics=CLASSIFIER_METRICS, has_batch_norm=True),
    ),
    "transformer_lm": BuiltInWorkload(
        path=f"{_HOME}.transformer_lm:TransformerLm",
        facts=WorkloadFacts(
            metrics=("val_loss",), tokens_axis="sequence_length", counts_flops=True
        ),
        check=f"{_HOME}.transformer_shape:check_transformer",
    ),
    "image_folder": BuiltInWorkload(
        path=f"{_HOME}.image_folder:ImageFolder",
        facts=WorkloadFacts(
            metrics=("val_acc", "val_balanced_acc", "val_loss"), has_batch_norm=True
        ),
        check="scalelab.training.feeding.pictures:check_pictures",
    ),
    "synthetic_images": BuiltInWorkload(
        path=f"{_HOME}.synthetic_images:SyntheticImages",
        facts=WorkloadFacts(has_batch_norm=True),
    ),
    "emulated": BuiltInWorkload(
        path=f"{_HOME}.emulated:Emulated",
        facts=WorkloadFacts(
            metrics=("val_acc",),
            convergence_needs="min_samples",
            trains_model=False,
            declares_times=True,
        ),
    ),
}
