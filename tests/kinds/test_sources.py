from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from searched import SEARCH, completed, row

from scalelab.experiment.trial import Trial
from scalelab.kinds.sources import SOURCES, Source
from scalelab.records.columns import SCHEMA_VERSION
from scalelab.testing.sources import SourceContract


class TestPlanned(SourceContract):
    @pytest.fixture
    def row(self) -> Source:
        return SOURCES["planned"]


class TestOptuna(SourceContract):
    experiment: ClassVar[str] = SEARCH
    parameters: ClassVar[Mapping[str, Any]] = {
        "tune": {"dropout": [0.0, 0.1, 0.2], "optimizer": ["sgd", "adamw"]}
    }

    @pytest.fixture
    def row(self) -> Source:
        return SOURCES["optuna"]

    def observation(self, trial: Trial) -> Mapping[str, Any]:
        return {**super().observation(trial), **row(trial, completed(trial))}


class TestTunedRates(SourceContract):
    experiment: ClassVar[str] = (
        SEARCH + "learning_rate: {base: 0.1, at_batch: 32, rule: tuned}\n"
    )

    @pytest.fixture
    def row(self) -> Source:
        return SOURCES["tuned_rates"]

    def observation(self, trial: Trial) -> Mapping[str, Any]:
        return {**super().observation(trial), "samples_to_target": 5000}


class TestAdaptive(SourceContract):
    experiment: ClassVar[str] = SourceContract.experiment + "job: {samples: 9000000}\n"

    @pytest.fixture
    def row(self) -> Source:
        return SOURCES["adaptive"]

    def observation(self, trial: Trial) -> Mapping[str, Any]:
        named = {"schema_version": SCHEMA_VERSION, "repeat": trial.repeat}
        return {**super().observation(trial), **named}
