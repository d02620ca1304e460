"""The contracts of the kinds of which this distribution has a row."""

from typing import ClassVar

import pytest
from scalelab_toy.batch_system import Toy
from scalelab_toy.launcher import Toyrun
from scalelab_toy.resource import WATER
from scalelab_toy.source import CUTOFF
from scalelab_toy.strategy import Paired
from scalelab_toy.trainer import ToyTrainer

from scalelab.kinds.batch_systems import BatchSystem
from scalelab.kinds.launchers import Launcher
from scalelab.kinds.resources import Resource
from scalelab.kinds.sources import Source
from scalelab.kinds.strategy import Strategy
from scalelab.kinds.trainers import Trainer
from scalelab.testing.batch_systems import BatchSystemContract
from scalelab.testing.launchers import LauncherContract
from scalelab.testing.resources import ResourceContract
from scalelab.testing.sources import SourceContract
from scalelab.testing.strategies import StrategyContract
from scalelab.testing.trainers import TrainerContract


class TestPaired(StrategyContract):
    @pytest.fixture
    def row(self) -> Strategy:
        return Paired()


class TestToyrun(LauncherContract):
    @pytest.fixture
    def row(self) -> Launcher:
        return Toyrun()


class TestToy(BatchSystemContract):
    @pytest.fixture
    def row(self) -> BatchSystem:
        return Toy()


class TestWater(ResourceContract):
    @pytest.fixture
    def row(self) -> Resource:
        return WATER


class TestCutoff(SourceContract):
    parameters: ClassVar = {"metric": "val_acc", "floor": 0.5, "step": 20}

    @pytest.fixture
    def row(self) -> Source:
        return CUTOFF


class TestToyTrainer(TrainerContract):
    @pytest.fixture
    def row(self) -> Trainer:
        return ToyTrainer()
