"""Checks of what may be named: each row of each kind, built in or installed."""

import re
from collections.abc import Iterator
from typing import Any

from scalelab.doctor.site import Finding, broken, note, ok
from scalelab.errors import SpecError, install_command
from scalelab.kinds.registry import Registry, imported

_REGISTRIES = {
    "strategy": "scalelab.kinds.strategies:STRATEGIES",
    "launcher": "scalelab.kinds.launchers:LAUNCHERS",
    "batch system": "scalelab.kinds.batch_systems:BATCH_SYSTEMS",
    "resource": "scalelab.kinds.resources:RESOURCES",
    "source": "scalelab.kinds.sources:SOURCES",
    "trainer": "scalelab.kinds.trainers:TRAINERS",
}
_PATH = re.compile(r"[\w.]+:\w+")
_MEND = "Mend or uninstall the distribution."
SUBJECT_COLUMNS = 26


def examine_kinds() -> Iterator[Finding]:
    """Check every row there is: it is loaded, and so is all that it names by path."""
    for kind, path in _REGISTRIES.items():
        registry: Registry[Any] = imported(path)
        for name in registry.names:
            yield _examined(f"{kind} {name}", registry, name)


def _examined(subject: str, registry: Registry[Any], name: str) -> Finding:
    is_built_in = name in {row.name for row in registry.built_in}
    origin = "part of ScaleLab" if is_built_in else registry.outside[name]
    try:
        row = registry[name]
        _check(row, f"{registry.key}={name}")
    except SpecError as error:
        return broken(subject, str(error))
    except ImportError as error:
        if not is_built_in and not origin.startswith("scalelab."):
            return broken(subject, f"{origin}: {error}. {_MEND}")
        install = install_command(getattr(row, "extra", "") or "run")
        return note(subject, f"{origin}; {error}. To use it: {install}")

    return ok(subject, origin)


def _check(row: Any, source: str) -> None:
    declared = [
        name
        for cls in type(row).__mro__
        for name in vars(cls).get("__annotations__", {})
        if not name.startswith("_")
    ]
    if lacking := sorted(name for name in declared if not hasattr(row, name)):
        raise SpecError(
            f"{source} has no {', '.join(lacking)}. {_MEND}", code="kinds_missing"
        )

    for name in declared:
        value = getattr(row, name)
        if isinstance(value, str) and _PATH.fullmatch(value):
            try:
                imported(value)
            except ImportError:
                raise
            except Exception as error:
                raise SpecError(
                    f"{source}: {name}={value} cannot be imported: "
                    f"{type(error).__name__}: {error}. {_MEND}",
                    code="kind_not_importable",
                ) from error
