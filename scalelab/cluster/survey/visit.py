"""The job of ``scalelab doctor --job``: checks devices and network of a node."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scalelab.cluster.devices import granted_devices
from scalelab.cluster.network import address_of_node, link_to_nodes, listening
from scalelab.errors import ScaleLabError
from scalelab.inputs.plain_files import parse_json, read_file
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.records.attempt import encode_json, write_atomically

TASK, ANSWER = "task.json", "answer.json"
CALL_TIMEOUT_S = 30.0
Task = dict[str, Any]
_EMPTY_JOB = "#!/bin/sh\ntrue\n"


def visit(folder: Path) -> Task:
    """Run the checks that a task file asks for, and return the findings."""
    task = parse_json(read_file(folder / TASK))
    found: Task = {
        "host": socket.gethostname(),
        "python": sys.executable,
        "token": task["token"],
        "num_cores": len(os.sched_getaffinity(0)),
        "num_cores_of_node": os.cpu_count(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "num_torch_devices": 0,
    }
    for name, look in _LOOKS.items():
        try:
            found |= look(task)
        except (
            ScaleLabError,
            OSError,
            ImportError,
            RuntimeError,
            ValueError,
        ) as error:
            found[f"{name}_error"] = str(error)

    return found


def _call(task: Task) -> Task:
    address = address_of_node(task["interface"], f"tls://{task['url']}")
    host, _, port = task["url"].rpartition(":")
    with listening(address) as server:
        server.settimeout(CALL_TIMEOUT_S)
        call = {
            "token": task["token"],
            "port": server.getsockname()[1],
            "address": address,
            "time": time.time(),
        }
        with socket.create_connection(
            (host.strip("[]"), int(port)), CALL_TIMEOUT_S, (address, 0)
        ) as out:
            out.sendall(json.dumps(call).encode() + b"\n")

        try:
            server.accept()[0].close()
        except TimeoutError:
            return {"address": address, "is_called_back": False}

    return {"address": address, "is_called_back": True}


def _torch(task: Task) -> Task:
    import torch

    count = torch.cuda.device_count() if task["device_type"] == "cuda" else 0
    return {
        "torch": torch.__version__,
        "num_torch_devices": count,
        "names": sorted({torch.cuda.get_device_name(index) for index in range(count)}),
    }


def _submission(task: Task) -> Task:
    system = BATCH_SYSTEMS[task["scheduler"]]
    if not shutil.which(system.programs[0]):
        return {"may_submit": False}
    if not system.test_submission:
        return {"may_submit": None}

    environment = {
        name: value for name, value in os.environ.items() if not system.is_of_job(name)
    }
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
        script.write(_EMPTY_JOB)
        script.flush()
        ended = subprocess.run(
            [*system.test_submission, script.name],
            env=environment,
            capture_output=True,
            text=True,
            timeout=CALL_TIMEOUT_S,
            check=False,
        )

    words = " ".join(ended.stderr.split())
    return {"may_submit": ended.returncode == 0, "submission_words": words}


def _link(task: Task) -> Task:
    address = address_of_node(task["interface"], f"tls://{task['url']}")
    return {"link": link_to_nodes(address)}


_LOOKS: Mapping[str, Callable[[Task], Task]] = {
    "call": _call,
    "torch": _torch,
    "devices": lambda task: {
        "devices": granted_devices(task["device_type"], task["num_devices"])
    },
    "submission": _submission,
    "link": _link,
}


def main() -> None:
    """Run the checks of a task folder and write the findings there."""
    folder = Path(sys.argv[1])
    write_atomically(folder / ANSWER, encode_json(visit(folder)))


if __name__ == "__main__":
    main()
