"""Write the three pages of reference from the schema, docs/reference*.md.

    python docs/make_reference.py

What is new in the schema needs an example in ``reference_examples.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scalelab.cli.recommend_command import ANSWER, ERROR
from scalelab.errors import ScaleLabError
from scalelab.experiment.presets import PRESETS
from scalelab.experiment.spec import Experiment
from scalelab.experiment.tuning import TuneKeys
from scalelab.inputs.fields import Duration, Size
from scalelab.inputs.numerals import duration
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.placeholders import (
    LAYOUT_PLACEHOLDERS,
    PROCESS_PLACEHOLDERS,
    TRIAL_PLACEHOLDERS,
)
from scalelab.inputs.problems import model_in
from scalelab.recommend.answer.note_words import SENTENCES
from scalelab.records.columns import COLUMNS
from scalelab.records.control.events import EVENTS, KINDS, VERSION, Progress
from scalelab.site.choice import site_class
from scalelab.site.prices import PriceEntry

DOCS = Path(__file__).parent
SCHEDULERS = ("local", "allocation", "slurm", "pbs")
GROUPS = {
    "step": "optimiser steps done; a line without it adds its metrics to the last step",
    "samples": (
        "training samples of all ranks so far, or of a step; checked against the batch "
        "sizes, or, "
        "without any step, made steps by them"
    ),
    "t": "seconds by the command's own clock, instead of the time the line arrived",
    "batch_of_epoch": (
        "forward passes of one rank since the epoch began, instead of step: they are "
        "added up over epochs and divided by the accumulation steps"
    ),
    "batches_of_epoch": (
        "how many of them an epoch has; a line with another number than the first is "
        "one of an evaluation"
    ),
    "step_of_epoch": (
        "optimiser steps since the epoch began, instead of step: they are added up "
        "over epochs"
    ),
    "steps_of_epoch": "how many of them an epoch has, likewise",
    "samples_of_rank": (
        "samples of one rank since the epoch began, as many DDP scripts print them, "
        "instead of samples_of_epoch: they are multiplied by the ranks"
    ),
    "samples_of_epoch": (
        "samples of all ranks since the epoch began, instead of step: they are divided "
        "by the global batch and added up over epochs"
    ),
    "samples_in_epoch": "how many of them an epoch has, likewise",
    "percent_of_epoch": (
        "beside samples_of_epoch and samples_in_epoch: the share of the epoch that is "
        "done; a line that counts the samples of one rank, and says the share of all "
        "ranks, is refused"
    ),
    "epoch": (
        "beside a count of the epoch: a higher number begins the next epoch, needed "
        "where an epoch has one line; else a metric like any other"
    ),
    "steps_in_all": (
        "how many steps the training has; a line with another number than the first is "
        "one of an evaluation"
    ),
    "world_size": (
        "how many devices work together, as the program's framework says; another "
        "number than the trial's is refused"
    ),
    "NAME": "any other number is a metric of that name, such as loss or val_acc",
}
JSON = {
    "schema": f"`{ANSWER}`",
    "question": "the `command`, and what it was asked",
    "facts": "what there is to say: the `kind` of each, and its values",
    "text": "the same in sentences",
    "further keys": "the figures of the answer; those of `recommend` are the fields of "
    "what `Run.recommend` returns",
}
PAGES = {
    "reference.md": """\
# Reference: experiments, sites and prices

Every key of an experiment, of a site profile and of a price list; editors complete and
check the keys with what `scalelab schema` prints. Beside it:
[placeholders of a command and what is read of its lines](reference_programs.md),
[columns, events and answers of a run](reference_runs.md). Made from the schema by
`docs/make_reference.py`.
""",
    "reference_programs.md": """\
# Reference: placeholders and metrics of a program

Every placeholder of a command, every group of its metrics, and what each preset of
metrics reads; [keys of an experiment](reference.md) stand beside it. Made from the
schema by `docs/make_reference.py`.
""",
    "reference_runs.md": """\
# Reference: columns, events and answers of a run

