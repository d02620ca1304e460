"""Launchers: the ways to start the processes of a command (key ``launcher``)."""

from __future__ import annotations

from scalelab.kinds.launchers.jax import JAX
from scalelab.kinds.launchers.mpi import MPI, MPIRUN
from scalelab.kinds.launchers.per_node import PER_NODE
from scalelab.kinds.launchers.row import (
    ForeignLibrary,
    LaunchedProcess,
    Launcher,
    RecommendedJob,
    per_device,
    per_node,
)
from scalelab.kinds.launchers.single import NONE
from scalelab.kinds.launchers.srun import SRUN
from scalelab.kinds.launchers.tensorflow import TF_CONFIG
from scalelab.kinds.launchers.torchrun import TORCHRUN
from scalelab.kinds.registry import Registry

__all__ = [
    "LAUNCHERS",
    "TORCHRUN",
    "ForeignLibrary",
    "LaunchedProcess",
    "Launcher",
    "RecommendedJob",
    "per_device",
    "per_node",
]

LAUNCHERS = Registry(
    "scalelab.launchers",
    Launcher,
    key="launcher",
    built_in=(TORCHRUN, PER_NODE, NONE, SRUN, MPI, MPIRUN, TF_CONFIG, JAX),
)
