"""The option ``per`` of launchers that start processes per device or per node."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.problems import one_of, shown

_GRAINS = ("device", "node")


def per_of(
    launcher: str, options: Mapping[str, Scalar], further: Collection[str] = ()
) -> str:
    """Return ``device``, which is the default, or ``node``.

    Parameters
    ----------
    launcher
        Name of the launcher.
    options
        What stands beside its name.
    further
        Names of the other options that it has.

    Raises
    ------
    SpecError
        If an option is unknown or has another value.
    """
    known = ("per", *further)
    for name in options:
        if name not in known:
            raise SpecError(
                f"launcher={launcher}: {shown(name)} is no option of it. "
                f"{one_of(known, name)}"
            )
    per = options.get("per", "device")
    if per not in _GRAINS:
        raise SpecError(
            f"launcher={launcher}: per={shown(per)} is not known. "
            f"{one_of(_GRAINS, str(per))} device starts a process for each device, "
            "node one for all devices of a node."
        )
    return str(per)
