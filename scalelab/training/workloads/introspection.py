"""Workload introspection: parameters and metrics of a class, before nodes start.

The parameters of a built-in workload are read from its source: importing it would take
seconds. A class of the user's own is asked in a process of its own: its module imports
torch, and may do anything else. What that process cannot tell, the trials will.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.errors import SpecError
from scalelab.experiment.fingerprint import ACCEPT
from scalelab.experiment.program import (
    BUILT_IN_WORKLOADS,
    BuiltInWorkload,
    DataDemand,
)
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.experiment.workload_names import RANK_PARAMETERS, WorkloadNames
from scalelab.inputs.document import Scalar
from scalelab.kinds.registry import imported
from scalelab.kinds.strategies import STRATEGIES
from scalelab.training.workloads.registry import find_workload, names_of

if TYPE_CHECKING:
    from scalelab.experiment.spec import Experiment
    from scalelab.site.profile import Site

PATIENCE_S = 60.0
_MODULE = "scalelab.training.workloads.introspection"


def check_workload(asked: Experiment, site: Site) -> None:
    """Refuse a parameter or a target that the workload does not know."""
    if asked.workload is None:
        return
    name = asked.workload.name
    built_in = BUILT_IN_WORKLOADS.get(name)
    names = names_of_built_in(built_in) if built_in else _names_of_own(asked, site)
    if names is None:
        return
    axes = {axis: values[0] for axis, values in asked.options.items()}
    for strategy in asked.parallelism:
        for axis in STRATEGIES[strategy].options:
            axes.pop(axis, None)
    given = {**asked.workload.parameters, **axes}
    names.check_parameters(
        name, {key: given[key] for key in given if key not in RANK_PARAMETERS}
    )
    evaluates = set(asked.measure.kind) != {TrialKind.THROUGHPUT}
    if evaluates and asked.job and asked.job.target:
        names.check_metric(name, asked.job.target.metric)
    for condition in asked.accept:
        names.check_metric(name, condition.metric, ACCEPT)


def check_trials(asked: Experiment, site: Site, trials: Iterable[Trial]) -> None:
    """Refuse values of parameters that no trial of a built-in workload can run with."""
    built_in = BUILT_IN_WORKLOADS.get(asked.workload_name)
    if asked.workload is None or built_in is None or built_in.check is None:
        return
    check = imported(built_in.check)
    sizes: dict[tuple[tuple[str, Scalar], ...], tuple[int, int]] = {}
    for trial in trials:
        axes = tuple(sorted(trial.options.items()))
        is_epochal = trial.kind is not TrialKind.THROUGHPUT
        batch, ranks = sizes.get(axes, (1, 1))
        sizes[axes] = (
            max(batch, trial.global_batch_size if is_epochal else 1),
            max(ranks, trial.data_parallel_size),
        )
    for axes, (batch, ranks) in sizes.items():
        demand = DataDemand(
            global_batch_size=batch,
            data_parallel_size=ranks,
            has_files=site.is_this_machine,
        )
        check({**asked.workload.parameters, **dict(axes)}, demand)


def names_of_built_in(workload: BuiltInWorkload) -> WorkloadNames:
    """Return names of the parameters and metrics of a built-in workload.

    Every one of its parameters has a default.
    """
    module, _, class_name = workload.path.partition(":")
    found = find_spec(module)
    assert found is not None
    assert found.origin is not None
    (constructor,) = (
        method
        for node in ast.parse(Path(found.origin).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == class_name
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    )
    _, *parameters = (argument.arg for argument in constructor.args.args)
    return WorkloadNames(parameters=tuple(parameters), metrics=workload.metrics)


def _names_of_own(asked: Experiment, site: Site) -> WorkloadNames | None:
    is_run_by_this = not any(
        group.python or group.prologue for group in site.groups.values()
    )
    if not is_run_by_this or find_spec("torch") is None:
        return None
    answer = _ask(asked.workload_name, str(asked.code_root))
    if "refused" in answer:
        raise SpecError(answer["refused"])
    if "names" not in answer:
        return None
    names: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in answer["names"].items()
    }
    return WorkloadNames(**names)


def _ask(name: str, code_directory: str) -> dict[str, Any]:
    # -B: planning writes nothing, and no __pycache__ beside the user's code.
    words = [sys.executable, "-B", "-m", _MODULE, name, code_directory]
    text = b""
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as asked:
        try:
            text, _ = asked.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):  # and what the module has started
                os.killpg(asked.pid, signal.SIGKILL)
    return dict(json.loads(text)) if text else {}


def _answer(name: str, code_directory: str) -> dict[str, Any]:
    try:
        return {"names": asdict(names_of(find_workload(name, code_directory)))}
    except SpecError as error:
        return {"refused": str(error)}


def main(arguments: Sequence[str]) -> None:
    """Print names of a workload's parameters and metrics as JSON, and nothing else."""
    reply = os.dup(1)  # not inherited by programs that the module starts
    os.dup2(2, 1)
    text = json.dumps(_answer(*arguments))
    os.write(reply, text.encode())
    os._exit(0)  # no thread that the module left running is waited for


if __name__ == "__main__":
    main(sys.argv[1:])
