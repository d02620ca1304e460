"""The source of a sweep: made by name, told of what ended, asked what is left."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from planned_trials import planned_trials
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.kinds.sources import SOURCES, Source
from scalelab.plan.source import Decision, TrialSource
from scalelab.plan.tracked import TrackedSource, source_of
from scalelab.site.profile import LocalSite, Site

TEXT = """\
name: small
workload: {name: emulated, sample_time_s: 2.0e-3, fixed_time_s: 10.0e-3}
measure: {long_trial: none, warmup_steps: 1, steps: 5, repeats: 2}
gpus: [1, 2]
local_batch_size: [4, 8]
"""
TWO = """\
name: two
program:
  - {name: torch, command: "python a.py {local_batch_size}"}
  - {name: jax, command: "python b.py {local_batch_size}"}
gpus: 1
local_batch_size: 4
"""
SITE = LocalSite(device_type="cpu", gpus_per_node=2)


class OneByOne(TrialSource):
    """Proposes the first trials of an experiment, and knows nothing beforehand."""

    def __init__(self, experiment: Experiment, site: Site, *, number: int = 1) -> None:
        self._trials = planned_trials(experiment, site)[:number]

    def ask(self) -> Trial | None:
        return self._trials.pop(0) if self._trials else None

    def tell(self, observation: Mapping[str, Any]) -> None:
        if observation["outcome"] == "failed":
            raise ValueError("cannot learn from it")


def refusing(experiment: Experiment, site: Site) -> TrialSource:
    raise SpecError("this source needs convergence trials.")


def broken(experiment: Experiment, site: Site) -> TrialSource:
    raise KeyError("no such thing")


def no_source(experiment: Experiment, site: Site) -> object:
    return "trials"


@pytest.fixture(autouse=True)
def other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        name: Source(name=name, factory=f"{__name__}:{factory}")
        for name, factory in {
            "one_by_one": "OneByOne",
            "refusing": "refusing",
            "broken": "broken",
            "no_source": "no_source",
            "absent": "not_here",
        }.items()
    }
    monkeypatch.setattr(SOURCES, "_built_in", {**SOURCES._built_in, **rows})


def asked(source: str = "planned") -> Experiment:
    return Experiment.from_text(f"{TEXT}source: {source}")


def row(trial: Trial, seconds: float = 4.0, outcome: str = "completed") -> Any:
    return {
        "trial_id": trial.trial_id,
        "outcome": outcome,
        "kind": trial.kind.value,
        "world_size": trial.world_size,
        "num_nodes": trial.allocation.num_nodes,
        "local_batch_size": trial.local_batch_size,
        "gradient_accumulation_steps": trial.gradient_accumulation_steps,
        "precision": trial.precision,
        "parallelism": trial.parallelism,
        "allocated_gpu_s": seconds * trial.world_size,
    }


def test_a_plan_is_asked_what_is_left() -> None:
    trials = planned_trials(asked(), SITE)
    rows = [row(trial) for trial in trials[:6]]
    source = source_of(asked(), SITE, rows, rows=rows)
    assert (source.total, source.remaining) == (8, 2)
    assert source.left == trials[6:]
    devices = sum(trial.world_size for trial in trials[6:])
    assert source.gpu_hours == pytest.approx(devices * 4.0 / 3600)
    assert not source.is_exhausted()
    assert source_of(asked(), SITE, map(row, trials)).is_exhausted()
    assert source.plan is not None
    assert list(source.plan.trials) == trials


def test_a_source_without_a_plan_answers_not_known() -> None:
    source = source_of(asked("{name: one_by_one, number: 2}"), SITE)
    assert (source.name, source.wants_progress) == ("one_by_one", False)
    assert source.plan is source.left is source.gpu_hours is None
    assert source.total is source.remaining is None
    assert (
        source.tell_progress(planned_trials(asked(), SITE)[0], 1, {}) is Decision.KEEP
    )
    assert [source.is_exhausted() for _ in range(3)] == [False, False, False]
    assert [source.ask() is None for _ in range(3)] == [False, False, True]
    assert source.is_exhausted()


def test_what_an_earlier_sweep_finished_is_told_once_and_what_did_not_fit_runs() -> (
    None
):
    first, refused, *others = planned_trials(asked(), SITE)
    source = source_of(asked(), SITE)
    source.resume(row(first))
    source.resume(row(refused, outcome="refused") | {"device_ids": None})
    assert source.left == others
    source.tell(row(first, outcome="failed"))  # the driver reads the records, too
    assert source.left == others
    assert source.remaining == 7
    assert source.ask() == refused


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nobody", "source='nobody' is not known\\. "),
        ("{name: one_by_one, size: 1}", r"cannot be made with \['size'\]: got an unex"),
        ("refusing", "^this source needs convergence trials.$"),
        ("broken", "source=broken cannot be made by .*: KeyError: 'no such thing'"),
        ("no_source", "returned str, which is no TrialSource. Derive it from"),
        ("absent", "source=absent cannot be made by .*: AttributeError: "),
    ],
)
def test_a_source_that_cannot_be_made_is_refused(source: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        source_of(asked(source), SITE)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("parallelism: dpp", "parallelism='dpp' is not known. Did you mean 'ddp'?"),
        (
            "launcher: nobody",
            "launcher='nobody' is not known. Valid: torchrun, per_node",
        ),
    ],
)
def test_kinds_that_are_not_installed_are_refused(line: str, message: str) -> None:
    experiment = Experiment.from_text(f"{TEXT}{line}")
    with pytest.raises(SpecError, match=re.escape(message)):
        source_of(experiment, SITE)


def test_what_goes_wrong_in_a_source_is_said_with_its_name() -> None:
    source = source_of(asked("one_by_one"), SITE)
    failed = row(planned_trials(asked(), SITE)[0], outcome="failed")
    with refused("source_failed", "source=one_by_one", "tell: ValueError"):
        source.tell(failed)


@pytest.mark.parametrize(
    ("program", "keys", "message"),
    [
        (
            "torhc",
            TWO,
            "proposed a trial with program='torhc'. The experiment has none of that "
            "name. Did you mean 'torch'? Valid: torch, jax. Correct the source",
        ),
        (None, TWO, "program=None. It must name one of the experiment's. Valid: torch"),
        (7, TWO, "The experiment has none of that name. Valid: torch, jax. Correct"),
        ("jax", "", "program='jax'. The experiment has only one program, so it"),
    ],
)
def test_a_trial_of_a_program_that_the_experiment_lacks_is_refused(
    program: Any, keys: str, message: str
) -> None:
    trial = replace(planned_trials(asked(), SITE)[0], program=program)
    inner = OneByOne(asked(), SITE)
    inner._trials = [trial]
    named = [*Experiment.from_text(keys or TEXT).by_program()]
    source = TrackedSource("vague", inner, programs=named)
    with pytest.raises(SpecError, match=re.escape(message)):
        source.ask()


def test_a_decision_that_is_none_is_refused() -> None:
    inner = OneByOne(asked(), SITE)
    inner.tell_progress = lambda *told: "perhaps"  # type: ignore[assignment,method-assign]
    source = TrackedSource("vague", inner)
    with refused("source_failed", "source=vague", "tell_progress"):
        source.tell_progress(planned_trials(asked(), SITE)[0], 1, {})


def test_the_source_changes_neither_trials_nor_fingerprint() -> None:
    other = asked("{name: one_by_one, number: 2}")
    assert planned_trials(other, SITE) == planned_trials(asked(), SITE)
    assert other.fingerprint() == asked().fingerprint()
