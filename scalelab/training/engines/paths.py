"""Which engine trains a workload by a strategy; it is named, so that no torch loads.

A distribution adds one for a strategy of its own with an entry point::

    [project.entry-points."scalelab.engines"]
    my_strategy = "my_package.engine:MyEngine"
"""

from collections.abc import Mapping

from scalelab.errors import SpecError

_HOME = "scalelab.training.engines"
ENGINES: Mapping[str, str] = {
    "ddp": f"{_HOME}.ddp:DdpEngine",
    "fsdp": f"{_HOME}.fsdp:FsdpEngine",
    "local_sgd": f"{_HOME}.local_sgd:LocalSgdEngine",
    "parameter_server": f"{_HOME}.parameter_server:ParameterServerEngine",
    "pipeline": f"{_HOME}.pipeline:PipelineEngine",
}
"""Path, ``module:attribute``, of the engine of each built-in strategy."""


def engine_path(strategy: str) -> str:
    """Return the path, ``module:attribute``, of the engine of a strategy.

    See :class:`~scalelab.training.engines.base.Engine` for what it must do.
    """
    if strategy in ENGINES:
        return ENGINES[strategy]
    from importlib.metadata import entry_points

    found = entry_points(group="scalelab.engines", name=strategy)

    offered = sorted({entry.value for entry in found})
    if not offered:
        raise SpecError(
            f"parallelism={strategy} has no engine that trains a workload. Offer one "
            "as an entry point of scalelab.engines, or choose from: "
            f"{', '.join(ENGINES)}.",
            code="unknown_engine",
        )

    if len(offered) > 1:
        raise SpecError(
            f"parallelism={strategy} has {len(offered)} engines: {', '.join(offered)}. "
            "Uninstall all but one of these distributions.",
            code="engine_offered_twice",
        )

    return offered[0]
