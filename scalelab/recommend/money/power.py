"""Power: what devices draw, as their counters measured it or as it is said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.kinds.resources import MODELLED
from scalelab.laws.interval import NUM_DRAWS, SEED, levels
from scalelab.laws.rows import cells, numbers
from scalelab.recommend.money.prices import UNNAMED
from scalelab.recommend.question.devices import DeviceKind
from scalelab.site.profile import Site


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Power:
    """What one device draws while it trains, in W, by the number of devices."""

    by_size: Mapping[float, np.ndarray]  # of each run
    source: str  # measured or modelled
    said_by: str

    def draws(self, world_size: np.ndarray) -> np.ndarray:
        """Return what one of so many devices draws, shape (NUM_DRAWS, n_rows).

        A further run draws what some run on the nearest measured number did.
        """
        known, luck = np.array([*self.by_size]), levels(SEED + 12)
        nearest = [known[np.abs(np.log(known / size)).argmin()] for size in world_size]
        drawn = [np.quantile(self.by_size[size], luck) for size in nearest]
        return np.reshape(drawn, (len(drawn), NUM_DRAWS)).T


def measured_power(frame: pd.DataFrame) -> Power | None:
    """Return what the devices of these rows drew; None where nothing counted it.

    The watts are those between the first and the last steps of a trial; of other
    programs' tables, joules over the time for which devices were held.
    """
    watts, joules, held_gpu_s, sizes = (
        numbers(frame, name)
        for name in ("device_power_w", "energy_j", "allocated_gpu_s", "world_size")
    )
    is_foreign = np.array(cells(frame, "kind"), dtype=object) == "imported"
    watts = np.where(is_foreign & np.isnan(watts), joules / held_gpu_s, watts)

    is_known = np.isfinite(watts) & (watts > 0) & (sizes > 0)
    if not is_known.any():
        return None

    is_modelled = MODELLED in cells(frame[is_known], "energy_source")
    return Power(
        by_size={n: watts[is_known & (sizes == n)] for n in {*sizes[is_known]}},
        source=MODELLED if is_modelled else "measured",
        said_by="by the rows",
    )


def power_of(
    device: DeviceKind,
    frame: pd.DataFrame,
    asked: Sequence[tuple[str, float]],
    site: Site | None,
) -> Power | None:
    """Return the power of a kind of device: asked, else measured, else the site's.

    Raises
    ------
    SpecError
        If several that are asked name the device equally closely.
    """
    named = [
        (closeness, watts)
        for name, watts in asked
        if (closeness := device.closeness(name)) is not None
    ]
    if named:
        closest, _ = max(named)
        watts, *others = sorted({power for near, power in named if near == closest})
        if others:
            raise SpecError(
                f"{device.label or UNNAMED}: several powers are said, {watts:g} W and "
                f"{others[0]:g} W. Keep one, or name the devices more closely.",
                code="several_powers",
            )
        return _said(watts, "as given")

    if found := measured_power(frame):
        return found
    if site is not None and site.power_w:
        return _said(site.power_w, f"by the profile of site {site.name}")

    return None


def _said(watts: float, said_by: str) -> Power:
    return Power(by_size={1.0: np.array([watts])}, source=MODELLED, said_by=said_by)
