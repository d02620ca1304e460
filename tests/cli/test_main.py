import doctest
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from measured_runs import measured_run

from scalelab import __main__ as entry
from scalelab import errors
from scalelab.cli import init_command, main, progress

MISSING = errors.MissingExtraError("A sweep", "train")


@pytest.mark.parametrize("name", main.COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_explains_itself(
    scalelab: Callable[..., Any], name: str, flag: str
) -> None:
    ended = scalelab(name, flag)
    assert ended.code == 0
    assert ended.err == ""
    assert ended.out.startswith(f"Usage: scalelab {name} [OPTIONS]")
    assert main.COMMANDS[name].rstrip(".") in ended.out
    assert ended.out.isascii()
    assert max(map(len, ended.out.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_without_a_command_the_commands_are_listed(
    scalelab: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    ended = scalelab(*arguments)
    assert ended.code == 0
    assert all(summary in ended.out for summary in main.COMMANDS.values())


@pytest.mark.parametrize("name", [main.SITE])
def test_without_a_command_those_of_a_group_are_listed(
    scalelab: Callable[..., Any], name: str
) -> None:
    ended = scalelab(name)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == scalelab(name, "--help").out
    assert "..." not in ended.out.split("Commands:")[1]


def test_the_version_is_told(scalelab: Callable[..., Any]) -> None:
    ended = scalelab("--version")
    assert (ended.code, ended.out) == (0, f"scalelab {version('scalelab')}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["swep"], "No such command 'swep'"),
        (["--quiet"], "No such option"),
        (["sweep"], "'EXPERIMENT'. Try: scalelab sweep --help"),
        (["plan", "a", "b"], "unexpected extra argument"),
        (["sweep", "a", "--site"], "'--site' requires an argument"),
        (["recommend", "r", "--epochs", "many"], "Invalid value for '--epochs'"),
        (["recommend", "r", "--confidence", ""], "Invalid value for '--confidence'"),
        (["sweep", "--yes=1", "a"], "--yes"),
        (["sweep", "a\nb\x1b[31m"], "a b?[31m cannot be read"),
    ],
)
def test_wrong_usage_is_one_paragraph(
    scalelab: Callable[..., Any], arguments: list[str], message: str
) -> None:
    ended = scalelab(*arguments)
    ended.assert_refused()
    assert message in ended.err


def raising(error: BaseException) -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)

    @app.command()
    def run() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.SpecError("wrong\n  input"), 2, "Error: wrong input\n"),
        (errors.StoreError("no run"), 2, "Error: no run\n"),
        (
            errors.MissingExtraError("A sweep", "train"),
            2,
            errors.install_command("train"),
        ),
        (errors.ClusterError("no node"), 3, "Error: no node\n"),
        (errors.LaunchError("no rank"), 3, "Error: no rank\n"),
        (errors.NotIdentifiableError("x", "Measure."), 2, "x is not identifiable."),
        (typer.Exit(4), 4, ""),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (typer.Abort(), 130, "Interrupted.\n"),
    ],
)
def test_every_error_has_its_exit_code(
    scalelab: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    error: Any,
    code: int,
    message: str,
) -> None:
    monkeypatch.setattr(main, "build_app", lambda *asked: raising(error))
    ended = scalelab("run")
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err


def test_a_mistake_of_ours_is_shown_whole(
    scalelab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "build_app", lambda *asked: raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        scalelab("run")


def test_a_connection_that_breaks_is_not_taken_for_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        main, "build_app", lambda *asked: raising(BrokenPipeError("node"))
    )
    monkeypatch.setattr("sys.argv", ["scalelab", "run"])
    with pytest.raises(BrokenPipeError, match="node"):
        main.main()


@pytest.fixture
def own_interrupt() -> Iterator[None]:
    """Put what Ctrl-C does back as it was."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_import(*asked: str) -> None:
    """Do as pydantic does: report a Ctrl-C as an error of its own."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt as error:
        raise ValueError("Error building validator") from error


def test_ctrl_c_that_comes_as_another_error_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(main, "build_app", interrupted_import)
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == errors.INTERRUPTED
    assert capsys.readouterr().err == "Interrupted.\n"
    assert signal.getsignal(signal.SIGINT) == before


class Interrupting:
    """Is interrupted where no exception can be raised."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)


class Failing:
    def __init__(self, *asked: str) -> None: ...

    def __del__(self) -> None:
        raise ZeroDivisionError


def test_ctrl_c_is_not_dropped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build_app(*asked: str) -> None:
        Interrupting()
        time.sleep(60)

    gc.collect()  # what other tests dropped is told of before, not in between
    capsys.readouterr()
    monkeypatch.setattr(main, "build_app", build_app)
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == errors.INTERRUPTED
    assert capsys.readouterr().err == "Interrupted.\n"


def test_other_errors_that_are_dropped_are_told_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: told.append(each.exc_type))
    monkeypatch.setattr(main, "build_app", Failing)
    monkeypatch.setattr(main.typer.main, "get_command", lambda app: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main.main()
    assert told == [ZeroDivisionError]


def test_ctrl_c_stays_ignored_in_the_background(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own_interrupt: None,
) -> None:
    def build_app(*asked: str) -> typer.Typer:
        os.kill(os.getpid(), signal.SIGINT)
        return raising(errors.SpecError("wrong"))

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(main, "build_app", build_app)
    monkeypatch.setattr("sys.argv", ["scalelab", "run"])
    with pytest.raises(SystemExit):
        entry.main()
    assert capsys.readouterr().err == "Error: wrong\n"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.repetition
@pytest.mark.slow
def test_ctrl_c_at_any_moment_of_the_start_shows_no_traceback(
    command: list[str], here: Path
) -> None:
    # Python's own start is not ours to guard: the line tells when that is over.
    run = "runpy.run_module('scalelab', run_name='__main__', alter_sys=True)"
    program = [command[0], "-c", f"import runpy; print(flush=True); {run}"]
    started_s = time.monotonic()
    subprocess.run([*program, "plan", "absent.yaml"], capture_output=True, timeout=60)
    took_s = time.monotonic() - started_s
    for moment in range(12):
        with subprocess.Popen(
            [*program, "plan", "absent.yaml"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            while process.poll() is None and _catches_interrupts(process.pid):
                time.sleep(0.0005)
            time.sleep(took_s * moment / 10)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        assert "Traceback" not in err
        assert process.returncode in (-signal.SIGINT, errors.INTERRUPTED, 2)


def _catches_interrupts(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << signal.SIGINT - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["main", "recommend_resources"])
def test_the_entry_points_exit(
    name: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own_interrupt: None,
) -> None:
    measured_run(here / "run")
    arguments = ["run"] if name == "recommend_resources" else ["recommend", "run"]
    monkeypatch.setattr("sys.argv", ["scalelab", *arguments])
    with pytest.raises(SystemExit) as caught:
        getattr(entry, name)()
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("Use ")


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_leaves_ends_it_in_silence(
    command: list[str], here: Path, stream: str
) -> None:
    arguments = ["schema"] if stream == "stdout" else ["plan", "absent.yaml"]
    script = f'{{ "$@" {"2>&1 >/dev/null" if stream == "stderr" else ""}; }} | true'
    ended = subprocess.run(
        ["bash", "-c", f"{script}; exit ${{PIPESTATUS[0]}}", "-", *command, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stderr == ""
    assert ended.returncode in (errors.READER_LEFT, 0 if stream == "stdout" else 2)


@pytest.mark.parametrize("module", [progress, init_command])
def test_the_examples_hold(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0
