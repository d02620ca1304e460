"""Rows of another run that a run starts from."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from scalelab.errors import SpecError
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import Option
from scalelab.plan.source import Observation

IMPORTED = "imported"
"""The kind of rows that were measured elsewhere."""
_DEVICE = ("device_name", "device_type", "node_group")


def taken_over(
    run: str, rows: Iterable[Observation], **known: Any
) -> list[Observation]:
    """Return the rows of a run that measured step times, as rows of another one.

    Parameters
    ----------
    run
        The name of the run to start from.
    rows
        Its rows.
    **known
        Columns that are those of the new run, such as ``workload``.

    Raises
    ------
    SpecError
        The run measured no step time, or several workloads.
    """
    timed = [
        row
        for row in rows
        if row.get("world_size")
        and Outcome(row["outcome"]).is_measurement
        and (row.get("step_time_s") or row.get("throughput_samples_per_s"))
    ]
    workloads = sorted({str(row.get("workload")) for row in timed})
    if len(workloads) != 1:
        found = ", ".join(workloads) or "no step time"
        raise SpecError(
            f"{Option('adapt')}: {run} measured {found}. Name a run that measured the "
            "step times of one workload.",
            code="nothing_to_take_over",
        )

    changed = {**known, "kind": IMPORTED, "allocated_gpu_s": None}
    return [{**row, **changed, "trial_id": _renamed(run, row)} for row in timed]


def _renamed(run: str, row: Observation) -> str:
    """Return the name of a trial of another run, which is none of the new run's."""
    text = f"{run} {row['trial_id']}"
    return sha256(text.encode()).hexdigest()[:12]


def apart(
    rows: Iterable[Observation],
) -> tuple[list[Observation], list[Observation]]:
    """Return the rows that were measured here, and those from elsewhere."""
    every = [*rows]
    here = [row for row in every if row["kind"] != IMPORTED]
    return here, [row for row in every if row["kind"] == IMPORTED]


def on_known_devices(
    rows: Sequence[Observation], measured_here: Iterable[Observation]
) -> list[Observation]:
    """Return rows from elsewhere, on the devices of the rows that were measured here.

    That holds where they do not say theirs, and the others are all on one kind.
    """
    kinds = {tuple(row.get(name) for name in _DEVICE) for row in measured_here}
    if len(kinds) != 1:
        return [*rows]
    known = dict(zip(_DEVICE, kinds.pop(), strict=True))
    return [
        {**row, **{n: value for n, value in known.items() if row.get(n) is None}}
        for row in rows
    ]
