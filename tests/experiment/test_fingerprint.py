import pytest

from scalelab.experiment.fingerprint import words_of_run


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ([], ("GPU", "GPU-h")),
        ([None, "cuda"], ("GPU", "GPU-h")),
        (["cpu", "cpu"], ("CPU slot", "core-h")),
        (["cpu", "cuda"], ("device", "device-h")),
    ],
)
def test_devices_of_several_types_are_called_devices(
    types: list[str | None], words: tuple[str, str]
) -> None:
    rows = [{"device_type": each} for each in types]
    assert words_of_run({"device_type": "cuda"}, rows) == words
