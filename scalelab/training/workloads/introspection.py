"""Workload introspection: parameters and metrics of a class, before nodes start.

The parameters of a built-in workload are read from its source: importing it would take
seconds. A class of the user's own is asked in a process of its own: its module imports
torch, and may do anything else. What that process cannot tell, the trials will.
"""

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scalelab.errors import SpecError
from scalelab.kinds.trainers import WorkloadNames, taking_one_value
from scalelab.training.workloads.table import BuiltInWorkload

PATIENCE_S = 60.0
_MODULE = "scalelab.training.workloads.introspection"


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

    _, *parameters = constructor.args.args
    types = {
        parameter.arg: ast.unparse(parameter.annotation or parameter)
        for parameter in parameters
    }

    return WorkloadNames(
        parameters=tuple(types),
        single=taking_one_value(types),
        metrics=workload.facts.metrics,
    )


def names_of_own(name: str, code_directory: Path) -> WorkloadNames | None:
    """Return names of parameters and metrics of a user's class; None: not known."""
    if find_spec("torch") is None:
        return None
    answer = _ask(name, str(code_directory))
    if "refused" in answer:
        raise SpecError(answer["refused"], code="bad_workload")
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


def main(arguments: Sequence[str]) -> None:
    """Print names of a workload's parameters and metrics as JSON, and nothing else."""
    from scalelab.training.workloads.registry import find_workload, names_of

    reply = os.dup(1)  # not inherited by programs that the module starts
    os.dup2(2, 1)

    try:
        answer: dict[str, Any] = {"names": asdict(names_of(find_workload(*arguments)))}
    except SpecError as error:
        answer = {"refused": str(error)}

    os.write(reply, json.dumps(answer).encode())
    os._exit(0)  # no thread that the module left running is waited for


if __name__ == "__main__":
    main(sys.argv[1:])
