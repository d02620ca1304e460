"""Find a workload by name and build it with an experiment's parameters."""

import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from scalelab.errors import SpecError
from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import Trial
from scalelab.kinds.strategies import STRATEGIES
from scalelab.kinds.trainers import WorkloadNames, taking_one_value
from scalelab.training.rank_options import RankOptions
from scalelab.training.workloads.base import Workload
from scalelab.training.workloads.table import BUILT_IN_WORKLOADS, CLASSIFIER_METRICS


def find_workload(name: str, code_directory: str | None = None) -> type[Workload]:
    """Return a workload's class."""
    built_in = BUILT_IN_WORKLOADS.get(name)
    path = built_in.path if built_in else name

    module_name, separator, class_name = path.partition(":")
    if not separator:
        raise SpecError(
            f"workload={name!r} does not exist. Choose from: "
            f"{', '.join(sorted(BUILT_IN_WORKLOADS))}, or name your own class as "
            "'module:Class'.",
            code="unknown_workload",
        )

    if code_directory is not None and code_directory not in sys.path:
        sys.path.insert(0, code_directory)

    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise SpecError(
            f"workload={name!r}: there is no module {module_name!r} in "
            f"{code_directory or 'the Python path'}. Put {module_name}.py next to the "
            "experiment, or list it under 'code'.",
            code="no_module",
        ) from error

    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Workload)
        and value is not Workload
    }
    if class_name not in found:
        raise SpecError(
            f"workload={name!r}: {class_name!r} in {module_name} is not a Workload. "
            "Derive a class from scalelab.Workload; found: "
            f"{', '.join(sorted(found)) or 'none'}.",
            code="not_a_workload",
        )

    return found[class_name]


def workload_of(program: WorkloadProgram, trial: Trial) -> tuple[Workload, RankOptions]:
    """Return the workload of a trial, and the options of its ranks."""
    of_strategy = STRATEGIES[trial.parallelism].options
    axes = {
        name: value for name, value in trial.options.items() if name not in of_strategy
    }
    known = names_of(find_workload(program.name, program.code_directory)).parameters
    options, parameters = RankOptions.split({**program.parameters, **axes}, known)
    return build_workload(program.name, parameters, program.code_directory), options


def build_workload(
    name: str, parameters: Mapping[str, Any], code_directory: str | None = None
) -> Workload:
    """Return a workload with its parameters set."""
    workload = find_workload(name, code_directory)
    names_of(workload).check_parameters(name, parameters, RankOptions.__slots__)
    return workload(**parameters)


def names_of(workload: type[Workload]) -> WorkloadNames:
    """Return names of a workload's parameters, and of its metrics if known."""
    # Asked about `object`, inspect copies sys.modules, which takes a fork 10 ms.
    names = {name for cls in workload.__mro__[:-1] for name in vars(cls)}
    has_own = bool(names & {"__init__", "__new__"})
    declared = inspect.signature(workload).parameters.values() if has_own else ()
    named = [p for p in declared if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]

    metrics: tuple[str, ...] | None = None
    if workload.engine is None and workload.held_out_data is Workload.held_out_data:
        metrics = ()
    elif workload.engine is None and workload.evaluate is Workload.evaluate:
        metrics = CLASSIFIER_METRICS

    return WorkloadNames(
        parameters=tuple(p.name for p in named),
        required=tuple(p.name for p in named if p.default is p.empty),
        single=taking_one_value(
            {p.name: inspect.formatannotation(p.annotation) for p in named}
        ),
        is_open=any(p.kind is p.VAR_KEYWORD for p in declared),
        metrics=metrics,
    )