What a run holds and what is said about it, for those who read it with programs of their
own. Made from the schema by `docs/make_reference.py`.
""",
}


class Key(NamedTuple):
    """A key of the YAML: its path, what it means, and what it is by default."""

    path: str
    meaning: str
    default: str


def keys_of(model: type[BaseModel], within: str = "") -> Iterator[Key]:
    """Yield the keys of a section and of the sections inside it."""
    # what an experiment inherits comes last
    of_search = [] if within else [*TuneKeys.model_fields]
    own = [name for name in model.model_fields if name not in of_search]
    for name in (*own, *(n for n in of_search if n in model.model_fields)):
        field = model.model_fields[name]
        path = f"{within}{field.alias or name}"
        yield Key(path, field.description or "", _default(field))
        inner = model_in(field.annotation)
        if inner is not None and name != "site":
            is_named = "node_groups" in path
            yield from keys_of(inner, f"{path}.{'NAME.' if is_named else ''}")


def site_keys() -> dict[Key, list[str]]:
    """Return the keys of site profiles, each with the schedulers that have it."""
    found: dict[str, list[tuple[Key, str]]] = {}
    for scheduler in SCHEDULERS:
        for key in keys_of(site_class(scheduler)):
            if ".NAME." not in key.path:
                found.setdefault(key.path, []).append((key, scheduler))
    return {
        _merged([key for key, _ in of]): [name for _, name in of]
        for of in found.values()
    }


def _merged(keys: list[Key]) -> Key:
    """Return a key of several schedulers as one, with what each says of it."""
    meanings = dict.fromkeys(key.meaning.rstrip(".") for key in keys)
    return keys[0]._replace(meaning=f"{'; '.join(meanings)}.")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.default
    is_empty = value is None or value in ({}, ()) or isinstance(value, BaseModel)
    if field.default_factory is not None or is_empty:
        return ""
    if _is_read_as(Duration, field):
        return duration(value)
    if _is_read_as(Size, field):
        return f"{value / 1e9:g} GB"
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(_written(each) for each in values)


def _is_read_as(kind: Any, field: FieldInfo) -> bool:
    return any(each is kind.__metadata__[0] for each in field.metadata)


def _written(value: object) -> str:
    """Return a value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def examples() -> dict[str, dict[str, str]]:
    """Return the examples by part and key, as they are written."""
    text = (DOCS / "reference_examples.yaml").read_text()
    found: dict[str, dict[str, str]] = yaml.safe_load(text)
    return found


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    given = examples()
    parts = (_of_files(given), _of_programs(given), _of_runs())
    return {
        name: "\n".join([head, *found]) + "\n"
        for (name, head), found in zip(PAGES.items(), parts, strict=True)
    }


def _of_files(given: Mapping[str, Mapping[str, str]]) -> list[str]:
    experiment = [
        (
            f"`{key.path}`",
            key.meaning,
            key.default,
            _code(given["experiment"][key.path]),
        )
        for key in keys_of(Experiment)
    ]
    site = [
        (
            f"`{key.path}`",
            key.meaning,
            "all" if len(where) == len(SCHEDULERS) else ", ".join(where),
            key.default,
            _code(given["site"][key.path]),
        )
        for key, where in site_keys().items()
    ]
    prices = [
        (f"`{key.path}`", key.meaning, key.default, _code(given["prices"][key.path]))
        for key in keys_of(PriceEntry)
    ]
    return [
        "## Experiments\n",
        *_table(("key", "meaning", "default", "example"), experiment),
        "\n## Site profiles\n",
        "`~/.config/scalelab/sites/NAME.yaml`, or `site: {...}` in an experiment. The",
        "keys of nodes stand again under `node_groups.NAME`, for that group's nodes.\n",
        *_table(("key", "meaning", "schedulers", "default", "example"), site),
        "\n## Price lists\n",
        "What `--prices FILE`, or `prices:` of a site, names: a list of entries, one",
        "for each kind of device. Of several that fit, the one with more of its words",
        "counts.\n",
        *_table(("key", "meaning", "default", "example"), prices),
    ]


def _of_programs(given: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        "## Placeholders of a command\n",
        "In `command` and the values of `env`; each axis of `options` is one more.\n",
        *_table(("placeholder", "is replaced by", "example"), _placeholders(given)),
        "\n## Groups of metrics\n",
        "Names of groups in `metrics.regex`, and of the values of a line of JSON in",
        "the file of `metrics.jsonl` (`$SCALELAB_METRICS` by default). Columns of",
        "`metrics.csv` mean the same; those that count may be called as usual, such as",
        "`global_step`, or are named under `metrics.columns`.\n",
        *_table(("group", "means", "regex", "line of JSON"), _metrics(given)),
        "\n## Presets of metrics\n",
        "`metrics: NAME`, or `metrics: {preset: NAME, ...}` with expressions of your",
        "own, which are added. [Recipes](recipes.md) say how to run each framework.\n",
        *_table(("preset", "reads", "regex", "evaluation"), _presets()),
    ]


