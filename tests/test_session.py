import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from measured_runs import COMMAND, EMULATED, completed, end_trial, failed, measured_run
from planned_trials import planned_trials
from sentences import Golden, refused

import scalelab
from scalelab.errors import FitError, SpecError, StoreError
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.recommend.advice import Considered, consider
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.question.objective import RunSite
from scalelab.records.attempt import AttemptResult
from scalelab.session import import_table, load
from scalelab.site.choice import sites_directory


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path.with_name("config")))
    return tmp_path


def test_a_run_knows_what_was_asked(here: Path) -> None:
    measured_run(here / "runs" / "small")
    run = scalelab.load("runs/small")
    assert run.name == "small"
    assert run.directory == here / "runs" / "small"
    assert run.experiment_text == EMULATED
    assert run.experiment is not None
    assert run.experiment.name == "small"
    assert run.job is not None
    assert run.job.samples == 100_000
    assert len(run.observations) == 8
    assert run.observations is run.observations


def test_a_law_is_fitted_by_name(here: Path) -> None:
    run = load(measured_run(here / "run").directory)
    predicted = run.fit("amdahl").predict(
        pd.DataFrame(
            {
                "world_size": [2],
                "num_nodes": [1],
                "local_batch_size": [8],
                "gradient_accumulation_steps": [1],
            }
        )
    )
    assert predicted["step_time_s"].iloc[0] == pytest.approx(0.028, rel=0.2)
    with pytest.raises(SpecError, match="murphy"):
        run.fit("murphy")


@pytest.mark.slow
def test_an_answer_or_why_there_is_none(here: Path) -> None:
    run = load(measured_run(here / "run").directory)
    answer = run.answer()
    assert isinstance(answer, Recommendation)
    assert answer.chosen.world_size == 2
    nothing = load(measured_run(here / "nothing", ending=failed).directory)
    assert isinstance(nothing.answer(), FitError)


@pytest.mark.parametrize("options", [{}, {"gpus": [4]}])
def test_an_empty_run_answers_nothing(here: Path, options: Any) -> None:
    run = load(measured_run(here / "run", ending=None).directory)
    with pytest.raises(FitError):
        run.recommend(**options)


@pytest.mark.slow
def test_money_and_time_limit_the_answer(here: Path) -> None:
    (here / "train.py").write_text("")
    run = load(measured_run(here / "run", COMMAND).directory)
    free, tight = run.recommend(), run.recommend(max_time="1h")
    assert tight.chosen.time_s.value < 3600
    assert free.limits == ()
    cheap = run.recommend(max_cost_usd=1e6, price_per_gpu_hour_usd=2.0)
    assert cheap.chosen.cost is not None
    assert cheap.chosen.cost.value == pytest.approx(2 * cheap.chosen.gpu_hours.value)


def profile(name: str, text: str) -> None:
    """Write a profile where sites are found."""
    path = sites_directory() / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"device_type: cpu\ngpus_per_node: 2\n{text}")


@pytest.mark.slow
def test_the_price_is_the_one_of_the_site_the_run_was_swept_on(here: Path) -> None:
    profile("alpine", "price_per_gpu_hour: 3")
    store = measured_run(here / "run")
    assert load(store.directory).recommend().price is None
    store.extend(store.experiment_text, store.fingerprint, site="alpine")

    found = load(store.directory).recommend(max_cost_usd=1e6)
    hours = found.chosen.gpu_hours.value
    assert found.chosen.cost is not None
    assert found.chosen.cost.value == pytest.approx(3 * hours)
    assert "by the profile of site alpine" in str(found.price)

    profile("alpine", "price_per_gpu_hour: 5")
    now = load(store.directory).recommend()
    assert now.chosen.cost is not None
    assert now.chosen.cost.value == pytest.approx(5 * hours)

    given = load(store.directory).recommend(price_per_gpu_hour_usd=2)
    assert given.chosen.cost is not None
    assert given.chosen.cost.value == pytest.approx(2 * hours)
    assert str(given.price).endswith("as given.")


