import numpy as np
import pandas as pd
import pytest
from sentences import Golden

from scalelab.experiment.trial import FIRST_CANARY
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.recommend.answer.evidence import Steadiness
from scalelab.recommend.prediction.consistency import steadiness

HOURS = 4.0


def swept(
    *,
    drift: float = 0.0,
    slow: float = 0.0,
    noise: float = 0.01,
    sizes: int = 6,
    repeats: int = 4,
    canaries: int = 3,
    hosts: int = 1,
    seed: int = 0,
) -> pd.DataFrame:
    """Sweep a machine whose drift, and whose slow node ``n0``, are declared."""
    draw = np.random.default_rng(seed)
    order = [
        (size, repeat) for repeat in range(repeats) for size in range(1, 1 + sizes)
    ]
    for moment in np.linspace(len(order), 0, canaries).astype(int):
        order.insert(moment, (1, FIRST_CANARY + moment))
    since = np.linspace(0, 1, len(order))
    nodes = [f"n{number}" for number in draw.integers(hosts, size=len(order))]
    logs = [np.log(0.1 * size) for size, _ in order] + np.log1p(drift) * since
    logs += np.log1p(slow) * (np.array(nodes) == "n0")
    logs += noise * draw.standard_normal(len(order))
    return pd.DataFrame(
        {
            "kind": "throughput",
            "outcome": "completed",
            "workload": "made_up",
            "repeat": pd.array([repeat for _, repeat in order], "Int64"),
            "world_size": [size for size, _ in order],
            "local_batch_size": 8,
            "step_time_s": np.exp(logs),
            "started_at": pd.Timestamp("2026-08-01", tz="UTC")
            + pd.to_timedelta(HOURS * since, unit="h"),
            "hosts": [[node] for node in nodes],
        }
    )


def found(observations: pd.DataFrame) -> Steadiness:
    steady = steadiness(observations)
    assert steady is not None
    return steady


def test_a_steady_machine_is_passed_over_in_silence() -> None:
    steady = found(swept(hosts=3))
    assert steady.sentences == ()
    assert steady.num_canaries == 3
    assert steady.num_hosts == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "drift",
    [0.15, *(pytest.param(each, marks=pytest.mark.repetition) for each in (0.0, -0.1))],
)
def test_the_interval_covers_the_truth_as_often_as_it_says(drift: float) -> None:
    changes = [found(swept(drift=drift, hosts=3, seed=n)).drift for n in range(200)]
    covered = [change and change.lo <= drift <= change.hi for change in changes]
    assert 0.7 < np.mean(covered) < 0.9
    assert np.median([c.value for c in changes if c]) == pytest.approx(drift, abs=0.01)


@pytest.mark.slow
@pytest.mark.repetition
def test_steady_machines_are_hardly_ever_accused_however_noisy() -> None:
    noisy = [found(swept(noise=0.05, hosts=3, seed=n)) for n in range(200)]
    assert np.mean([steady.is_drifting for steady in noisy]) < 0.1
    assert np.mean([bool(steady.slow_nodes) for steady in noisy]) < 0.1


def test_drift_is_said_in_one_sentence_with_its_pace(golden: Golden) -> None:
    steady = found(swept(drift=0.2, noise=1e-4))
    assert steady.drift is not None
    assert steady.drift.value / steady.hours == pytest.approx(0.2 / HOURS, rel=0.01)
    golden(*steady.sentences)
    faster = found(swept(drift=-0.1, noise=1e-4)).sentences
    golden(faster[0])


def test_a_small_drift_is_not_worth_words() -> None:
    steady = found(swept(drift=0.015, noise=1e-4))
    assert steady.drift is not None
    assert steady.drift.lo > 0.01
    assert steady.sentences == ()


def test_the_slow_node_is_named_and_does_not_pass_for_drift(golden: Golden) -> None:
    rows = swept(slow=0.3, hosts=4)
    # it joins late, and so slows the end of the sweep
    rows.loc[rows["repeat"] < 2, "step_time_s"] /= np.where(
        rows.loc[rows["repeat"] < 2, "hosts"].str[0] == "n0", 1.3, 1.0
    )
    rows.loc[rows["repeat"] < 2, "hosts"] = pd.Series([["n1"]] * len(rows))
    steady = found(rows)
    assert not steady.is_drifting
    (slow,) = steady.slow_nodes
    assert slow.host == "n0"
    assert slow.excess.value == pytest.approx(0.3, abs=0.03)
    golden(steady.sentences[0])
    assert (
        " longer on n0 than on the 3 other nodes (80% interval: "
        in (steady.sentences[0])
    )


def test_many_slow_nodes_are_told_in_few_lines() -> None:
    rows = swept(hosts=10, repeats=20, noise=0.003)
    is_slow = rows["hosts"].str[0].isin(["n0", "n1", "n2", "n3", "n4"])
    rows.loc[is_slow, "step_time_s"] *= 1.5
    lines = found(rows).sentences
    assert len(lines) == 4
    assert lines[3].startswith("Further slow nodes: n")


def test_several_nodes_at_once_accuse_none_of_them() -> None:
    rows = swept(hosts=3)
    rows["hosts"] = [[*hosts, "n9"] for hosts in rows["hosts"]]
    steady = found(rows)
    assert steady.num_hosts == 0
    assert steady.sentences == ()


def test_nodes_that_share_no_configuration_cannot_be_compared() -> None:
    rows = swept(slow=0.5, hosts=1)
    rows["hosts"] = [[f"n{size}"] for size in rows["world_size"]]
    assert found(rows).num_hosts == 0


def test_a_disturbed_canary_is_counted(golden: Golden) -> None:
    rows = swept(canaries=7, repeats=8)
    position = rows.index[rows["repeat"] >= FIRST_CANARY][3]
    rows.loc[position, "step_time_s"] *= 1.4
    (line,) = found(rows).sentences
    golden(line)
    golden(line)


def test_too_few_canaries_say_so(golden: Golden) -> None:
    alone = swept(sizes=1, repeats=1, canaries=1)
    golden(*found(alone).sentences)
    unlike = found(swept(repeats=1, canaries=3, noise=0.5)).sentences
    golden(unlike[0])
    assert " slowed down: step times changed by -" in unlike[0]


def test_without_canaries_nothing_is_said() -> None:
    rows = swept(drift=0.5)
    assert steadiness(rows[rows["repeat"] < FIRST_CANARY]) is None
    assert steadiness(rows.assign(kind="imported")) is None
    assert steadiness(rows.assign(outcome="failed")) is None
    assert steadiness(rows.drop(columns=["hosts", "started_at"])) is None


def test_canaries_do_not_bend_the_law() -> None:
    rows = swept(sizes=8, canaries=4, noise=0.005)
    asked = pd.DataFrame({"world_size": [1, 4, 8], "local_batch_size": 8})
    ordinary = StepTimeLaw.fit(rows[rows["repeat"] < FIRST_CANARY]).predict(asked)
    all_rows = StepTimeLaw.fit(rows).predict(asked)
    np.testing.assert_allclose(
        all_rows["step_time_s"], ordinary["step_time_s"], rtol=0.01
    )
