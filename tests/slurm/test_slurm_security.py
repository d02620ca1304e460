"""Who can talk to a sweep on a real SLURM, and who cannot."""

import json
import os
from pathlib import Path

import pytest
from slurm_sweeps import Swept
from throwaway_slurm import USER_ID, ThrowawaySlurm
from waiting import wait_until

from scalelab.cluster.node_options import run_security, write_tls_files

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]

LONG = {
    "workload": {"name": "emulated", "sample_time_s": 0.05},
    "measure": {
        "long_trial": "none",
        "kind": "throughput",
        "warmup_steps": 1,
        "steps": 40,
        "repeats": 5,
    },
    "local_batch_size": [4],
    "gpus": [1, 2],
}

# Tries to be answered at ports, with a certificate's files or none. That a port cannot
# be reached is an error here, not a refusal.
STRANGER = """
import json, socket, ssl, sys

def plain(peer):
    peer.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    return peer.recv(64)

def secret(peer, *files):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if files:
        context.load_cert_chain(*files)
    with context.wrap_socket(peer) as peer:
        return peer.recv(64)

def answer(host, port, attempt, *files):
    with socket.create_connection((host, port), timeout=30) as peer:
        try:
            return "an answer" if attempt(peer, *files) else "closed"
        except ssl.SSLError as error:
            return error.reason
        except ConnectionResetError:
            return "closed"

ports, foreign, own = map(json.loads, sys.argv[1:])
print(json.dumps({
    "plain": [answer(*port, plain) for port in ports],
    "no certificate": [answer(*port, secret) for port in ports],
    "foreign": [answer(*port, secret, *foreign) for port in ports],
    "own": [answer(*port, secret, *own) for port in ports],
}))
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
    # The scheduler; on each of two nodes, one of which may still start, the worker and
    # its nanny.
    wait_until(lambda: len(listeners(slurm)) >= 5, "both nodes listen")
    outside = listeners(slurm)
    assert len(outside) == 5
    assert all(host.startswith("10.77.0.") for host, _ in outside)
    cluster = swept.directory / "cluster"
    own = [str(cluster / name) for name in ("cert.pem", "key.pem")]
    words = map(json.dumps, (outside, another_runs(slurm.home), own))
    answers = json.loads(slurm.run(["python", "-c", STRANGER, *words], node="n4"))
    assert answers == {
        "plain": ["closed"] * 5,
        "no certificate": ["TLSV13_ALERT_CERTIFICATE_REQUIRED"] * 5,
        "foreign": ["TLSV1_ALERT_UNKNOWN_CA"] * 5,
        "own": ["an answer"] * 5,
    }
    check_files(cluster)
    code, said = swept.end()
    assert code == 0, said
    swept.check_complete(10)


def another_runs(home: Path) -> list[str]:
    """Write the certificate and key of another run; return the files."""
    directory = home / "another"
    directory.mkdir()
    _, *files = write_tls_files(run_security(), directory).values()
    for path in files:
        os.chown(path, USER_ID, USER_ID)
    return files


def check_files(directory: Path) -> None:
    """Check that only their user may read what gives access."""
    private = [*directory.glob("*.pem"), directory / "nodes.json"]
    assert len(private) == 4
    assert {oct(path.stat().st_mode & 0o777) for path in private} == {"0o600"}
    assert {path.stat().st_uid for path in private} == {USER_ID}
