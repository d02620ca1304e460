"""What shows that the ranks of a command have met; and programs that lie."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import dedent

import pytest
from command_specs import TICKER, command_spec, needs_open_mpi

from scalelab.experiment.program import MetricsSource
from scalelab.inputs.outcome import Outcome
from scalelab.launch.command.attempt import CommandAttempt
from scalelab.launch.command.sight import Connections, Held, Link, Sight
from scalelab.launch.gang_agent import NodeAgent
from scalelab.launch.rendezvous import Meeting
from scalelab.records.attempt import AttemptResult

ALONE = """
import os, time
for step in range(1, 100_000):
    time.sleep(0.002)
    print(f"step {step} loss {1 / step:.6f}", flush=True)
"""
# GROUP is the world of the process group that the first ranks join; 0: all of them.
JOINS = (
    """
import os, time
import torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
joins = int(os.environ["GROUP"]) or size
if os.environ["GROUP"] == "1":
    dist.init_process_group("gloo", rank=0, world_size=1)
elif rank < joins:
    dist.init_process_group("gloo", rank=rank, world_size=joins)
"""
    + ALONE
)
STARTS = """
import os, subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, "joins.py"], env={**os.environ, "RANK": rank})
    for rank in "01"
]
sys.exit(max(rank.wait() for rank in ranks))
"""
# Holds a file where the library of JAX would lie, by which one process drives all.
LOADS_JAX = """
import mmap, os
os.mkdir("jaxlib")
with open("jaxlib/libjax.so", "w+b") as file:
    file.truncate(1)
    held = mmap.mmap(file.fileno(), 1)
