"""Values of variables, which may be secrets, and a run that a group shares."""

import json
import os
import stat
from pathlib import Path

import pytest
from measured_runs import COMMAND, end_trial, failed, measured_run
from planned_trials import planned_trials

from scalelab.experiment.fingerprint import fingerprint_changes
from scalelab.experiment.hidden import hide, is_hidden, is_recorded_as
from scalelab.experiment.spec import Experiment
from scalelab.inputs.document import parse_document, with_values
from scalelab.records.attempt import AttemptSpec
from scalelab.records.store import RunReader, RunStore
from scalelab.session import load

SECRET = 's3cr\'et: "wörd"'
WITH_KEY = COMMAND + (
    "env:\n"
    "  API_KEY: 's3cr''et: \"wörd\"'  # of the group\n"
    "  OUT: '{trial_dir}'\n"
    "  TAG: tag-of-{seed}\n"
)


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    (tmp_path / "train.py").write_text("")
    return measured_run(tmp_path / "run", WITH_KEY)


def shared_text(run: RunStore) -> str:
    """Return all that others can read of a run."""
    files = [path for path in run.directory.rglob("*") if path.is_file()]
    return "".join(
        path.read_text(errors="replace") for path in files if path.name != "env.json"
    )


def test_others_find_the_name_and_a_hash(run: RunStore) -> None:
    text = shared_text(run)
    assert "API_KEY" in text
    assert "s3cr" not in text
    assert "tag-of" not in text
    recorded = run.fingerprint["env"]
    assert {n: is_hidden(value) for n, value in recorded.items()} == {
        "API_KEY": True,
        "OUT": False,
        "TAG": True,
    }
    assert "# of the group" in run.experiment_text
    path = run.directory / "env.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {"API_KEY": SECRET, "TAG": "tag-of-{seed}"}


def test_the_nodes_get_the_values_and_no_log_shows_them(
    run: RunStore, tmp_path: Path
) -> None:
    asked = Experiment.from_text(WITH_KEY, directory=tmp_path)
    trial = planned_trials(asked)[0]
    begun: list[str] = []
    begin = run.begin

    def remember(spec: AttemptSpec) -> str:
        begun.append(begin(spec))
        return begun[-1]

    run.begin = remember  # type: ignore[method-assign, assignment]
    end_trial(run, asked, trial, failed(trial))
    sent = AttemptSpec.from_json(json.loads(begun[0]))
    assert sent.program == asked.programs()[None]
    assert "s3cr" not in repr(begun)
    assert "s3cr" not in shared_text(run)


def test_the_same_program_has_one_hash_in_a_run(run: RunStore) -> None:
    hashes = {row["code_hash"] for row in run.rows()}
    assert len(hashes) == 1
    (run.directory / "ledger.jsonl").unlink()
    assert {row["code_hash"] for row in RunStore.open(run.directory).rows()} == hashes


def test_a_change_is_noticed_and_not_shown(run: RunStore, tmp_path: Path) -> None:
    def changes(text: str) -> tuple[str, ...]:
        asked = Experiment.from_text(text, directory=tmp_path)
        recorded = run.fingerprint
        now = asked.fingerprint(
            code_hash=recorded["code_hash"], device_type=recorded["device_type"]
        )
        return tuple(map(str, fingerprint_changes(recorded, now)))

    assert changes(WITH_KEY) == ()
    assert changes(WITH_KEY.replace("wörd", "word")) == ("env.API_KEY: another value",)
    renamed = WITH_KEY.replace("TAG:", "LABEL:")
    assert changes(renamed) == ("env.LABEL: added", "env.TAG: removed")


def test_going_on_writes_no_new_version_of_what_stayed(
    run: RunStore, tmp_path: Path
) -> None:
    asked = Experiment.from_text(WITH_KEY, directory=tmp_path)
    recorded = run.fingerprint
    now = asked.fingerprint(
        code_hash=recorded["code_hash"], device_type=recorded["device_type"]
    )
    run.extend(WITH_KEY, now)
    assert os.listdir(run.directory / "experiments") == ["0001.yaml"]
    more = WITH_KEY.replace("seed: 3", "seed: [3, 4]")
    run.extend(more, now)
    assert run.fingerprint == recorded
    assert "seed: [3, 4]" in run.experiment_text
    assert "s3cr" not in shared_text(run)


def test_an_older_run_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    asked = Experiment.from_text(WITH_KEY, directory=tmp_path)
    now = asked.fingerprint(device_type="cuda")
    run = RunStore.create(
        tmp_path / "run", experiment_text=WITH_KEY, fingerprint={"env": {}}
    )
    header = json.loads((run.directory / "run.json").read_text())
    header["versions"][0]["meaning"] = now
    (run.directory / "run.json").write_text(json.dumps(header))
    older = RunStore.open(run.directory)
    older.extend(WITH_KEY, now)
    assert json.loads((run.directory / "run.json").read_text()) == header


