"""``scalelab follow`` without a batch system: logs, and what is refused."""

import json
from pathlib import Path

import pytest
from fake_programs import FakePrograms
from measured_runs import EMULATED, measured_run
from sentences import Golden

from scalelab.cli.main import run
from scalelab.records.afterwards.followed import followed_jobs

ROOT = Path(__file__).parents[2]
ASKED = ("--epochs", "10", "--samples-per-epoch", "54305", "--gpus", "2")
OF_P2 = (*ASKED, "--select", "device_name=p2")


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Import a table here; return where followed jobs are kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    table = str(ROOT / "experiments" / "cpu_or_gpu.csv")
    assert run(["import", table, "runs/p2", "--column", "final_metric=val_acc"]) == 0
    return tmp_path / "config" / "scalelab" / "history"


def log(step_ms: float, samples: int = 64, steps: int = 1000) -> str:
    """Write the log of a job on two GPUs."""
    lines = [
        f"step {n} samples {n * samples} {step_ms:.1f} ms/step"
        for n in range(50, steps + 1, 50)
    ]
    Path("job.log").write_text("\n".join(lines))
    return "job.log"


def asked(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert run(["follow", "runs/p2", *words, *OF_P2, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_log_is_held_against_the_answer_and_kept(
    history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = asked(log(480.0), capsys=capsys)
    (compared,) = report["compared"]  # type: ignore[misc]
    assert compared["name"] == "step_time_s"
    assert compared["judgement"] == "above"
    assert compared["true"] == 0.48
    assert report["causes"] == []
    (job,) = followed_jobs(history)
    assert job.was_as_asked
    assert job.values["step_time_s"].true == 0.48
    # again, it counts once, against the answer that did not know of it
    asked(log(480.0), capsys=capsys)
    assert followed_jobs(history) == (job,)


def test_the_next_answer_is_less_sure(
    history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["recommend", "runs/p2", *OF_P2, "--json"]
    widths = []
    for _ in range(2):
        capsys.readouterr()
        assert run(words) == 0
        answer = json.loads(capsys.readouterr().out)
        (row,) = [r for r in answer["rows"] if r["world_size"] == 2]
        widths.append(row["step_time_s"]["hi"] / row["step_time_s"]["value"])
        asked(log(480.0), capsys=capsys)
    assert widths[1] > 1.25 > widths[0]
    assert answer["widened_by"] > 0.2
    # without the history it is as before
    capsys.readouterr()
    assert run([*words, "--no-history"]) == 0
    assert json.loads(capsys.readouterr().out)["widened_by"] == 0


def test_another_batch_is_named_and_teaches_nothing(
    history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = asked(log(190.0, samples=32), capsys=capsys)
    (cause,) = report["causes"]  # type: ignore[misc]
    assert cause == {"kind": "another_batch", "values": {"true": 32.0, "asked": 64}}
    (job,) = followed_jobs(history)
    assert not job.was_as_asked


def test_a_rate_that_may_be_of_one_rank_is_no_step_time(
    history: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    lines = [f"step {n} | 95.1 samples/s" for n in range(50, 1001, 50)]
    Path("job.log").write_text("\n".join(lines))
    report = asked("job.log", capsys=capsys)
    assert report["compared"] == []
    golden(str(report["text"]))
    assert followed_jobs(history) == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["job.log"], "A log is held against the answer of a run: scalelab follow RUN"),
        (["runs/p2", "no.log"], "'no.log' is neither a file nor the id of a job"),
        (["runs/p2", "a", "b"], "follow takes a run and a job, or a job alone"),
        (["17", "--epochs", "3"], "Without a run there is no answer"),
        (["runs/p2", "empty.log", *OF_P2], "No steps are found in empty.log."),
        (["runs/p2", "17", "--log", "no.log", *OF_P2], "no.log cannot be read"),
    ],
)
def test_wrong_input_is_refused(
    words: list[str],
    message: str,
    history: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log(300.0)
    Path("empty.log").write_text("")
    assert run(["follow", *words]) == 2
    assert message in capsys.readouterr().err
    assert not history.exists()


def test_without_a_batch_system_a_job_cannot_be_asked_for(
    history: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    monkeypatch.setenv("PATH", "")
    assert run(["follow", "17"]) == 3
    golden(capsys.readouterr().err)


ENDED = """Job Id: 17.server
    Job_Name = vit
    resources_used.mem = 0kb
    resources_used.walltime = 00:00:00
    job_state = F
    Exit_status = 3
    Resource_List.ncpus = 2
    Resource_List.nodect = 1
"""


def test_the_batch_system_is_that_of_the_site_or_has_such_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    programs = FakePrograms(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(programs.folder))
    for name in ("sinfo", "pbsnodes"):  # both clients are installed
        programs.says(name)
    programs.says("qstat", ENDED)
    programs.says("sacct", errors="no such cluster", status=1)
    assert run(["follow", "17"]) == 3  # SLURM has such ids too
    assert run(["follow", "17.server"]) == 0
    assert "ended with status 3" in capsys.readouterr().out

    site = "site: {name: hpc, scheduler: pbs, device_type: cpu, gpus_per_node: 2}"
    text = "\n".join([*EMULATED.splitlines()[:-1], site, ""])
    measured_run(tmp_path / "runs" / "small", text)
    assert run(["follow", "runs/small", "17"]) == 0
    assert "ended with status 3" in capsys.readouterr().out


def test_a_number_is_a_job_and_a_path_a_file(
    history: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    Path(log(480.0)).rename("17")
    assert asked("./17", capsys=capsys)["job"] == "./17"
    monkeypatch.setenv("PATH", "")
    assert run(["follow", "runs/p2", "17", *OF_P2]) == 3
    golden(capsys.readouterr().err)
    assert run(["follow", "runs/p2", "9" * 300, *OF_P2]) == 3


def test_a_job_that_slurm_knows_alone_says_what_it_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    programs = FakePrograms(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(programs.folder))
    programs.says("sinfo")
    programs.says("scontrol", status=1)
    fields = "17|17|vit|TIMEOUT|2|16|cpu=16,gres/gpu=4|60|1000|1060|3600|08:00:00"
    programs.says("sacct", f"{fields}|||/home/me".replace("|", "\x1f"))
    assert run(["follow", "17"]) == 0
    golden(*capsys.readouterr().out.splitlines()[:4])
