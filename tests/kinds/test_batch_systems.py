"""What every batch system must hold to: the built-in ones and one from outside."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributions import install
from fake_programs import FakePrograms

from scalelab.cluster.batch.queue import (
    JobState,
    cancel,
    look_at,
    submit_driver,
    survey,
)
from scalelab.doctor.site import Health, examine_site
from scalelab.doctor.site_profile import init_site
from scalelab.errors import ClusterError
from scalelab.experiment.spec import Experiment
from scalelab.kinds.batch_systems import BATCH_SYSTEMS, BatchSystem
from scalelab.kinds.registry import imported
from scalelab.site.choice import find_site
from scalelab.testing.batch_systems import NODES, BatchSystemContract, site_with


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchSystem]:
    """Install a distribution that adds a batch system."""
    install(tmp_path, "toys", BATCH_SYSTEMS.group, toy="scalelab_toy.batch_system:Toy")
    monkeypatch.syspath_prepend(str(tmp_path))
    vars(BATCH_SYSTEMS).pop("_outside", None)
    yield BATCH_SYSTEMS["toy"]
    vars(BATCH_SYSTEMS).pop("_outside", None)
    BATCH_SYSTEMS._loaded.clear()


class TestEveryBatchSystem(BatchSystemContract):
    @pytest.fixture(params=BATCH_SYSTEMS.built_in, ids=lambda row: row.name)
    def row(self, request: pytest.FixtureRequest) -> BatchSystem:
        found: BatchSystem = request.param
        return found


def test_editors_are_offered_the_settings_of_each_scheduler() -> None:
    found = Experiment.json_schema()["$defs"]
    for row in BATCH_SYSTEMS.built_in:
        schema = found[imported(row.site).__name__]
        assert schema["properties"]["scheduler"]["const"] == row.name
        assert row.queue_noun in schema["properties"]
        assert schema["additionalProperties"] is False
    assert "partition" not in found["PbsSite"]["properties"]
    assert "walltime" not in found["LocalSite"]["properties"]


@pytest.fixture
def programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], Path]:
    fakes = FakePrograms(tmp_path / "programs")
    monkeypatch.setenv("PATH", str(fakes.folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return fakes.does


HOSTS = {"num_nodes": 3, "cores": 64, "gpus": 4, "gpu_type": "a100"}


@pytest.mark.usefixtures("toy")
class TestFromOutside:
    def test_its_jobs_are_submitted_seen_and_cancelled(
        self, programs: Callable[..., Path], tmp_path: Path
    ) -> None:
        where = site_with(BATCH_SYSTEMS["toy"], **NODES, driver_job={"walltime": "1h"})
        submitted = programs("toysub", "/bin/cat $1 > $0.script; echo 17")
        programs("toystat", 'echo \'{"17": "pending"}\'')
        run = tmp_path / "vit"
        run.mkdir()
        record = submit_driver(where, run, ["sweep"])
        assert (record.scheduler, record.job_id) == ("toy", "17")
        script = submitted.with_name("toysub.script").read_text()
        assert "#TOY -name vit-driver-1\n" in script
        view = look_at(record)
        assert view is not None
        assert view.state is JobState.PENDING
        asked = programs("toykill")
        cancel(record)
        assert asked.read_text().split()[-1] == "17"

    def test_its_cluster_is_surveyed_and_examined(
        self, programs: Callable[..., Path], tmp_path: Path
    ) -> None:
        with pytest.raises(ClusterError, match="Neither sinfo, pbsnodes nor toyhosts"):
            survey()
        programs("toyhosts", f"echo '{json.dumps(HOSTS)}'")
        for name in ("toysub", "toystat", "toykill"):
            programs(name)
        _, nodes = init_site(None)
        assert nodes.startswith("lane fast, ")
        where = find_site("toyland")
        assert (where.scheduler, where.gpus_per_node) == ("toy", 4)
        found = {each.subject: each for each in examine_site(where, tmp_path / "runs")}
        assert found["programs"].text == "toysub, toystat, toykill found"
        assert found["lane"].text == "fast: 3 x (64 cores, 4 a100 GPUs)"
        assert found["submission"].health is Health.NOTE
        assert found["submit from nodes"].health is Health.OK


def test_what_starts_on_each_node_is_text_for_a_shell() -> None:
    """As LSF needs it, whose nodes stand in a variable of the job."""

    class Lsf(type(BATCH_SYSTEMS["slurm"])):  # type: ignore[misc]
        def once_per_node(self, *nodes_and_cores: object, **held: object) -> str:
            return 'blaunch -z "$LSB_HOSTS"'

    line = Lsf().start_on_all(["/my runs/node.sh", "vit-1"], 2)
    assert line == """exec blaunch -z "$LSB_HOSTS" bash '/my runs/node.sh' vit-1"""
