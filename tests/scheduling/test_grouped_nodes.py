"""Nodes of two groups: jobs, nodes and trials of each keep to themselves."""

from collections import Counter
from collections.abc import Callable

import pytest
from provision_scenes import Scene

from scalelab.cluster.batch.queue import JobRefused, JobState, JobView
from scalelab.errors import ClusterError

GROUPS = {
    "a100": {"gpus_per_node": 4, "nodes": 3, "partition": "big"},
    "h100": {"gpus_per_node": 2, "nodes": 2, "partition": "small"},
}


@pytest.fixture
def grouped(scene: Callable[..., Scene]) -> Callable[..., Scene]:
    return lambda **site: scene(node_groups=GROUPS, **site)


def requested(scene: Scene) -> Counter[str | None]:
    return Counter(scene.batch.group_of.values())


def of_group(scene: Scene, group: str) -> list[str]:
    return [name for name, its in scene.batch.group_of.items() if its == group]


def test_each_group_asks_for_the_nodes_its_trials_can_use(
    grouped: Callable[..., Scene],
) -> None:
    scene = grouped()
    scene.wait_for(4, 4, group="a100")
    for _ in range(9):
        scene.wait_for(2, group="h100")
    scene.tick()
    assert requested(scene) == {"a100": 2, "h100": 2}
    assert set(scene.batch.requested.values()) == {1}


def test_one_job_for_each_group(grouped: Callable[..., Scene]) -> None:
    scene = grouped(provision="one_job")
    scene.wait_for(4, 4, group="a100")
    scene.wait_for(1, group="h100")
    scene.tick()
    scene.tick()
    assert scene.batch.requested == {"run-1": 2, "run-2": 1}
    assert scene.batch.group_of == {"run-1": "a100", "run-2": "h100"}


def test_the_limit_on_jobs_is_the_site_s_and_each_group_gets_its_share(
    grouped: Callable[..., Scene],
) -> None:
    scene = grouped(max_jobs=3)
    scene.wait_for(4, 4, 4, group="a100")
    scene.wait_for(2, 2, group="h100")
    scene.tick()
    assert requested(scene) == {"a100": 2, "h100": 1}


def test_a_trial_runs_on_nodes_of_its_group_only(grouped: Callable[..., Scene]) -> None:
    scene = grouped()
    for _ in range(4):
        scene.wait_for(1, group="a100")
        scene.wait_for(1, group="h100")
    scene.tick()
    scene.submitted()
    scene.up(of_group(scene, "a100")[0], "big-1")
    placed = scene.pool.place(scene.clock.now_s)
    assert [request.trial.node_group for request, _ in placed] == ["a100"] * 4
    assert {share.node for _, where in placed for share in where.shares} == {
        f"big-1/{of_group(scene, 'a100')[0]}"
    }
    scene.up(of_group(scene, "h100")[0], "small-1")
    placed = scene.pool.place(scene.clock.now_s)
    assert [request.trial.node_group for request, _ in placed] == ["h100"] * 2


def test_a_group_that_waits_does_not_block_the_other(
    grouped: Callable[..., Scene],
) -> None:
    scene = grouped()
    scene.wait_for(4, 4, group="a100")
    scene.wait_for(2, group="h100")
    scene.wait_for(1, group="h100")
    scene.tick()
    scene.submitted()
    first, second = of_group(scene, "a100")
    scene.up(first, "big-1")
    scene.up(of_group(scene, "h100")[0], "small-1")
    pending = JobView(state=JobState.PENDING, reason="Resources")
    scene.see(**{second.replace("-", "_"): pending})
    assert scene.place() == [2]
    scene.tick()
    assert scene.batch.waiting == [
        "1 trial for 2 a100 nodes x 4 devices: 1 node up, 1 in the queue (Resources).",
        "the other trials for devices that are in use.",
    ]
    assert scene.said == ["run-3 (job 3, 1 a100 node): pending, Resources"]
    scene.pool.placers["h100"].release(2)
    assert scene.place() == [3]


def test_nodes_of_a_group_that_is_done_are_given_back(
    grouped: Callable[..., Scene],
) -> None:
    scene = grouped()
    scene.wait_for(4, group="a100")
    scene.wait_for(2, group="h100")
    scene.tick()
    scene.submitted()
    (a100,), (h100,) = of_group(scene, "a100"), of_group(scene, "h100")
    scene.up(a100, "big-1")
    scene.up(h100, "small-1")
    assert scene.place() == [1, 2]
    scene.tick()
    scene.pool.placers["h100"].release(2)
    scene.tick()
    assert scene.batch.ended == [h100]


def test_a_group_that_is_refused_ends_the_sweep_once_the_other_is_done(
    grouped: Callable[..., Scene],
) -> None:
    scene = grouped()
    scene.wait_for(4, group="a100")
    scene.wait_for(4, group="a100")
    scene.wait_for(2, group="h100")
    scene.tick()
    scene.submitted()
    scene.provision.take(JobRefused(of_group(scene, "h100")[0], "no such partition"))
    first, second = of_group(scene, "a100")
    scene.up(first, "big-1")
    scene.see()
    assert scene.place() == [1]
    scene.tick()
    scene.up(second, "big-2")
    scene.pool.placers["a100"].release(1)
    scene.provision.record_success("a100")
    scene.tick()
    assert scene.place() == [2]
    scene.tick()
    scene.pool.placers["a100"].release(2)
    with pytest.raises(ClusterError, match="refused a job: no such partition"):
        scene.tick()


def test_what_fits_only_the_other_group_never_runs(
    grouped: Callable[..., Scene], make_trial: Callable[..., object]
) -> None:
    scene = grouped()
    scene.wait_for(4, group="a100")
    (waiting,) = scene.pool.waiting()
    assert scene.pool.placers["a100"].why_never(waiting.trial.allocation) is None
    scene.wait_for(3, group="h100")
    _, too_large = scene.pool.waiting()
    why = str(scene.pool.placers["h100"].why_never(too_large.trial.allocation))
    assert why.startswith(
        "The trial needs 1 node x 3 devices; the cluster has 2 nodes x 2 devices."
    )