"""
LINES = MetricsSource(regex=(r"step (?P<step>\d+) loss (?P<loss>\S+)",))
SAYS = MetricsSource(regex=(r"step (?P<step>\d+)", r"replicas (?P<world_size>\d+)"))
not_met = "{0} ranks started, none met another: this script trains alone in"


def swept(
    agent: NodeAgent, directory: Path, program: str, ranks: int = 2, **changes: object
) -> AttemptResult:
    changes = {"metrics": LINES, **changes}
    spec = command_spec(directory, program, ranks=ranks, **changes)  # type: ignore[arg-type]
    return agent.run(spec, 0, None)


@pytest.mark.parametrize(
    "launcher",
    ["torchrun", "jax", pytest.param("mpirun", marks=pytest.mark.slow)],
)
def test_a_script_for_one_process_is_refused_on_several(
    agent: NodeAgent, tmp_path: Path, launcher: str
) -> None:
    if launcher == "mpirun":
        needs_open_mpi()
    result = swept(agent, tmp_path, ALONE, launcher=launcher, steps=2000)
    assert result.outcome is Outcome.REFUSED, result
    assert result.reason.startswith(not_met.format(2))
    assert result.reason.endswith(
        "Call torch.distributed.init_process_group, or what your framework has for it; "
        "a script for one process takes gpus: [1] and launcher: none."
    )


@pytest.mark.parametrize(
    ("group", "ranks", "outcome", "said"),
    [
        ("0", 2, Outcome.COMPLETED, ""),
        ("2", 3, Outcome.REFUSED, "3 ranks started, only 2 of them met"),
        ("1", 2, Outcome.REFUSED, not_met.format(2)),
    ],
    ids=["all", "all but one", "each one of its own"],
)
@pytest.mark.slow
def test_all_ranks_must_have_joined_one_group(
    agent: NodeAgent,
    tmp_path: Path,
    group: str,
    ranks: int,
    outcome: Outcome,
    said: str,
) -> None:
    result = swept(
        agent, tmp_path, JOINS, ranks, env={"GROUP": group}, global_batch_size=12
    )
    assert result.outcome is outcome, result
    assert result.reason.startswith(said)
    if outcome is Outcome.COMPLETED:
        assert result.measurements["ranks_witness"] == "store"


def test_ranks_that_meet_at_a_place_of_their_own_are_seen_by_their_sockets(
    agent: NodeAgent, tmp_path: Path
) -> None:
    result = agent.run(command_spec(tmp_path, TICKER, ranks=2), 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["ranks_witness"] == "sockets"


@pytest.mark.slow
def test_ranks_without_numbers_are_seen_by_their_sockets(
    agent: NodeAgent, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "joins.py").write_text(JOINS)
    result = swept(
        agent,
        tmp_path,
        STARTS,
        launcher="per_node",
        env={"GROUP": "0", "WORLD_SIZE": "2"},
    )
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["ranks_witness"] == "sockets"


def test_workers_that_hold_the_connections_of_their_process_are_no_ranks(
    agent: NodeAgent, tmp_path: Path
) -> None:
    forks = """
        import os, socket
        store = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(store.getsockname())
        served = store.accept()[0]
        if os.fork() == 0:
            while True:
                client.recv(1)
    """
    result = swept(agent, tmp_path, dedent(forks) + ALONE, launcher="none", steps=2000)
    assert result.outcome is Outcome.REFUSED, result
    assert result.reason.startswith("one process runs, which nothing joins to others")


@pytest.mark.parametrize(
    ("says", "outcome", "witness"),
    [
        (LOADS_JAX, Outcome.COMPLETED, "not_witnessed"),
        ("print('replicas 2')", Outcome.COMPLETED, "framework"),
        ("print('replicas 1')", Outcome.REFUSED, None),
    ],
)
def test_a_process_with_devices_of_its_own_is_believed_if_it_names_them(
    agent: NodeAgent, tmp_path: Path, says: str, outcome: Outcome, witness: str | None
) -> None:
    result = swept(agent, tmp_path, says + ALONE, launcher="none", metrics=SAYS)
    assert result.outcome is outcome, result
    assert result.measurements.get("ranks_witness") == witness
    if witness is None:
        assert result.reason.startswith(
            "the program reports world_size=1, and this trial has 2 devices"
        )


def test_one_process_on_several_slots_is_refused_and_known_on_one(
    agent: NodeAgent, tmp_path: Path
) -> None:
    result = swept(agent, tmp_path / "2", ALONE, launcher="none", steps=2000)
    assert result.outcome is Outcome.REFUSED, result
    assert result.reason.startswith(
        "one process runs, which nothing joins to others, and this trial has 2 CPU "
        "slots: its row would call the work of one that of 2. Ask for gpus: [1];"
    )
    alone = swept(agent, tmp_path / "1", ALONE, ranks=1, launcher="none")
    assert alone.measurements["ranks_witness"] == "one_process"
    assert alone.measurements["first_losses"] == "1.0 0.5 0.333333 0.25"


def test_daemons_that_a_rank_leaves_behind_are_no_ranks(
    agent: NodeAgent, tmp_path: Path
) -> None:
    daemon = "import os; os.system('setsid sleep 60 >/dev/null 2>&1 &')\n"
    result = agent.run(
        command_spec(tmp_path, daemon + TICKER, ranks=2, steps=800), 0, None
    )
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["ranks_witness"] == "sockets"


def test_ranks_in_containers_are_not_seen_and_not_refused(
    agent: NodeAgent, tmp_path: Path
) -> None:
    client = tmp_path / "docker"
    shutil.copy(str(shutil.which("sleep")), client)
    starts = f"import subprocess; subprocess.Popen([{str(client)!r}, '60'])\n"
    result = swept(agent, tmp_path, starts + ALONE, steps=800)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["ranks_witness"] == "not_witnessed"


# The first node of the sights below, its store, and another node's two addresses.
OWN, STORE, TOLD, FABRIC = "10.0.0.1", ("10.0.0.1", 4000), "10.0.0.2", "10.9.0.2"


def sight(
    directory: Path,
    *ranks: set[Link],
    nodes: int = 1,
    arrived: int = 0,
    **changes: object,
) -> Sight:
    """Return what is seen of ranks that hold these connections, on the first node."""
    spec = command_spec(directory, ranks=(len(ranks),) * nodes, **changes)  # type: ignore[arg-type]
    hosts = (OWN, TOLD)[:nodes]
    meeting = Meeting(hosts=hosts, port=STORE[1], ports=((),) * nodes)
    links = {str(at): (STORE, (TOLD, 7000 + at)) for at in range(arrived)}
    held = [Held(frozenset(each), frozenset(), is_whole=True) for each in ranks]
    attempt = CommandAttempt(spec, 0)
    return Connections.of(attempt, meeting, held, links).sight


def joined(port: int) -> Link:
    return ((OWN, port), STORE)


def test_nccl_may_connect_ranks_of_a_store_later(tmp_path: Path) -> None:
    alone = [{joined(1)}, {joined(2)}]
    assert not sight(tmp_path, *alone, device_type="cuda", global_batch_size=8).is_sure
    assert sight(tmp_path, *alone).is_sure  # gloo connects them when they join
    assert sight(tmp_path, set(), set(), device_type="cuda").is_sure
    between: Link = (OWN, 11), (OWN, 12)
    met = [{joined(1), between}, {joined(2), between[::-1]}]
    assert sight(tmp_path, *met, device_type="cuda").witness == "store"


def test_ranks_that_reach_other_nodes_at_unknown_addresses_are_not_refused(
    tmp_path: Path,
) -> None:
    between: Link = (OWN, 11), (OWN, 12)

    def ranks(*outside: Link) -> list[set[Link]]:
        return [{joined(1), between}, {joined(2), between[::-1], *outside}]

    told: Link = (OWN, 21), (TOLD, 22)
    fabric: Link = ("10.9.0.1", 21), (FABRIC, 22)
    assert sight(tmp_path, *ranks(told), nodes=2, arrived=2).witness == "store"
    assert not sight(tmp_path, *ranks(fabric), nodes=2, arrived=2).is_sure
    assert not sight(tmp_path, *ranks(), nodes=2, arrived=2).is_sure
    # Nobody came from the other node, and nothing leads there.
    assert sight(tmp_path, *ranks(), nodes=2) == Sight(2, None, is_sure=True)
    assert sight(tmp_path, set(), set(), nodes=2) == Sight(1, None, is_sure=True)