def test_the_user_reads_the_values_and_others_do_not(
    run: RunStore, tmp_path: Path
) -> None:
    values = {"API_KEY": SECRET, "OUT": "{trial_dir}", "TAG": "tag-of-{seed}"}
    assert RunReader.open(run.directory).env() == values
    asked = load(run.directory).experiment
    assert asked is not None
    assert asked.env == values
    path = run.directory / "env.json"
    for content in ("", "[]", '{"API_KEY": "another", "TAG": 3}', None):
        if content is None:
            path.unlink()
        else:
            path.write_text(content)
        assert RunReader.open(run.directory).env() == run.fingerprint["env"]
        asked = load(run.directory).experiment
        assert asked is not None
        assert is_recorded_as(SECRET, asked.env["API_KEY"])


@pytest.mark.parametrize(
    "written",
    [
        "env: {A: key, B: x}",
        "env: {B: x, A: 'it''s'}\nname: a",
        'env:\n  A: "key\\n"\n  B: x\nname: a\n',
        "env:\n  A: |\n    first\n    second\n  B: x\nname: a\n",
        "env:\n  B: x\n  A: >-\n    first\n    second\n",
        "env:\n  ? A\n  : key\n  B: x",
        "options: {A: key}\nenv: {A: &anchor key, B: x}\n",
        "\ufeff# ü\nenv: {A: 123, B: x}\n",
    ],
)
def test_a_value_is_replaced_where_it_stands(written: str) -> None:
    before = parse_document(written, source="before")
    after = parse_document(
        with_values(written, ["env"], {"A": hide("it's")}), source="after"
    )
    assert is_recorded_as("it's", after["env"]["A"])
    assert {**after, "env": None} == {**before, "env": None}
    assert after["env"]["B"] == "x"


def test_an_experiment_with_control_characters_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    text = COMMAND.replace(
        "metrics: {regex: '", 'env: {A: "x\\e[1m\\r"}\nmetrics: {regex: "\\r?\\e'
    ).replace("[0-9]+)'}", '[0-9]+)"}')
    run = measured_run(tmp_path / "run", text)
    asked = Experiment.from_text(text, directory=tmp_path)
    assert "\x1b" in asked.env["A"]
    recorded = RunStore.open(run.directory).fingerprint
    now = asked.fingerprint(
        code_hash=recorded["code_hash"], device_type=recorded["device_type"]
    )
    assert fingerprint_changes(recorded, now) == ()
    hashes = {row["code_hash"] for row in run.rows()}
    (run.directory / "ledger.jsonl").unlink()
    again = RunStore.open(run.directory).rows()
    assert {row["code_hash"] for row in again} == hashes


OF_PROGRAMS = COMMAND.replace(
    "command: >-\n", "program:\n- name: first\n  command: >-\n"
)
OF_PROGRAMS = OF_PROGRAMS.replace("  python train", "    python train").replace(
    "  {gradient", "    {gradient"
)
OF_PROGRAMS = OF_PROGRAMS.replace(
    "code: {snapshot",
    "  env: {API_KEY: first-key}  # its own\n"
    "- name: second\n"
    "  command: >-\n"
    "    python train.py {local_batch_size} {gradient_accumulation_steps} {seed}\n"
    "    {learning_rate}\n"
    "  env: {API_KEY: second-key, OUT: '{trial_dir}'}\n"
    "env: {TEAM: all-of-us}\n"
    "code: {snapshot",
)


def test_variables_of_several_programs_are_hidden_each(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    run = measured_run(tmp_path / "run", OF_PROGRAMS)
    text = shared_text(run)
    assert not [key for key in ("first-key", "second-key", "all-of-us") if key in text]
    assert "# its own" in run.experiment_text
    assert (
        parse_document(run.experiment_text, source="x")["program"][1]["env"]["API_KEY"]
        == (run.fingerprint["program.second"]["env"]["API_KEY"])
    )
    asked = load(run.directory).experiment
    assert asked is not None
    assert asked.program is not None
    assert [each.env["API_KEY"] for each in asked.program] == [
        "first-key",
        "second-key",
    ]
    assert asked.env == {"TEAM": "all-of-us"}
    hashes = {(row["options.program"], row["code_hash"]) for row in run.rows()}
    assert len(hashes) == 2


def test_a_program_that_was_left_out_for_a_while_is_still_known(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    run = measured_run(tmp_path / "run", OF_PROGRAMS, ending=None)
    before = run.fingerprint["program.second"]
    end = OF_PROGRAMS.index("- name: second")
    rest = OF_PROGRAMS.index("env: {TEAM")
    shorter = OF_PROGRAMS[:end] + OF_PROGRAMS[rest:]
    run.extend(shorter, Experiment.from_text(shorter).fingerprint())
    assert run.fingerprint["program.second"] == before
    again = OF_PROGRAMS.replace("{seed}\n    {learning", "--more {seed}\n    {learning")
    (change,) = (
        change
        for change in fingerprint_changes(
            run.fingerprint, Experiment.from_text(again).fingerprint()
        )
        if change.key.startswith("program.second")
    )
    assert change.key == "program.second.command"
