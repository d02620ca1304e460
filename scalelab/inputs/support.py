"""What a prediction rests on."""

from enum import StrEnum


class Support(StrEnum):
    """The basis of a prediction: what was measured of its configuration.

    A prediction that is *not measured here* needs a cost that no row of the curve, and
    no related curve of the same machine, contains, such as that of a second node.
    """

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    NOT_MEASURED = "not measured here"