@pytest.mark.slow
def test_a_price_list_counts_for_more_than_the_price_of_the_site(
    here: Path, golden: Golden
) -> None:
    of_site, asked = here / "site.yaml", here / "asked.yaml"
    of_site.write_text("- {on_demand: 4eur, date: 2020-01-31, source: the board}\n")
    asked.write_text("- {device: H100, on_demand: 9}\n- {on_demand: 5, spot: 2}\n")
    profile("alpine", f"price_per_gpu_hour: 3\nprices: {of_site}")
    store = measured_run(here / "run")
    store.extend(store.experiment_text, store.fingerprint, site="alpine")
    run = load(store.directory)

    listed = run.recommend()
    golden(str(listed.price))
    assert re.search(r"is of 2020-01-31, \d,\d+ days ago: look", " ".join(listed.notes))
    assert listed.to_json()["rows"][0]["cost_eur"]["value"] == pytest.approx(
        4 * listed.rows[0].gpu_hours.value
    )
    given = run.recommend(prices=asked)
    golden(str(given.price))
    golden(run.recommend(prices=asked, price="6usd/node-h").price)
    with refused("several_currencies", "eur", "usd"):
        run.recommend(max_cost="20usd")
    of_site.unlink()
    with refused("unreadable", "site.yaml", "No such file"):
        run.recommend()


GROUPED = COMMAND.replace(
    "site: {name: hpc, scheduler: slurm, device_type: cuda, gpus_per_node: 4}",
    """node_group: [a100, h100]
site:
  {name: hpc, scheduler: slurm, device_type: cuda, gpus_per_node: 4, node_groups: {
    a100: {partition: old, price_per_gpu_hour: 1}, h100: {partition: new}}}""",
)


@pytest.mark.slow
def test_the_job_script_asks_for_the_group_of_the_answer(here: Path) -> None:
    (here / "train.py").write_text("")

    def ending(trial: Trial) -> AttemptResult:
        plain = completed(trial)
        if trial.node_group == "a100":
            return plain
        step_s = plain.measurements["step_time_s"] / 3
        return completed(trial, step_time_s=step_s)

    run = load(measured_run(here / "run", GROUPED, ending).directory)
    found = run.recommend()
    assert found.node_group == "h100"
    assert list(found.elsewhere) == ["a100"]
    assert load(here / "run").recommend() == found, "it is kept"
    assert "--partition=new" in run.job_script(found)
    older = run.recommend(select={"node_group": "a100"})
    assert "--partition=old" in run.job_script(older)
    assert older.chosen.cost is not None
    profile("alike", "scheduler: slurm")
    with refused("no_node_groups", "node_group='a100'", "'alike'"):
        run.job_script(older, "alike")
    assert run.write_report().exists()


@pytest.mark.slow
def test_figures_and_report(here: Path) -> None:
    run = load(measured_run(here / "run").directory)
    assert len(run.figures.throughput.data) > 0
    path = run.write_report()
    assert path == here / "run" / "report.html"
    text = path.read_text()
    assert "sample_time_s: 2.0e-3" in text
    path.write_text("old")
    run.write_report()
    assert path.read_text().startswith("<!DOCTYPE html>"), "it is replaced whole"
    with pytest.raises(StoreError, match=re.escape(str(here / "no" / "r.html"))):
        run.write_report(here / "no" / "r.html")


@pytest.mark.slow
def test_the_report_of_a_run_without_an_answer_says_why(here: Path) -> None:
    def ending(trial: Any) -> Any:
        return failed(trial) if trial.world_size == 1 else completed(trial)

    nothing = load(measured_run(here / "nothing", ending=failed).directory)
    text = nothing.write_report().read_text()
    assert "no such file" in text
    half = load(measured_run(here / "half", ending=ending).directory)
    elsewhere = half.write_report(here / "report.html").read_text()
    assert not re.search(r'href="[^"]*trials/', elsewhere), "it is read elsewhere"
    assert re.search(r"In the run's directory: <code>trials/\w+/001/", elsewhere)


@pytest.mark.slow
def test_a_run_is_read_where_its_kinds_are_not_installed_any_more(here: Path) -> None:
    (here / "train.py").write_text("")
    for name, text, gone in (
        ("launched", COMMAND, "launcher: toyrun\nsource: cutoff\n"),
        ("trained", EMULATED, "parallelism: paired\n"),
    ):
        store = measured_run(here / name, text)
        store.extend(f"{text}\n{gone}", store.fingerprint)
        run = load(store.directory)
        assert run.status().num_missing is None
        assert run.recommend().chosen.time_s.value > 0
        assert run.write_report().exists()


@pytest.mark.slow
def test_an_imported_table_has_no_experiment(here: Path) -> None:
    Path("table.csv").write_text(
        "gpus,step_time_s,local_batch_size\n1,0.1,8\n2,0.12,8\n4,0.15,8\n8,0.2,8\n"
    )
    run = import_table("table.csv", "runs/table", constant={"num_nodes": "1"})
    assert run.experiment is None
    assert run.job is None
    assert run.status().num_missing is None
    answer = run.recommend(job={"samples": 1e6})
    with refused("script_of_table", "table"):
        run.job_script(answer)
    assert run.observations["kind"].eq("imported").all()


