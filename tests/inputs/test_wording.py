"""Options are written as their reader has to write them."""

import doctest

import pytest

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.inputs import problems
from scalelab.inputs.problems import Call, Option, for_the_command_line, validated
from scalelab.kinds.resources import read_limits
from scalelab.session.arguments import RecommendArguments


@pytest.mark.parametrize(
    ("option", "in_python", "on_the_command_line"),
    [
        (Option("max_batch"), "max_batch", "--max-batch"),
        (Option("job.steps"), "job.steps", "--steps"),
        (Option("max_cost_usd"), "max_cost_usd", "--max-cost"),
        (Option("accept_doubts", True), "accept_doubts=True", "--accept-doubts"),
        (Option("learn_from", "RUN"), "learn_from='RUN'", "--learn-from RUN"),
        (Option("axis", ["a b"]), "axis=['a b']", "--axis 'a b'"),
        (
            Option("select", "VALUE", key="options.program"),
            "select={'options.program': 'VALUE'}",
            "--select options.program=VALUE",
        ),
    ],
)
def test_an_option_is_written_for_its_reader(
    option: Option, in_python: str, on_the_command_line: str
) -> None:
    assert f"{option}" == in_python
    with for_the_command_line():
        assert f"{option}" == on_the_command_line
    assert f"{option}" == in_python


@pytest.mark.parametrize(
    ("given", "in_python", "on_the_command_line"),
    [
        ({"batch": 0}, "recommend: batch=0 must be", "--batch=0 must be"),
        (
            {"job": {"samples": 0}},
            "recommend: job.samples=0 must be",
            "--samples=0 must be",
        ),
        (
            {"job": {"steps": 9, "samples": 9}},
            "recommend: job: steps and samples both say",
            "--steps and --samples both say",
        ),
    ],
)
def test_a_wrong_argument_is_an_option_on_the_command_line(
    given: dict[str, object], in_python: str, on_the_command_line: str
) -> None:
    def message() -> str:
        with pytest.raises(SpecError) as caught:
            validated(RecommendArguments, given, source=Call("recommend"))
        return str(caught.value)

    assert message().startswith(in_python)
    with for_the_command_line():
        assert message().startswith(on_the_command_line)


def test_the_keys_of_a_file_are_keys_for_everyone() -> None:
    with for_the_command_line(), pytest.raises(SpecError) as caught:
        validated(Job, {"steps": 9, "samples": 9}, source="a.yaml")
    assert str(caught.value).startswith("a.yaml: steps and samples both say")


def test_a_limit_that_is_wrong_is_an_option_too() -> None:
    with pytest.raises(SpecError, match=r"^max_time: '4' is not a duration"):
        read_limits({"max_time": "4"})
    with for_the_command_line(), pytest.raises(SpecError, match=r"^--max-time: '4' is"):
        read_limits({"max_time": "4"})


def test_the_examples_hold() -> None:
    assert doctest.testmod(problems).failed == 0
