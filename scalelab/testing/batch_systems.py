"""What every batch system promises, with the site and the client that it names."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from scalelab.cluster.batch.queue import client_class
from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.inputs.allocation import Allocation
from scalelab.kinds.batch_systems import BATCH_SYSTEMS, BatchSystem, system_of_job
from scalelab.kinds.registry import imported
from scalelab.site.batch_site import BatchSite
from scalelab.site.choice import site_of
from scalelab.site.job_script import driver_job_script, node_job_script
from scalelab.testing.installed import RowContract

_DIRECTORY = Path("/shared/vit/cluster")
NODES: dict[str, Any] = {
    "device_type": "cuda",
    "gpus_per_node": 4,
    "python": "/opt/python",
    "prologue": ["module load cuda"],
}
"""Settings of a site that every batch system has."""
_REQUEST = {
    **NODES,
    "account": "charged",
    "walltime": "4h",
    "cores_per_node": 32,
    "memory_per_node": "64GiB",
    "gpu_type": "a100",
    "exclusive": True,
}
_64_GIB = ("65536", "64G", "64g", "68719476736")
_EXPERIMENT = {
    "name": "vit",
    "workload": "digits_mlp",
    "learning_rate": 0.1,
    "local_batch_size": 8,
    "gpus": [1, 2],
}


def site_with(row: BatchSystem, **settings: Any) -> BatchSite:
    """Return a site of the batch system whose jobs go to the queue ``fast``."""
    found = site_of({"scheduler": row.name, row.queue_noun: "fast", **settings})
    assert isinstance(found, BatchSite)
    return found


def _options(script: str, row: BatchSystem) -> list[str]:
    """Return what a script asks of the batch system."""
    lines = script.splitlines()
    asked = [line for line in lines if line.startswith(row.directive)]
    assert lines[1 : 1 + len(asked)] == asked, "directives come first"
    return [line.removeprefix(f"{row.directive} ") for line in asked]


def _node_script(where: BatchSite, num_nodes: int = 2) -> str:
    return node_job_script(where, num_nodes, job_name="vit-1", directory=_DIRECTORY)


class BatchSystemContract(RowContract):
    """What every batch row promises, without any of its programs."""

    registry_path = "scalelab.kinds.batch_systems:BATCH_SYSTEMS"

    def test_names_its_site_and_its_client(self, row: BatchSystem) -> None:
        """What needs no job of the client is static, so that it needs no instance."""
        found = site_with(row, **NODES)
        assert type(found) is imported(row.site)
        assert type(found.batch_system) is type(row)
        assert found.queue_name == "fast"
        client = client_class(row)
        assert inspect.iscoroutinefunction(client.look)
        for name in ("survey", "accounted", "queue_waits", "nodes_may_submit"):
            assert isinstance(inspect.getattr_static(client, name), staticmethod)

    def test_asks_for_all_that_is_set(self, row: BatchSystem) -> None:
        """``request`` renders every setting; ``log_options`` the file."""
        script = _node_script(site_with(row, **_REQUEST))
        asked = " ".join(_options(script, row))
        for value in ("vit-1", "fast", "charged", "04:00:00", "32", "4", "a100"):
            assert value in asked

        assert any(memory in asked for memory in _64_GIB)
        assert f"{_DIRECTORY}/vit-1.log" in asked
        *_, prologue, start = script.splitlines()
        assert prologue == "module load cuda"
        assert start.startswith(f"exec {row.once_per_node(2, 32)} ")
        assert start.endswith(f"bash {_DIRECTORY}/node.sh vit-1")

    def test_starts_the_only_node_of_a_job_itself(self, row: BatchSystem) -> None:
        """``once_per_node`` is for jobs of several nodes."""
        last = _node_script(site_with(row, **NODES), 1).splitlines()[-1]
        assert last.startswith("exec /opt/python -m scalelab.cluster.node_process ")

    def test_walltimes_are_in_seconds(self, row: BatchSystem) -> None:
        """``request`` is given the time limit of a job as a number of seconds."""
        where = site_with(row, **NODES)
        allocation = Allocation(devices_per_node=(4,))
        short, long = (where.request(allocation, "a", s) for s in (90.0, 5400.0))
        assert short != long
        values = {re.split(r"[ =]", option)[-1] for option in short}
        assert not values & {"90", "01:30", "1:30:00", "01:30:00"}, "these are minutes"

    def test_refuses_what_it_writes_itself(self, row: BatchSystem) -> None:
        """``reserved_options`` finds every option that a script has."""
        for option in _options(_node_script(site_with(row, **_REQUEST)), row):
            with pytest.raises(SpecError, match="is written by ScaleLab, from the"):
                site_with(row, **NODES, directives=[option])

    def test_refuses_its_own_directive(self, row: BatchSystem) -> None:
        """Users write the part after it."""
        line = f"{row.directive} -x"
        words = rf"starts with '#'\. Write the part after {row.directive}\."
        with pytest.raises(SpecError, match=words):
            site_with(row, **NODES, directives=[line])

    def test_passes_other_options_on(self, row: BatchSystem) -> None:
        """What ScaleLab does not know is not its business."""
        where = site_with(row, **NODES, directives=["--made-up=yes"])
        assert "--made-up=yes" in _options(_node_script(where), row)

    def test_refuses_options_beside_settings(self, row: BatchSystem) -> None:
        """``excluding_options`` are options that a setting stands for."""
        for setting, pattern in row.excluding_options:
            option = pattern.pattern.removesuffix(r"\b") + "=1GB"
            with pytest.raises(SpecError, match=f"and {setting} exclude each other"):
                site_with(row, **NODES, **{setting: "1GB"}, directives=[option])

    def test_refuses_settings_of_others(self, row: BatchSystem) -> None:
        """A profile that was copied from another cluster says so."""
        for other in BATCH_SYSTEMS.built_in:
            if other.queue_noun != row.queue_noun:
                noun, words = other.queue_noun, f"belongs to scheduler {other.name}, "
                for wrong in (
                    {noun: "x"},
                    {"node_groups": {"a": {noun: "x"}}},
                    {"driver_job": {"walltime": "1h", noun: "x"}},
                ):
                    with pytest.raises(SpecError, match=f"{noun} {words}"):
                        site_with(row, **NODES, **wrong)

                empty = site_with(row, **NODES, **{noun: None})
                assert empty == site_with(row, **NODES)

    def test_refuses_a_log_that_it_cannot_write(self, row: BatchSystem) -> None:
        """``refused_in_logs`` finds letters that it would not take as they are."""
        refused = row.refused_in_logs
        for letter in filter(refused.search, "%\\\n \t'\"\u00e4") if refused else "":
            with pytest.raises(SpecError, match=f"{row.name} does not take in the"):
                node_job_script(
                    site_with(row, **NODES),
                    1,
                    job_name="vit-1",
                    directory=Path(f"/shared/a{letter}b"),
                )

    def test_runs_a_driver_after_another_without_gpus(self, row: BatchSystem) -> None:
        """The job that runs a detached sweep renews itself by ``after``."""
        job = {"walltime": "24h", row.queue_noun: "small", "cores": 2}
        script = driver_job_script(
            site_with(row, **_REQUEST, driver_job=job),
            ["sweep"],
            job_name="driver",
            directory=Path("/home/me"),
            log=_DIRECTORY / "driver.log",
            job_log=_DIRECTORY / "job.log",
            after="17",
        )

        asked = _options(script, row)
        assert row.after("17") in asked
        assert any("small" in option for option in asked)
        assert not any("gpu" in option or "a100" in option for option in asked)

    def test_has_node_groups_with_its_own_settings(self, row: BatchSystem) -> None:
        """A group of nodes may be in another queue."""
        groups = {"a": {row.queue_noun: "slow", "gpus_per_node": 8}, "b": {}}
        where = site_with(row, **NODES, node_groups=groups)
        assert [group.queue_name for group in where.groups.values()] == ["slow", "fast"]
        assert "slow" in _node_script(where.groups["a"])

    def test_knows_its_jobs_by_their_environment(self, row: BatchSystem) -> None:
        """``job_variable`` is set there, and only there."""
        assert type(system_of_job({row.job_variable: "17"})) is type(row)
        assert system_of_job({"HOME": "/home/me"}) is None
        assert not any(map(row.is_of_job, row.kept_variables))
        for prefix in row.job_prefixes:
            assert row.is_of_job(f"{prefix}X")

    def test_is_a_choice_of_inline_sites(self, row: BatchSystem) -> None:
        """An experiment may hold the site; a wrong key is refused by name."""
        values = {**NODES, "scheduler": row.name, row.queue_noun: "fast"}
        text = json.dumps({**_EXPERIMENT, "site": values})
        assert Experiment.from_text(text).resolve_site() == site_with(row, **NODES)
        wrong = json.dumps({**_EXPERIMENT, "site": {**values, "lsae": 1}})
        with pytest.raises(SpecError, match=f"lsae.*Valid: .*{row.queue_noun}"):
            Experiment.from_text(wrong)
