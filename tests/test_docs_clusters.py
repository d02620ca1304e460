"""What the page on clusters shows works as it stands there."""

import functools
import re
from operator import or_
from pathlib import Path

import pytest
import yaml
from command_lines import blocks, in_blocks, read
from made_up_runs import outlook_row, recommendation

from scalelab.experiment.spec import Experiment
from scalelab.recommend.answer.job_lines import JobTime, job_lines, recommended_trial
from scalelab.site.batch_site import BatchSite
from scalelab.site.choice import site_class, site_of
from scalelab.site.job_script import job_script, node_job_script

PAGE = (Path(__file__).parents[1] / "docs" / "clusters.md").read_text()
VALUES = [yaml.safe_load(block) for block in blocks(PAGE, "yaml")]
PROFILES = {each["scheduler"]: each for each in VALUES if "scheduler" in each}
SETTINGS = {name for row in PROFILES for name in site_class(row).model_fields}
SCRIPTS = [block for block in blocks(PAGE, "") if block.startswith("#!")]


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "allocation"])
def test_the_profiles_it_shows_are_profiles(scheduler: str) -> None:
    site = site_of(PROFILES[scheduler])
    assert (site.scheduler, site.gpus_per_node) == (scheduler, 4)


def test_what_it_adds_to_a_profile_can_be_added() -> None:
    additions = [each for each in VALUES if "scheduler" not in each]
    site = site_of(functools.reduce(or_, additions, PROFILES["slurm"]))
    assert site.driver_job is not None
    assert site.driver_job.walltime == 24 * 3600
    assert [group.num_devices for group in site.groups.values()] == [32, 16]


def test_every_setting_is_named() -> None:
    named = set(re.findall(r"\b[a-z_]+\b", " ".join(re.findall(r"`[^`\n]+`", PAGE))))
    for values in VALUES:
        named |= set(values)
    assert SETTINGS - named == {"name"}


def test_the_table_names_settings() -> None:
    (table,) = re.findall(r"^\| setting \|.*?\n\n", PAGE, re.DOTALL | re.MULTILINE)
    cells = " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE))
    names = re.findall(r"`([a-z_]+)[`:]", cells)
    assert len(names) > 10
    assert set(names) <= SETTINGS


@pytest.mark.parametrize(
    ("place", "num_nodes", "settings"),
    [
        (0, 2, PROFILES["slurm"] | {"provision": "one_job"}),
        (1, 1, PROFILES["pbs"] | {"python": "/home/me/env/bin/python"}),
    ],
)
def test_the_scripts_it_shows_are_those_of_the_profiles(
    place: int, num_nodes: int, settings: dict[str, object]
) -> None:
    site = site_of(settings)
    directory = Path("/shared/runs/vit/cluster")
    script = node_job_script(site, num_nodes, job_name="vit-1", directory=directory)
    assert SCRIPTS[place] == script


EXPERIMENT = """
name: vit
command: python train.py --batch-size {local_batch_size} --lr {learning_rate}
env: {WANDB_MODE: offline}
gpus: 8
local_batch_size: 128
learning_rate: 0.4
"""


def test_the_job_script_it_shows_is_that_of_an_answer() -> None:
    experiment = Experiment.from_text(EXPERIMENT)
    gpus = {"device_type": "cuda", "gpus_per_node": 4}
    site = site_of({"scheduler": "slurm", **gpus, "python": "/home/me/env/bin/python"})
    assert isinstance(site, BatchSite)
    row = outlook_row(8, 1024, is_chosen=True)
    answer = recommendation([row], held={"threads_per_rank": 8})
    time = JobTime(
        time_s=3.4 * 3600,
        confidence=0.9,
        start_up_s=41.0,
        walltime_s=None,
    )
    script = job_script(
        site,
        recommended_trial(experiment, answer).allocation,
        job_lines(experiment, site, answer, time),
        job_name="vit",
        walltime_s=time.limit_s,
    )
    assert SCRIPTS[2] == script


@pytest.mark.parametrize("line", in_blocks(PAGE))
def test_the_commands_it_shows_are_commands(line: str) -> None:
    read(line)