def _of_runs() -> list[str]:
    columns = [(_code(c.name), c.kind, c.meaning) for c in COLUMNS]
    return [
        "## Columns\n",
        "Of `run.observations` and of [exports](sharing.md), a row for each attempt.",
        "Further ones are `options.NAME` for each axis of `options`. A value that is",
        "not known is missing; times are UTC, and units stand in the names or here.\n",
        *_table(("column", "holds", "meaning"), columns),
        "",
        f"Outcomes: {', '.join(_code(each) for each in Outcome)}. Of them",
        f"{_outcomes('is_measurement')} are measurements of a configuration, and",
        f"{_outcomes('is_retried')} are no fault of it, so that the trial runs again.",
        "\n## Events\n",
        f"A driver appends to `{EVENTS}` in the run directory, one JSON object a line:",
        f"`version` ({VERSION}), `time` (UTC), `kind`, and the values of that kind.",
        "Readers leave out kinds and values that they do not know.\n",
        *_table(("kind", "values", "when"), _events()),
        "",
        f"`progress` holds {_names_of(Progress)}.",
        "\n## Answers as JSON\n",
        "With `--json` a command prints one object. Keys are added to it, and none is",
        "renamed or dropped, as long as `schema` is the same.\n",
        *_table(("key", "holds"), [(_code(key), text) for key, text in JSON.items()]),
        "",
        f"Kinds of facts: {', '.join(map(_code, SENTENCES))}. "
        "Units are in the names of",
        "their values, such as `step_time_s`.",
        "",
        f"Where there is no answer, it prints `schema` (`{ERROR}`), `kind`, `code`,",
        "`message` and `hint`, which is empty where the message says what to do; the",
        "message is on standard error too. Refusals of one kind have several codes.\n",
        *_table(("kind", "means", "exit code"), _errors()),
    ]


def _placeholders(given: Mapping[str, Mapping[str, str]]) -> list[tuple[str, ...]]:
    of_layout = {
        name: f"with a layout: {meaning}"
        for name, meaning in LAYOUT_PLACEHOLDERS.items()
    }
    known = {**TRIAL_PLACEHOLDERS, **of_layout, **PROCESS_PLACEHOLDERS}
    return [
        (f"`{{{name}}}`", meaning, _code(given["placeholders"][name]))
        for name, meaning in known.items()
    ]


def _metrics(given: Mapping[str, Mapping[str, str]]) -> list[tuple[str, ...]]:
    return [
        (
            f"`{name}`",
            meaning,
            _code(given["regex"][name]),
            _code(given["json"][name]),
        )
        for name, meaning in GROUPS.items()
    ]


def _presets() -> list[tuple[str, ...]]:
    return [
        (
            f"`{row.name}`",
            row.reads,
            "<br>".join(map(_code, row.regex)),
            "<br>".join(map(_code, row.evaluation)),
        )
        for row in PRESETS.values()
    ]


def _outcomes(kind: str) -> str:
    *others, last = [_code(each) for each in Outcome if getattr(each, kind)]
    return f"{', '.join(others)} and {last}"


def _events() -> list[tuple[str, ...]]:
    return [
        (f"`{kind}`", _names_of(event), str(event.__doc__).partition("\n")[0])
        for kind, event in KINDS.items()
    ]


def _errors() -> list[tuple[str, ...]]:
    found: list[type[ScaleLabError]] = [ScaleLabError]
    for known in found:  # grows on the way
        found += known.__subclasses__()
    of_package = [e for e in found[1:] if e.__module__ == ScaleLabError.__module__]
    rows = [
        (_code(each.kind), str(each.__doc__).partition("\n")[0], str(each.exit_code))
        for each in of_package
    ]
    return [*rows, (_code("usage"), "The command line is wrong.", "2")]


def _names_of(event: type[Any]) -> str:
    return ", ".join(_code(each.name) for each in fields(event))


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield _row(titles)
    yield _row(("---",) * len(titles))
    for row in rows:
        yield _row(row)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


if __name__ == "__main__":
    for file, text in pages().items():
        (DOCS / file).write_text(text)
