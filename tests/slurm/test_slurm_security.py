"""Who can talk to a sweep on a real SLURM, and who cannot."""

import json
from pathlib import Path

import pytest
from slurm_sweeps import Swept
from throwaway_slurm import USER_ID, ThrowawaySlurm
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]

LONG = {
    "workload": {"name": "emulated", "sample_time_s": 0.05},
    "measure": {"kind": "throughput", "warmup_steps": 1, "steps": 40, "repeats": 3},
    "local_batch_size": [4],
    "gpus": [1, 2],
}

# Tries, as a stranger in the same network, what needs no credentials.
STRANGER = """
import json, socket, ssl, sys

def plain(host, port):
    with socket.create_connection((host, port), timeout=5) as peer:
        peer.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        return peer.recv(64)

def without_certificate(host, port):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), timeout=5) as peer:
        with context.wrap_socket(peer) as secret:
            return secret.recv(64)

def answer(attempt, host, port):
    try:
        return attempt(host, port).decode("latin-1")
    except (OSError, ssl.SSLError) as error:
        return ""

answers = {}
for host, port in json.loads(sys.argv[1]):
    for attempt in (plain, without_certificate):
        answers[f"{attempt.__name__} {host}:{port}"] = answer(attempt, host, port)
print(json.dumps(answers))
"""
FOREIGN = """
import sys
from distributed import Client
from distributed.security import Security
try:
    Client(sys.argv[1], security=Security.temporary(), timeout=5)
except OSError:
    print("refused")
"""


# Who listens where, for one's own processes in one's own network.
LISTENERS = """
import json, psutil
print(json.dumps([
    each.laddr for each in psutil.net_connections("tcp")
    if each.status == psutil.CONN_LISTEN and each.pid is not None
]))
"""


def listeners(slurm: ThrowawaySlurm) -> list[tuple[str, int]]:
    """Return where the user's processes listen, on whatever host, for other hosts."""
    hosts = [None, *(f"n{index}" for index in range(1, slurm.num_nodes + 1))]
    answers = [slurm.run(["python", "-c", LISTENERS], node=host) for host in hosts]
    seen = {tuple(each) for answer in answers for each in json.loads(answer)}
    return sorted(each for each in seen if each[0] != "127.0.0.1")


def test_nobody_without_the_credentials_gets_an_answer(slurm: ThrowawaySlurm) -> None:
    swept = Swept(slurm, "guarded", LONG, nodes=2)
    swept.start()
    swept.wait_for_trials(1)
    options = swept.directory / "cluster" / "nodes.json"
    scheduler = json.loads(options.read_text())["scheduler"]
    # The scheduler; on each of two nodes, one of which may still start, the worker and
    # its nanny.
    wait_until(lambda: len(listeners(slurm)) >= 5, "both nodes listen")
    outside = listeners(slurm)
    assert len(outside) == 5
    assert all(host.startswith("10.77.0.") for host, _ in outside)
    said = slurm.run(["python", "-c", STRANGER, json.dumps(outside)], node="n4")
    answers = json.loads(said)
    assert len(answers) == 10
    assert set(answers.values()) == {""}
    assert slurm.run(["python", "-c", FOREIGN, scheduler], node="n4") == "refused\n"
    check_files(swept.directory / "cluster")
    code, said = swept.end()
    assert code == 0, said
    swept.check_complete(6)


def check_files(directory: Path) -> None:
    """Check that only their user may read what gives access."""
    private = [*directory.glob("*.pem"), directory / "nodes.json"]
    assert len(private) == 4
    assert {oct(path.stat().st_mode & 0o777) for path in private} == {"0o600"}
    assert {path.stat().st_uid for path in private} == {USER_ID}
