import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.kinds.trainers import DataDemand
from scalelab.training.trainer import TRAINER


def test_preloaded_modules_fit_the_program() -> None:
    digits = TRAINER.preload("digits_mlp", ["ddp"])
    assert digits[0] == "scalelab.training.rank"
    assert {"sklearn.datasets", "torch._dynamo"} < set(digits)
    ddp = "scalelab.training.engines.ddp"
    own = TRAINER.preload("mine:Job", ["ddp"])
    first = ("scalelab.training.rank",)
    assert own == (*first, "torch._dynamo", ddp)
    assert "torch._dynamo" not in TRAINER.preload("emulated", ["ddp"])


def test_a_strategy_without_an_engine_is_refused() -> None:
    TRAINER.check_strategy("fsdp")
    message = r"^parallelism=paired has no engine that trains a workload\. Offer one as"
    with pytest.raises(SpecError, match=message):
        TRAINER.check_strategy("paired")


def test_values_are_refused_by_the_workload_that_takes_them() -> None:
    demand = DataDemand(global_batch_size=1, data_parallel_size=1, has_files=False)
    TRAINER.check_trials("digits_mlp", {"hidden_sizes": "?"}, demand)
    with refused("width_does_not_divide", "width=7", "heads=4"):
        TRAINER.check_trials("transformer_lm", {"width": 7}, demand)
