"""Finished jobs and their logs as the first rows of a run.

``sacct`` is a stand-in that answers as SLURM's; the real one is in ``tests/slurm``.
"""

from pathlib import Path

import pytest
from fake_programs import FakePrograms

from scalelab.cli.main import run
from scalelab.session import load


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Put four jobs where SLURM has them; return their ids by numbers of GPUs."""
    monkeypatch.chdir(tmp_path)
    programs = FakePrograms(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{programs.folder}")
    programs.says("sinfo")
    programs.says("scontrol", status=1)
    rows = []
    times_ms = {1: 100, 2: 104, 4: 109, 8: 118}
    for job, (gpus, step_ms) in enumerate(times_ms.items(), start=11):
        held = f"cpu={gpus},gres/gpu={gpus},gres/gpu:a100={gpus}"
        fields = f"{job}|{job}|vit|COMPLETED|1|{gpus}|{held}|90|1000|1060|130|00:10:00"
        rows.append(f"{fields}|||{tmp_path}")
        lines = [
            f"step {n} samples {n * 32 * gpus} {step_ms} ms/step"
            for n in range(10, 1001, 10)
        ]
        (tmp_path / f"slurm-{job}.out").write_text("\n".join(lines))
    programs.says("sacct", "\n".join(rows).replace("|", "\x1f"))
    return dict(zip(times_ms, range(11, 15), strict=True))


def test_finished_jobs_become_a_run_that_answers(
    jobs: dict[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", "--sacct", ",".join(map(str, jobs.values()))]) == 0
    assert "4 observations are in" in capsys.readouterr().out
    rows = load("runs/jobs-11").observations
    assert rows["world_size"].tolist() == [1, 2, 4, 8]
    assert rows["local_batch_size"].unique().tolist() == [32]
    assert rows["step_time_s"].tolist() == pytest.approx([0.1, 0.104, 0.109, 0.118])
    assert rows["device_name"].unique().tolist() == ["a100"]
    assert rows["queue_wait_s"].unique().tolist() == [60]
    assert load("runs/jobs-11").recommend(samples=1e7).chosen.gpus in jobs
    # the table can be imported again, also with more said
    again = ["import", "runs/jobs-11.csv", "runs/again", "--constant", "precision=bf16"]
    assert run(again) == 0


def test_a_batch_that_is_stated_counts(jobs: dict[int, int], tmp_path: Path) -> None:
    log = tmp_path / "slurm-11.out"
    log.write_text(log.read_text().replace("samples", "things"))
    words = ["import", "--sacct", "11", "runs/one"]
    assert run(words) == 2
    assert not Path("runs").exists()
    assert run([*words, "--constant", "global_batch_size=64"]) == 0
    assert load("runs/one").observations["local_batch_size"].item() == 64


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sacct", "11,99"], "slurm does not know job '99'"),
        (["--sacct", ","], "No job is named."),
        (["--sacct", "11", "--constant", "local_batch_size=x"], "is no count. Write"),
        ([], "import needs a TABLE, or --sacct with the ids of jobs."),
    ],
)
def test_wrong_input_is_refused(
    words: list[str],
    message: str,
    jobs: dict[int, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["import", *words]) in (2, 3)
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_job_without_a_log_is_named(
    jobs: dict[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slurm-11.out").unlink()
    assert run(["import", "--sacct", "11"]) == 2
    assert "11: its log is not where the batch system says" in capsys.readouterr().err
