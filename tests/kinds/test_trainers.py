import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.kinds.trainers import TRAINERS, Trainer, facts_of, trainer_of
from scalelab.testing.trainers import TrainerContract

TEXT = "name: a\nworkload: {}\ngpus: 1\nlocal_batch_size: 8\n"


class TestTorch(TrainerContract):
    @pytest.fixture
    def row(self) -> Trainer:
        return TRAINERS["torch"]


def test_a_workload_of_another_trainer_is_named_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Plain(Trainer):
        name = "plain"
        workloads = TRAINERS["torch"].workloads

    plain = Plain()
    monkeypatch.setitem(TRAINERS._loaded, "plain", plain)
    monkeypatch.setitem(TRAINERS._outside, "plain", [])
    assert trainer_of("plain/emulated") == (plain, "emulated")
    assert trainer_of("emulated") == (TRAINERS["torch"], "emulated")
    assert facts_of("plain/emulated") == facts_of("emulated")
    message = r"workload='digits' is not known to trainer plain\. Did you mean 'digi"
    with pytest.raises(SpecError, match=message):
        Experiment.from_text(TEXT.format("plain/digits"))


def test_what_was_measured_with_an_uninstalled_trainer_can_be_read() -> None:
    asked = Experiment.from_text(TEXT.format("gone/counting"))
    assert asked.facts is None
    with pytest.raises(SpecError, match=r"^trainer='gone' is not known\. Valid: torch"):
        trainer_of("gone/counting")


def test_a_stale_installation_is_told_to_install_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TRAINERS, "_loaded", {})
    monkeypatch.delitem(TRAINERS._outside, "torch")
    with refused("trainer_missing", "pip install -e ."):
        facts_of("digits_mlp")
    assert facts_of("command") is None


def test_a_command_asks_no_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRAINERS, "_loaded", {})
    monkeypatch.delitem(TRAINERS._outside, "torch")
    text = "name: a\ncommand: python train.py\ngpus: 1\nlocal_batch_size: 8\n"
    assert Experiment.from_text(text).facts is None
