"""Launchers: the ways to start the processes of a command (key ``launcher``)."""

from scalelab.kinds.launchers.jax_and_tensorflow import JAX, TF_CONFIG
from scalelab.kinds.launchers.launcher import (
    ForeignLibrary,
    LaunchedProcess,
    Launcher,
    RecommendedJob,
)
from scalelab.kinds.launchers.torch_and_mpi import (
    MPI,
    MPIRUN,
    NONE,
    PER_NODE,
    SRUN,
    TORCHRUN,
)
from scalelab.kinds.registry import Registry

__all__ = [
    "LAUNCHERS",
    "TORCHRUN",
    "ForeignLibrary",
    "LaunchedProcess",
    "Launcher",
    "RecommendedJob",
]

LAUNCHERS = Registry(
    "scalelab.launchers",
    Launcher,  # type: ignore[type-abstract]
    key="launcher",
    built_in=(TORCHRUN, PER_NODE, NONE, SRUN, MPI, MPIRUN, TF_CONFIG, JAX),
)
