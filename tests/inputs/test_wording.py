from __future__ import annotations

import pytest

from scalelab.errors import NotIdentifiableError, SpecError
from scalelab.inputs.wording import (
    as_options,
    in_own_words,
    in_words_of_the_caller,
    of_the_command_line,
)


@pytest.mark.parametrize(
    ("text", "in_python"),
    [
        ("--column step_time_s=THEIRS).", "column={'step_time_s': 'THEIRS'})."),
        ("--constant gpus_per_node=8 says", "constant={'gpus_per_node': '8'} says"),
        ("Say --axis 'zero stage' or", "Say axis=['zero stage'] or"),
        ("--ignore the column", "ignore the column"),
        ("--tokens-per-sample N.", "tokens_per_sample=N."),
        ("; --max-batch allows more", "; max_batch allows more"),
        ("say --accept-doubts.", "say accept_doubts=True."),
        ("--learn-from RUN.", "learn_from='RUN'."),
        ("srun --nodes=2", "srun --nodes=2"),
        ("with --select name=VALUE.", "with select={'name': 'VALUE'}."),
        (
            "--select options.program=torch",
            "select={'options.program': 'torch'}",
        ),
    ],
)
def test_options_become_arguments_but_for_the_command_line(
    text: str, in_python: str
) -> None:
    assert in_words_of_the_caller(text) == in_python
    with of_the_command_line():
        assert in_words_of_the_caller(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("max_time: '4' is not a duration.", "--max-time: '4' is not a duration."),
        ("recommend: batch=0 must be", "--batch=0 must be"),
        ("recommend: job: epochs needs samples", "--epochs needs samples"),
        ("max_cost_usd=20 needs a price.", "--max-cost=20 needs a price."),
        ("law='foo' is unknown.", "--law='foo' is unknown."),
        ("samples to the target are unknown", "samples to the target are unknown"),
    ],
)
def test_an_error_that_begins_with_an_argument_begins_with_the_option(
    text: str, shown: str
) -> None:
    assert as_options(text) == shown


def test_errors_of_any_class_keep_it() -> None:
    @in_own_words
    def refuse() -> None:
        raise NotIdentifiableError("the second node", "Say --between-nodes.")

    with pytest.raises(NotIdentifiableError, match="Say between_nodes") as caught:
        refuse()
    assert not isinstance(caught.value, SpecError)
