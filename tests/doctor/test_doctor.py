import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_programs import FakePrograms

from scalelab.cli import main
from scalelab.doctor import site as doctor
from scalelab.doctor.site import Finding, Health, examine
from scalelab.errors import LaunchError, install_command
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.trainers import TRAINERS, Trainer
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptResult

MPI_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


@pytest.mark.slow
def test_this_machine_can_run_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MPI_AS_ROOT:
        monkeypatch.setenv(name, "1")
    findings = {finding.subject: finding for finding in examine(tmp_path / "runs")}
    assert list(findings) == [
        "Python",
        "devices",
        "neighbours",
        "torch",
        "distributed",
        "frameworks",
        "run directory",
        "multi-rank trial",
        "batch system",
    ]
    broken = [f for f in findings.values() if f.health is Health.BROKEN]
    assert broken == []
    assert "2 ranks met, stepped and ended" in findings["multi-rank trial"].text
    assert findings["run directory"].text.startswith(f"{tmp_path} can be written")
    assert sys.executable in findings["Python"].text
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_two_ranks", lambda trainer: "2 ranks met")


def found(runs: Path, subject: str) -> Finding:
    return next(each for each in examine(runs) if each.subject == subject)


@pytest.mark.usefixtures("no_ranks")
def test_what_open_mpi_wants_of_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_programs = FakePrograms(tmp_path / "programs")
    monkeypatch.setenv("PATH", str(fake_programs.folder))
    fake_programs.says("mpirun", "mpirun (Open MPI) 4.1.4\n")
    first, second = MPI_AS_ROOT
    monkeypatch.setenv(first, "1")
    monkeypatch.delenv(second, raising=False)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 0)
    finding = found(tmp_path, "mpirun")
    assert finding.health is Health.NOTE
    assert finding.text == (
        "Open MPI starts nothing as root unless both are set; in experiments with "
        f"launcher: mpirun write env: {{{first}: 1, {second}: 1}}"
    )
    monkeypatch.setenv(second, "1")
    assert "mpirun" not in [each.subject for each in examine(tmp_path)]
    monkeypatch.delenv(second)
    fake_programs.says("mpirun", "HYDRA build details:\n")
    assert "mpirun" not in [each.subject for each in examine(tmp_path)]
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    fake_programs.says("mpirun", "mpirun (Open MPI) 4.1.4\n")
    assert "mpirun" not in [each.subject for each in examine(tmp_path)]


@pytest.mark.usefixtures("no_ranks")
class TestWhatIsMissing:
    @pytest.mark.parametrize(
        ("package", "extra", "health"),
        [("torch", "train", Health.NOTE), ("distributed", "run", Health.BROKEN)],
    )
    def test_a_package(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        package: str,
        extra: str,
        health: Health,
    ) -> None:
        def refuse(name: str) -> None:
            raise ModuleNotFoundError(f"No module named {name!r}")

        monkeypatch.setattr(doctor, "import_module", refuse)
        finding = found(tmp_path, package)
        assert finding.health is health
        assert install_command(extra) in finding.text

    def test_a_framework(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        why = "Horovod 0.28.1 cannot be built on torch 2.13"
        assert why in found(tmp_path, "frameworks").text
        record = tmp_path / "horovod-0.30.0.dist-info" / "METADATA"
        record.parent.mkdir()
        record.write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.30.0\n")
        monkeypatch.syspath_prepend(tmp_path)
        finding = found(tmp_path, "frameworks")
        assert "horovod 0.30.0" in finding.text
        assert why not in finding.text

    def test_the_right_to_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(**_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("tempfile.TemporaryFile", refuse)
        finding = found(tmp_path, "run directory")
        assert finding.health is Health.BROKEN
        assert "cannot be written: Permission denied. Sweep from" in finding.text

    def test_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 2**70)
        assert found(tmp_path, "run directory").health is Health.NOTE

    def test_a_gpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "num_visible_gpus", lambda: 0)
        assert "trials run on cores" in found(tmp_path, "devices").text
        monkeypatch.setattr(doctor, "num_visible_gpus", lambda: 4)
        assert found(tmp_path, "devices").text.startswith("4 GPUs, ")
        assert "trials run on cores" not in found(tmp_path, "devices").text

    @pytest.mark.parametrize(
        ("present", "text"),
        [
            ((), "no sbatch or qsub found"),
            (("qsub",), "qsub found"),
            (("sbatch", "qsub"), "sbatch, qsub found"),
        ],
    )
    def test_a_batch_system(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        present: tuple[Any, ...],
        text: str,
    ) -> None:
        monkeypatch.setattr(
            "shutil.which", lambda name: f"/bin/{name}" if name in present else None
        )
        finding = found(tmp_path, "batch system")
        assert (finding.health, finding.text) == (Health.NOTE, text)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (LaunchError("no rank met"), "no rank met"),
        (OSError("no process left"), "no process left"),
        (
            ImportError("libtorch.so: no such file"),
            "not tried: libtorch.so: no such file",
        ),
    ],
)
def test_ranks_that_do_not_meet_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    def refuse(trainer: Trainer) -> str:
        raise error

    monkeypatch.setattr(doctor, "_two_ranks", refuse)
    finding = found(tmp_path, "multi-rank trial")
    assert (finding.health, finding.text) == (Health.BROKEN, text)


def test_a_trial_that_ends_badly_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    result = AttemptResult(outcome=Outcome.STALLED, reason="No step for 30 s.")
    monkeypatch.setattr(NodeAgent, "__enter__", lambda self: self)
    monkeypatch.setattr(NodeAgent, "__exit__", lambda self, *error: None)
    monkeypatch.setattr(NodeAgent, "run", lambda self, *arguments: result)
    with pytest.raises(LaunchError, match=r"^stalled: No step for 30 s\.$"):
        doctor._two_ranks(TRAINERS["torch"])


@pytest.mark.parametrize(
    ("health", "code", "last"),
    [
        (Health.OK, 0, "Sweeps can run here: scalelab sweep EXPERIMENT.yaml"),
        (Health.NOTE, 0, "Sweeps can run here: scalelab sweep EXPERIMENT.yaml"),
        (Health.BROKEN, 1, "Sweeps cannot run here until what is broken is repaired."),
    ],
)
def test_the_command_says_whether_sweeps_can_run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    health: Health,
    code: int,
    last: str,
) -> None:
    def findings(runs: Path) -> Iterator[Finding]:
        yield Finding(subject="torch", health=health, text="it is there")

    monkeypatch.setattr(doctor, "examine", findings)
    assert main.run(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{health:<7} torch             it is there", last]
