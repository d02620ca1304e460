"""What every batch system must hold to: the built-in ones and one from outside."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributions import install
from fake_programs import FakePrograms

from scalelab.cluster.batch.client import client_class, survey
from scalelab.cluster.batch.driver_queue import cancel, look_at, submit_driver
from scalelab.cluster.batch.queue import JobState
from scalelab.doctor.machine import Health
from scalelab.doctor.site import examine_site
from scalelab.doctor.site_profile import init_site
from scalelab.errors import ClusterError, SpecError
from scalelab.experiment.spec import Experiment
from scalelab.kinds.batch_systems import BATCH_SYSTEMS, BatchSystem, system_of_job
from scalelab.kinds.registry import imported
from scalelab.site.batch_site import BatchSite
from scalelab.site.choice import find_site, site_of
from scalelab.site.job_script import driver_job_script, node_job_script

DIRECTORY = Path("/shared/vit/cluster")
NODES = {
    "device_type": "cuda",
    "gpus_per_node": 4,
    "python": "/opt/python",
    "prologue": ["module load cuda"],
}
REQUEST = {
    **NODES,
    "account": "charged",
    "walltime": "4h",
    "cores_per_node": 32,
    "memory_per_node": "64GiB",
    "gpu_type": "a100",
    "exclusive": True,
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchSystem]:
    """Install a distribution that adds a batch system."""
    install(tmp_path, "toys", BATCH_SYSTEMS.group, toy="scalelab_toy.batch_system:TOY")
    monkeypatch.syspath_prepend(str(tmp_path))
    vars(BATCH_SYSTEMS).pop("_outside", None)
    yield BATCH_SYSTEMS["toy"]
    vars(BATCH_SYSTEMS).pop("_outside", None)
    BATCH_SYSTEMS._loaded.clear()


@pytest.fixture(params=[*(row.name for row in BATCH_SYSTEMS.built_in), "toy"])
def system(request: pytest.FixtureRequest, toy: BatchSystem) -> BatchSystem:
    return BATCH_SYSTEMS[request.param]


def site(system: BatchSystem, **settings: object) -> BatchSite:
    named = {"scheduler": system.name, system.queue_noun: "fast"}
    found = site_of({**named, **settings})
    assert isinstance(found, BatchSite)
    return found


def options(script: str, system: BatchSystem) -> list[str]:
    """Return what a script asks of the batch system."""
    lines = script.splitlines()
    asked = [line for line in lines if line.startswith(system.directive)]
    assert lines[1 : 1 + len(asked)] == asked, "directives come first"
    return [line.removeprefix(f"{system.directive} ") for line in asked]


def node_script_of(where: BatchSite, num_nodes: int = 2) -> str:
    return node_job_script(where, num_nodes, job_name="vit-1", directory=DIRECTORY)


class TestEveryBatchSystem:
    def test_names_its_site_and_its_client(self, system: BatchSystem) -> None:
        found = site(system, **NODES)
        assert type(found) is imported(system.site)
        assert found.batch_system is system
        assert found.queue_name == "fast"
        client = client_class(system)
        for name in ("job", "look", "survey", "nodes_may_submit"):
            assert callable(getattr(client, name))

    def test_asks_for_all_that_is_set(self, system: BatchSystem) -> None:
        script = node_script_of(site(system, **REQUEST))
        asked = " ".join(options(script, system))
        for value in ("vit-1", "fast", "charged", "04:00:00", "32", "4", "a100"):
            assert value in asked
        assert any(memory in asked for memory in ("65536M", "65536mb"))
        assert f"{DIRECTORY}/vit-1.log" in asked
        *_, prologue, start = script.splitlines()
        assert prologue == "module load cuda"
        assert start.startswith(f"exec {' '.join(system.on_all_nodes)} ")
        assert start.endswith(f"bash {DIRECTORY}/node.sh vit-1")

    def test_starts_the_only_node_of_a_job_itself(self, system: BatchSystem) -> None:
        last = node_script_of(site(system, **NODES), 1).splitlines()[-1]
        assert last.startswith("exec /opt/python -m scalelab.cluster.node_process ")

    def test_refuses_what_it_writes_itself(self, system: BatchSystem) -> None:
        for option in options(node_script_of(site(system, **REQUEST)), system):
            with pytest.raises(SpecError, match="is written by ScaleLab, from the"):
                site(system, **NODES, directives=[option])

    def test_refuses_its_own_directive(self, system: BatchSystem) -> None:
        line = f"{system.directive} -x"
        words = rf"starts with '#'\. Write the part after {system.directive}\."
        with pytest.raises(SpecError, match=words):
            site(system, **NODES, directives=[line])

    def test_passes_other_options_on(self, system: BatchSystem) -> None:
        where = site(system, **NODES, directives=["--made-up=yes"])
        assert "--made-up=yes" in options(node_script_of(where), system)

    def test_refuses_options_beside_settings(self, system: BatchSystem) -> None:
        for setting, pattern in system.excluding_options:
            option = pattern.pattern.removesuffix(r"\b") + "=1GB"
            with pytest.raises(SpecError, match=f"and {setting} exclude each other"):
                site(system, **NODES, **{setting: "1GB"}, directives=[option])

    def test_refuses_settings_of_others(self, system: BatchSystem) -> None:
        for other in BATCH_SYSTEMS.built_in:
            if other is not system:
                noun, words = other.queue_noun, f"belongs to scheduler {other.name}, "
                for wrong in (
                    {noun: "x"},
                    {"node_groups": {"a": {noun: "x"}}},
                    {"driver_job": {"walltime": "1h", noun: "x"}},
                ):
                    with pytest.raises(SpecError, match=f"{noun} {words}"):
                        site(system, **NODES, **wrong)
                empty = site(system, **NODES, **{noun: None})
                assert empty == site(system, **NODES)

    def test_refuses_a_log_that_it_cannot_write(self, system: BatchSystem) -> None:
        assert system.refused_in_logs is not None
        for letter in filter(system.refused_in_logs.search, "%\\\n \t'\"ä"):
            with pytest.raises(SpecError, match=f"{system.name} does not take in the"):
                node_job_script(
                    site(system, **NODES),
                    1,
                    job_name="vit-1",
                    directory=Path(f"/shared/a{letter}b"),
                )

    def test_runs_a_driver_after_another_without_gpus(
        self, system: BatchSystem
    ) -> None:
        job = {"walltime": "24h", system.queue_noun: "small", "cores": 2}
        script = driver_job_script(
            site(system, **REQUEST, driver_job=job),
            ["sweep"],
            job_name="driver",
            directory=Path("/home/me"),
            log=DIRECTORY / "driver.log",
            job_log=DIRECTORY / "job.log",
            after="17",
        )
        asked = options(script, system)
        assert system.after_job.format(job_id="17") in asked
        assert any("small" in option for option in asked)
        assert not any("gpu" in option or "a100" in option for option in asked)

    def test_has_node_groups_with_its_own_settings(self, system: BatchSystem) -> None:
        groups = {"a": {system.queue_noun: "slow", "gpus_per_node": 8}, "b": {}}
        where = site(system, **NODES, node_groups=groups)
        assert [each.queue_name for each in where.groups.values()] == ["slow", "fast"]
        assert "slow" in node_script_of(where.groups["a"])

    def test_knows_its_jobs_by_their_environment(self, system: BatchSystem) -> None:
        assert system_of_job({system.job_variable: "17"}) is system
        assert system_of_job({"HOME": "/home/me"}) is None
        assert not any(map(system.is_of_job, system.kept_variables))
        for prefix in system.job_prefixes:
            assert system.is_of_job(f"{prefix}X")

    def test_is_a_choice_of_inline_sites(self, system: BatchSystem) -> None:
        values = {**NODES, "scheduler": system.name, system.queue_noun: "fast"}
        text = json.dumps({**EXPERIMENT, "site": values})
        assert Experiment.from_text(text).resolve_site() == site(system, **NODES)
        wrong = json.dumps({**EXPERIMENT, "site": {**values, "lsae": 1}})
        with pytest.raises(SpecError, match=f"lsae.*Valid: .*{system.queue_noun}"):
            Experiment.from_text(wrong)


EXPERIMENT = {
    "name": "vit",
    "workload": "digits_mlp",
    "learning_rate": 0.1,
    "local_batch_size": 8,
    "gpus": [1, 2],
}


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
        where = site(BATCH_SYSTEMS["toy"], **NODES, driver_job={"walltime": "1h"})
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
        written = init_site(None)
        assert (written.noun, written.queue) == ("lane", "fast")
        where = find_site("toyland")
        assert (where.scheduler, where.gpus_per_node) == ("toy", 4)
        found = {each.subject: each for each in examine_site(where, tmp_path / "runs")}
        assert found["programs"].text == "toysub, toystat, toykill found"
        assert found["lane"].text == "fast: 3 x (64 cores, 4 a100 GPUs)"
        assert found["submission"].health is Health.NOTE
        assert found["submit from nodes"].health is Health.OK