def test_a_job_may_be_wrong(here: Path) -> None:
    run = load(measured_run(here / "run").directory)
    with pytest.raises(SpecError, match=r"job: .*steps"):
        run.recommend(job={"steps": 3, "samples": 3})
    with pytest.raises(SpecError, match="colour"):
        run.recommend(job={"colour": 3})


def test_what_is_no_run_is_refused(here: Path) -> None:
    with pytest.raises(StoreError, match="is not a run directory"):
        scalelab.load("runs/absent")


def test_a_sweep_that_is_done_is_loaded(here: Path) -> None:
    measured_run(here / "runs" / "small")
    Path("experiment.yaml").write_text(EMULATED)
    run = scalelab.sweep("experiment.yaml")
    assert len(run.observations) == 8
    elsewhere = scalelab.sweep("experiment.yaml", directory="runs/small")
    assert elsewhere.directory == run.directory


class TestWhereMeasurementsCanBeMade:
    def machine(self, here: Path, text: str) -> object:
        (here / "train.py").write_text("")
        run = load(measured_run(here / "run", text).directory)
        home = RunSite.by_group(run.experiment)[None]
        return home.machine(run.observations["world_size"].to_numpy(float))

    def test_a_local_site(self, here: Path) -> None:
        machine = self.machine(here, EMULATED)
        assert str(machine) == "1x2"

    def test_declared_nodes_count(self, here: Path) -> None:
        text = EMULATED.replace("gpus_per_node: 2", "gpus_per_node: 2, nodes: 4")
        assert str(self.machine(here, text)) == "4x2"

    def test_nodes_on_one_machine_do_not(self, here: Path) -> None:
        text = EMULATED.replace("gpus_per_node: 2", "gpus_per_node: 2, nodes: 4")
        workload = "{name: emulated, sample_time_s: 2.0e-3, fixed_time_s: 10.0e-3}"
        assert str(self.machine(here, text.replace(workload, "digits_mlp"))) == "1x2"

    def test_a_batch_system_has_no_limit(self, here: Path) -> None:
        assert self.machine(here, COMMAND) is None

    def test_a_machine_that_is_too_small_was_not_the_one(self, here: Path) -> None:
        store = measured_run(here / "run")
        path = store.directory / "experiments" / "0001.yaml"
        path.write_text(EMULATED.replace("gpus_per_node: 2", "gpus_per_node: 1"))
        run = load(store.directory)
        home = RunSite.by_group(run.experiment)[None]
        sizes = run.observations["world_size"].to_numpy(float)
        assert home.machine(sizes) is None

    @pytest.mark.parametrize("site", ["site: elsewhere", "site: {device_type: cuda}"])
    def test_a_site_that_is_not_here(
        self, here: Path, site: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        store = measured_run(here / "run")
        text = EMULATED.replace("site: {device_type: cpu, gpus_per_node: 2}", site)
        (store.directory / "experiments" / "0001.yaml").write_text(text)
        assert RunSite.by_group(load(store.directory).experiment) == {}


@pytest.mark.slow
def test_further_devices_are_packed_on_the_nodes_the_site_declares(here: Path) -> None:
    text = COMMAND.replace("gpus_per_node: 4", "gpus_per_node: 8")
    (here / "train.py").write_text("")
    run = load(measured_run(here / "run", text.replace("4, 8, 16]", "4]")).directory)
    assert run.observations["gpus_per_node"].max() == 4
    rows = run.recommend().rows
    assert [row.allocation for row in rows][-3:] == ["1x4", "1x8", "2x8"]
    asked = run.recommend(gpus=[6])
    assert "1x6" in [row.allocation for row in asked.rows]


class TestAQuestionAskedAgain:
    """It is answered from the run's cache, where nothing can have changed."""

    @pytest.fixture
    def num_fits(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        fits: list[str] = []

        def counted(*args: object, **options: object) -> Considered:
            fits.append("fit")
            return consider(*args, **options)

        monkeypatch.setattr("scalelab.recommend.by_device.consider", counted)
        return fits

    @pytest.mark.slow
    def test_is_not_fitted_again(self, here: Path, num_fits: list[str]) -> None:
        path = measured_run(here / "run").directory
        first, second = load(path).recommend(), load(path).recommend(job={})
        assert repr(second) == repr(first)
        assert len(num_fits) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "question",
        [
            {"max_time": "4h"},
            *(
                pytest.param(question, marks=pytest.mark.repetition)
                for question in (
                    {"confidence": 0.8},
                    {"job": {"samples": 5}},
                    {"gpus": [1]},
                    {"select": {"workload": "emulated"}},
                    {"law": "amdahl"},
                )
            ),
        ],
    )
    def test_is_another_question_with_any_other_word(
        self, here: Path, num_fits: list[str], question: dict[str, object]
    ) -> None:
        path = measured_run(here / "run").directory
        load(path).recommend()
        asked = load(path).recommend(**question)
        assert len(num_fits) == 2
        assert repr(load(path).recommend(**question)) == repr(asked)
        assert len(num_fits) == 2

    @pytest.mark.slow
    def test_is_answered_anew_after_a_change(
        self, here: Path, num_fits: list[str]
    ) -> None:
        store = measured_run(here / "run")
        load(store.directory).recommend()
        asked = Experiment.from_text(EMULATED)
        trial = planned_trials(asked)[0]
        end_trial(store, asked, trial, failed(trial))
        assert load(store.directory).recommend().num_observations == 9
        text = EMULATED.replace("gpus_per_node: 2", "gpus_per_node: 4")
        (store.directory / "experiments" / "0001.yaml").write_text(text)
        load(store.directory).recommend()
        assert len(num_fits) == 3

    @pytest.mark.slow
    def test_is_not_kept_as_newer_than_what_it_was_made_from(
        self, here: Path, num_fits: list[str]
    ) -> None:
        store = measured_run(here / "run")
        early = load(store.directory)
        assert len(early.observations) == 8
        asked = Experiment.from_text(EMULATED)
        trial = planned_trials(asked)[0]
        end_trial(store, asked, trial, failed(trial))
        assert early.recommend().num_observations == 8
        assert load(store.directory).recommend().num_observations == 9

    def test_needs_no_library_of_arrays(self, here: Path) -> None:
        path = measured_run(here / "run").directory
        load(path).recommend()
        script = (
            "import sys; from scalelab.session import load; load('run').recommend(); "
            "assert not {'numpy', 'pandas', 'scipy', 'pyarrow'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

    @pytest.mark.slow
    def test_of_a_table_is_kept_as_well(self, here: Path, num_fits: list[str]) -> None:
        Path("table.csv").write_text(
            "world_size,num_nodes,local_batch_size,step_time_s\n1,1,8,0.1\n2,1,8,0.11\n"
        )
        path = import_table("table.csv", "table").directory
        for _ in range(2):
            load(path).recommend(job={"samples": 1000})
        assert len(num_fits) == 1

    @pytest.mark.slow
    def test_of_a_target_is_fitted_each_time(
        self, here: Path, num_fits: list[str]
    ) -> None:
        path = measured_run(here / "run").directory
        attempt = next(path.glob("trials/*/001"))
        evaluation = {"event": "evaluation", "samples": 8, "val_loss": 2.0}
        (attempt / "stream.jsonl").write_text(json.dumps(evaluation) + "\n")
        for _ in range(2):
            load(path).recommend(target="val_loss <= 1")
        assert len(num_fits) == 2


@pytest.mark.slow
def test_an_answer_says_how_many_trials_are_to_come(here: Path) -> None:
    store = measured_run(here / "begun", ending=None)
    asked = Experiment.from_text(EMULATED, directory=here)
    first, *rest = planned_trials(asked)
    end_trial(store, asked, first, completed(first))
    told = f"The sweep is not complete: {len(rest)} trials to come."
    assert told in load(here / "begun").recommend().notes
    for trial in rest:
        end_trial(store, asked, trial, completed(trial))
    assert not [
        note
        for note in load(here / "begun").recommend().notes
        if "not complete" in note
    ]


def test_the_status_counts_trials_and_names_reasons(here: Path) -> None:
    def ending(trial: Any) -> Any:
        return failed(trial) if trial.world_size == 1 else completed(trial)

    status = load(measured_run(here / "run", ending=ending).directory).status()
    assert status.outcomes == {Outcome.COMPLETED: 4, Outcome.FAILED: 4}
    assert status.used_gpu_s == 4 * 20 + 4 * 2
    assert status.driver is None
    assert status.running == ()
    assert status.num_missing == 0
    assert len(status.reasons) == 4
    assert status.reasons[0].endswith("no such file.")


def test_the_status_counts_what_an_extension_adds(here: Path) -> None:
    store = measured_run(here / "run")
    store.extend(EMULATED.replace("[4, 8]", "[4, 8, 16]"), store.fingerprint)
    assert load(store.directory).status().num_missing == 4
    header = json.loads((store.directory / "run.json").read_text())
    assert len(header["versions"]) == 2
