"""Whatever is wrong with an experiment, the user reads one paragraph."""

from pathlib import Path

import pytest
import yaml
from bad_experiments import VALID, bad_experiments, bad_files
from planned_trials import planned_trials

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.site.profile import LocalSite, Site


def assert_one_paragraph(message: str) -> None:
    assert 20 < len(message) < 1200
    assert message.isprintable()
    assert message.rstrip(")")[-1] in ".?", message
    assert "pydantic" not in message


@pytest.mark.parametrize("values", VALID, ids=["workload", "command"])
def test_what_is_broken_below_was_valid(values: dict[str, object]) -> None:
    experiment = Experiment.from_text(yaml.safe_dump(values))

    assert planned_trials(experiment)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_a_broken_experiment_is_refused_in_one_paragraph(part: int) -> None:
    accepted = []
    for what, text in bad_experiments(100, seed=20261120 + part):
        try:
            experiment = Experiment.from_text(text, source="bad.yaml")
            site = experiment.site if isinstance(experiment.site, Site) else LocalSite()
            planned_trials(experiment, site)
        except SpecError as error:
            assert_one_paragraph(str(error))
        else:
            accepted.append((what, text))
    assert not accepted, f"{len(accepted)} accepted, first: {accepted[0]}"


def test_a_file_that_is_no_text_is_refused_in_one_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    for _what, content in bad_files(50):
        path.write_bytes(content)

        with pytest.raises(SpecError) as caught:
            Experiment.from_file(path)

        assert_one_paragraph(str(caught.value))


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("absent.yaml", "cannot be read: No such file or directory"),
        (".", "cannot be read: it is a directory"),
        ("nul\0.yaml", "cannot be read"),
        ("long" * 200, "cannot be read: File name too long"),
    ],
)
def test_a_path_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, rule: str
) -> None:
    with pytest.raises(SpecError, match=rule) as caught:
        Experiment.from_file(tmp_path / name)

    assert_one_paragraph(str(caught.value))
