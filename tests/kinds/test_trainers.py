import pytest

from scalelab.kinds.trainers import TRAINERS, Trainer
from scalelab.testing.trainers import TrainerContract


class TestTorch(TrainerContract):
    @pytest.fixture
    def row(self) -> Trainer:
        return TRAINERS["torch"]
