"""Presets stand for what a user could have written under ``metrics``."""

from __future__ import annotations

import pytest
import yaml

from scalelab.experiment.presets import PRESETS
from scalelab.experiment.program import (
    CommandProgram,
    MetricsSource,
    program_from_json,
    program_to_json,
)
from scalelab.experiment.spec import Experiment
from scalelab.records.observations import program_hash


def with_metrics(metrics: object) -> Experiment:
    values = {
        "name": "mine",
        "command": "python train.py {local_batch_size}",
        "metrics": metrics,
        "gpus": 1,
        "local_batch_size": 8,
    }
    return Experiment.from_text(yaml.safe_dump(values))


def source_of(metrics: object) -> MetricsSource:
    program = with_metrics(metrics).programs()[None]
    assert isinstance(program, CommandProgram)
    return program.metrics


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_could_have_been_written(name: str) -> None:
    row = PRESETS[name]
    written = {"regex": list(row.regex), "evaluation": list(row.evaluation)}
    for short in (name, {"preset": name}):
        assert source_of(short) == source_of(written)
        assert with_metrics(short).fingerprint() == with_metrics(written).fingerprint()
    assert source_of(name).regex == row.regex
    assert source_of(name).evaluation == row.evaluation


def test_own_expressions_come_after_those_of_a_preset() -> None:
    own = {"preset": "nanogpt", "regex": r"mfu (?P<mfu>\S+)%", "evaluation": ["a", "b"]}
    row, source = PRESETS["nanogpt"], source_of(own)
    assert source.regex == (*row.regex, r"mfu (?P<mfu>\S+)%")
    assert source.evaluation == (*row.evaluation, "a", "b")


def test_a_file_is_one_of_three_kinds() -> None:
    table = {"csv": "{trial_dir}/m.csv", "columns": {"step": "n"}}
    assert source_of(table) == MetricsSource(**table)
    assert source_of(table).path == "{trial_dir}/m.csv"
    assert source_of({"tensorboard": "a"}).path == "a"
    assert with_metrics(table).fingerprint()["metrics"] == {
        "jsonl": None,
        "regex": None,
        **table,
    }


def test_a_program_carries_what_the_job_says_of_its_data() -> None:
    values = {
        "name": "mine",
        "command": "python train.py {local_batch_size}",
        "gpus": 1,
        "local_batch_size": 8,
    }
    job = {"tokens": 1e9, "sequence_length": 512, "samples_per_epoch": 1000}
    plain = Experiment.from_text(yaml.safe_dump(values)).programs()[None]
    told = Experiment.from_text(yaml.safe_dump({**values, "job": job})).programs()[None]
    assert isinstance(told, CommandProgram)
    assert told.tokens_per_sample == 512
    assert program_hash(told) == program_hash(plain)
    written = program_to_json(told)
    assert program_from_json(written) == told
    assert program_from_json({**written, "samples_per_epoch": 1000}) == told, "as once"


def test_fingerprints_without_a_preset_do_not_speak_of_it() -> None:
    metrics = with_metrics({"regex": "(?P<step>.)"}).fingerprint()["metrics"]
    assert metrics == {"jsonl": None, "regex": ["(?P<step>.)"]}


def test_editors_know_the_presets() -> None:
    section = Experiment.json_schema()["$defs"]["Metrics"]
    short, full = section["anyOf"]
    assert short == {"enum": list(PRESETS)}
    assert full["properties"]["preset"]["enum"] == [*PRESETS, None]
