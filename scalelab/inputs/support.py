"""What a prediction rests on."""

from enum import StrEnum

import numpy as np


class Support(StrEnum):
    """The basis of a prediction: what was measured of its configuration.

    A prediction that is *not measured here* needs a cost that no row of the curve, and
    no related curve of the same machine, contains, such as that of a second node.
    """

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    NOT_MEASURED = "not measured here"


def weakest(*parts: np.ndarray) -> np.ndarray:
    """Return the weakest support of the parts of a sum or product, as text.

    Parameters
    ----------
    parts : ndarray of :class:`Support` values, each of shape (n,)
    """
    order = [str(support) for support in Support]
    rows = zip(*parts, strict=True)
    return np.array([max(map(str, row), key=order.index) for row in rows], dtype=object)
