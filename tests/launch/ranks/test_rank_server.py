from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import DEADLINE_S, wait_until
from watching import ENTRY, STAND_IN, is_running, read_pid

from scalelab.inputs.outcome import Outcome
from scalelab.launch.gang_agent import NodeAgent
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import CommandTask, ProcessRequest, receive
from scalelab.launch.ranks.server import must_not_fork, preload, watched_files
from scalelab.launch.ranks.server_process import RankServers, ServerProcess


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    servers = RankServers(
        (), (), tmp_path_factory.mktemp("server"), "torch.distributed"
    )
    yield servers
    servers.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("limit", [0, 1])
def test_too_few_threads_are_said(limit: int) -> None:
    script = f"""
    import os, resource, tempfile
    from pathlib import Path
    from scalelab.errors import LaunchError
    from scalelab.launch.ranks.server_process import RankServers

    servers = RankServers((), (), Path(tempfile.mkdtemp()))
    os.setuid(61234)
    resource.setrlimit(resource.RLIMIT_NPROC, ({limit}, {limit}))
    try:
        servers.current()
    except LaunchError as error:
        os.write(1, str(error).encode())
    os._exit(0)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("The rank server did not start: "), said
    assert "`ulimit -u` says how many processes and threads" in said.stdout


def status_of(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def launch(server: ServerProcess, *tasks: ProcessRequest) -> socket.socket:
    board = ProgressBoard(1)
    channel = server.launch(tasks, board)
    channel.settimeout(DEADLINE_S)
    board.close()
    return channel


def hear(channel: socket.socket, kind: str) -> dict[str, object]:
    while True:
        message, descriptors = receive(channel)
        for descriptor in descriptors:
            os.close(descriptor)
        assert message is not None
        if message["kind"] == kind:
            return message


def command(*argv: str, **given: object) -> ProcessRequest:
    return ProcessRequest(rank=0, task=CommandTask(argv=argv), **given)


@pytest.mark.slow
def test_server_has_its_own_session_and_one_thread(servers: Any) -> None:
    pid = servers.current().pid
    assert os.getsid(pid) == pid
    assert status_of(pid)["Threads"] == "1"


def maps_of(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.slow
def test_server_imports_torch_for_ranks_only(servers: Any, tmp_path: Path) -> None:
    assert "libtorch" in maps_of(servers.current().pid)
    of_commands = RankServers((), (), tmp_path)
    try:
        assert "libtorch" not in maps_of(of_commands.current().pid)
    finally:
        of_commands.close()


@pytest.mark.repetition
@pytest.mark.slow
def test_server_stays_with_one_thread_when_sklearn_is_preloaded(tmp_path: Path) -> None:
    servers = RankServers(
        ("sklearn.datasets", "torch._dynamo"), (), tmp_path, "torch.distributed"
    )
    try:
        assert status_of(servers.current().pid)["Threads"] == "1"
    finally:
        servers.close()


@pytest.mark.slow
def test_agent_imports_no_torch() -> None:
    code = "import sys, scalelab.launch.gang_agent; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_server_is_used_again(servers: Any) -> None:
    assert servers.current() is servers.current()


def test_server_survives_the_sigterm_of_a_batch_system(servers: Any) -> None:
    server = servers.current()
    os.kill(server.pid, signal.SIGTERM)
    channel = launch(server, command("true"))
    assert hear(channel, "exited")["status"] == 0
    channel.close()


def test_command_runs_in_its_directory_with_its_environment_and_log(
    servers: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    request = command(
        "sh",
        "-c",
        'echo "$GREETING from $(pwd)"; exit 5',
        env={"GREETING": "hello"},
        directory=str(tmp_path),
        log=str(log),
    )
    channel = launch(servers.current(), request)
    assert hear(channel, "exited")["status"] == 5
    assert log.read_text() == f"hello from {tmp_path}\n"
    channel.close()


def test_command_that_does_not_exist_is_a_failure(servers: Any) -> None:
    channel = launch(servers.current(), command("no-such-program"))
    failure = hear(channel, "failed")["failure"]
    assert failure["summary"].startswith("raised FileNotFoundError")
    assert hear(channel, "exited")["status"] == 1
    channel.close()


def test_closed_channel_ends_the_attempt(servers: Any) -> None:
    channel = launch(servers.current(), command("sleep", "600"))
    pid = hear(channel, "started")["pid"]
    assert is_running(pid)
    channel.close()
    wait_until(lambda: not is_running(pid), "the command has ended")


def test_request_that_cannot_be_served_is_refused_and_the_server_goes_on(
    servers: Any,
) -> None:
    server = servers.current()
    channel = launch(server, ProcessRequest(rank=0, task=CommandTask(argv=("true",))))
    hear(channel, "exited")
    channel.close()
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    content = os.memfd_create("not a request")
    os.write(content, b"no request")
    board = ProgressBoard(1)
    descriptors = [far.fileno(), content, board.descriptor]
    socket.send_fds(server._control, [b'{"kind": "launch"}'], descriptors)
    assert "UnpicklingError" in hear(near, "refused")["reason"]
    for each in (content, board.descriptor):
        os.close(each)
    near.close()
    far.close()
    channel = launch(server, command("true"))
    assert hear(channel, "exited")["status"] == 0
    channel.close()


@pytest.mark.slow
def test_changed_module_restarts_the_server(make_spec: Any, tmp_path: Path) -> None:
    module = tmp_path / "preloaded.py"
    module.write_text("VERSION = 1\n")
    search_path = (str(STAND_IN), str(tmp_path))
    with NodeAgent(
        "n", "cpu", ("preloaded",), entry=ENTRY, search_path=search_path
    ) as agent:

        def version() -> Any:
            result = agent.run(make_spec("version_of_module", ranks=1), 0, None)
            return result.measurements["num_parameters"]

        assert version() == 1
        module.write_text("VERSION = 22\n")
        os.utime(module, ns=(1, 1))
        assert version() == 22


@pytest.mark.repetition
@pytest.mark.slow
def test_replaced_server_lets_its_ranks_finish(
    make_spec: Any, start: Any, tmp_path: Path
) -> None:
    module = tmp_path / "preloaded.py"
    module.write_text("")
    search_path = (str(STAND_IN), str(tmp_path))
    with NodeAgent(
        "n", "cpu", ("preloaded",), entry=ENTRY, search_path=search_path
    ) as agent:
        lasting = make_spec("train", ranks=1)
        attempt = start(lasting, on=agent)
        pid = read_pid(lasting, "rank-0")
        old_server = int(status_of(pid)["PPid"])
        module.unlink()
        assert agent.run(make_spec("meet"), 0, None).outcome is Outcome.COMPLETED
        assert is_running(pid)
        agent.cancel(lasting.attempt_id, "done")
        assert attempt.result(DEADLINE_S).outcome is Outcome.CANCELLED
        wait_until(lambda: not is_running(old_server), "the old server has gone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param(
            "import torch\ntorch.cuda.is_initialized = lambda: True\n",
            "a preloaded module has initialised CUDA",
            marks=pytest.mark.repetition,
        ),
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
            "a preloaded module has started a thread",
        ),
    ],
)
def test_unfit_server_spawns_its_ranks(
    make_spec: Any, tmp_path: Path, source: Any, reason: Any
) -> None:
    (tmp_path / "unfit.py").write_text(source)
    search_path = (str(STAND_IN), str(tmp_path))
    with NodeAgent(
        "n", "cpu", ("unfit",), entry=ENTRY, search_path=search_path
    ) as agent:
        spec = make_spec("describe", ranks=1, threads_per_rank=2)
        facts = agent.run(spec, 0, None).measurements["versions"]
        assert "rank_process.py" in facts
        assert "threads=2" in facts
        assert f"death_signal={int(signal.SIGKILL)}" in facts
        assert "leads_group=True" in facts
        failing = agent.run(make_spec("raise_error"), 0, None)
        assert failing.reason.startswith("rank 1 raised ValueError at stand_in.py:")
    assert spec.files.log(0).read_text().startswith(f"scalelab: not forked: {reason}\n")


@pytest.mark.slow
def test_module_that_cannot_be_preloaded_is_left_to_the_rank(
    make_spec: Any, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('broken module')\n")
    search_path = (str(STAND_IN), str(tmp_path))
    with NodeAgent(
        "n", "cpu", ("broken",), entry=ENTRY, search_path=search_path
    ) as agent:
        assert agent.run(make_spec("meet"), 0, None).outcome is Outcome.COMPLETED


@pytest.mark.slow
def test_killed_server_is_a_node_failure_and_is_replaced(
    make_spec: Any, start: Any
) -> None:
    with NodeAgent("n", "cpu", (), entry=ENTRY, search_path=(str(STAND_IN),)) as agent:
        spec = make_spec("load")
        attempt = start(spec, on=agent)
        names = ("rank-0", "rank-1", "loader-0", "loader-1")
        pids = [read_pid(spec, name) for name in names]
        server = int(status_of(pids[0])["PPid"])
        os.kill(server, signal.SIGKILL)
        result = attempt.result(DEADLINE_S)
        assert result.outcome is Outcome.NODE_FAIL
        assert result.reason.startswith(
            f"the rank server (process {server}) ended with status -9"
        )
        wait_until(lambda: not any(map(is_running, pids)), "all ranks have ended")
        assert agent.run(make_spec("meet"), 0, None).outcome is Outcome.COMPLETED


def test_loader_workers_of_a_killed_rank_end(
    agent: NodeAgent, start: Callable[..., Any], make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("load", ranks=1)
    attempt = start(spec)
    pids = [read_pid(spec, name) for name in ("loader-0", "loader-1", "rank-0")]
    os.kill(pids[2], signal.SIGKILL)
    assert attempt.result(DEADLINE_S).traceback == "SIGKILL"
    assert not any(map(is_running, pids))


@pytest.mark.slow
def test_everything_dies_with_the_agents_process(
    make_spec: Any, tmp_path: Path
) -> None:
    spec = make_spec("load")
    script = textwrap.dedent(
        f"""
        import json, sys, threading
        from scalelab.launch.gang_agent import NodeAgent
        from scalelab.records.attempt import AttemptSpec
        spec = AttemptSpec.from_json(json.load(open(sys.argv[1])))
        agent = NodeAgent(
            "n", "cpu", (), entry={ENTRY!r}, search_path=({str(STAND_IN)!r},)
        )
        # The thread that starts the agent ends long before the agent does.
        starter = threading.Thread(target=agent.start)
        starter.start()
        starter.join()
        agent.run(spec, 0, None)
        """
    )
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(spec.to_json()))
    with subprocess.Popen([sys.executable, "-c", script, str(file)]) as process:
        names = ("rank-0", "rank-1", "loader-0", "loader-1")
        pids = [read_pid(spec, name) for name in names]
        server = int(status_of(pids[0])["PPid"])
        assert is_running(server)
        process.kill()
    wait_until(
        lambda: not any(map(is_running, (server, *pids))), "the whole chain has died"
    )


def test_this_process_may_not_fork_ranks_once_it_has_threads(agent: NodeAgent) -> None:
    # pytest's own process has the threads of OpenBLAS or of other tests.
    assert must_not_fork() in (None, "a preloaded module has started a thread")


def test_watched_files_are_neither_pythons_nor_installed() -> None:
    files = watched_files()
    assert any(path.endswith("scalelab/launch/ranks/server.py") for path in files)
    assert not any("site-packages" in path for path in files)
    assert os.__file__ not in files


def test_preload_reports_a_module_that_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    preload(["no_such_module"])
    assert "No module named 'no_such_module'" in capsys.readouterr().err
