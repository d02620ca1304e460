import itertools
import random

import pytest

from scalelab.scheduling.placement import FreeDevices


def fits_by_trying(counts: dict[str, int], needed: tuple[int, ...]) -> bool:
    return any(
        all(counts[node] >= count for node, count in zip(nodes, needed, strict=True))
        for nodes in itertools.permutations(counts, len(needed))
    )


@pytest.mark.parametrize("seed", range(30))
def test_fits_and_choose_agree_with_trying_every_assignment(seed: int) -> None:
    draw = random.Random(seed)
    counts = {f"n{i}": draw.randint(0, 4) for i in range(draw.randint(1, 5))}
    devices = FreeDevices(counts)
    for _ in range(20):
        node = draw.choice(list(counts))
        counts[node] = draw.randint(0, 5)
        devices.set(node, counts[node])
        needed = tuple(
            sorted(
                (draw.randint(1, 5) for _ in range(draw.randint(1, 4))), reverse=True
            )
        )
        expected = len(needed) <= len(counts) and fits_by_trying(counts, needed)
        assert devices.fits(needed) == expected
        chosen = devices.choose(needed)
        assert (chosen is not None) == expected
        if chosen is not None:
            assert len(set(chosen)) == len(needed)
            assert all(counts[n] >= k for n, k in zip(chosen, needed, strict=True))


def test_choose_takes_the_tightest_fit() -> None:
    devices = FreeDevices({"whole": 4, "part": 2, "crumb": 1})
    assert devices.choose((2,)) == ["part"]
    assert devices.choose((1,)) == ["crumb"]
    assert devices.choose((3, 1)) == ["whole", "crumb"]
    assert devices.choose((3, 3)) is None


def test_a_copy_is_independent_and_a_removed_node_is_forgotten() -> None:
    devices = FreeDevices({"a": 2, "b": 1})
    twin = devices.copy()
    twin.add("a", -2)
    devices.remove("b")
    assert devices.fits((2,))
    assert not twin.fits((2,))
    assert not devices.fits((1, 1))
    assert devices.counts == {"a": 2}
