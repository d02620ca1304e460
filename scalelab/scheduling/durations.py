"""How long trials take, learnt from those that ended: for reservations only."""

from __future__ import annotations

from dataclasses import replace

from scalelab.experiment.source import Observation, TrialSource
from scalelab.experiment.trial import Allocation, Trial

UNKNOWN_S = 30.0
"""Until the first trial has ended, all are taken to be equally long."""


class TimedSource:
    """A trial source that remembers how long its trials held their devices.

    Parameters
    ----------
    source
        Proposes the trials.
    """

    def __init__(self, source: TrialSource) -> None:
        self._source = source
        self._by_configuration: dict[str, float] = {}
        self._by_kind: dict[str, float] = {}
        self._configurations: dict[str, str] = {}

    def ask(self) -> Trial | None:
        """Return the source's next trial."""
        trial = self._source.ask()
        if trial is not None:
            self._configurations[trial.trial_id] = _configuration(trial)
        return trial

    def tell(self, observation: Observation) -> None:
        """Learn a trial's duration and tell the source its outcome."""
        held, devices = observation.get("allocated_gpu_s"), observation["world_size"]
        if held is not None:
            self._by_kind[observation["kind"]] = held / devices
            if known := self._configurations.get(observation["trial_id"]):
                self._by_configuration[known] = held / devices
        self._source.tell(observation)

    def estimate(self, trial: Trial, allocation: Allocation) -> float:
        """Return seconds: of an equal trial, else of the kind's last, else a guess."""
        of_kind = self._by_kind.get(trial.kind.value, UNKNOWN_S)
        return self._by_configuration.get(_configuration(trial), of_kind)


def _configuration(trial: Trial) -> str:
    return replace(trial, repeat=0).trial_id
