"""The job script of an answer, submitted to PBS or what stands in for it: it runs."""

import json

import pytest
from pbs_sweeps import Pbs, Swept
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# One process for all devices, which says what it was started with.
PROGRAM = """
import json, os, sys, time
from pathlib import Path

for step in range(1, 41):
    time.sleep(0.005)
    print(f"step {step} samples {step * int(sys.argv[2])}", flush=True)
known = {"argv": sys.argv[1:], "env": dict(os.environ), "host": os.uname().nodename}
(Path(sys.argv[1]) / "known.json").write_text(json.dumps(known))
"""
EXPERIMENT = {
    "command": "python -u train.py {trial_dir} {global_batch_size} {precision}",
    "launcher": "none",
    "metrics": {"regex": r"step (?P<step>\d+) samples (?P<samples>\d+)"},
    "measure": {
        "long_trial": "none",
        "kind": "throughput",
        "warmup_steps": 2,
        "steps": 20,
        "repeats": 1,
    },
    "env": {"MODE": "off line's", "PORT": "{master_port}"},
    "uses": ["SCALELAB_SEED"],
    "precision": "bf16",
    "gpus": [2],
    "local_batch_size": 8,
    "job": {"samples": 3000},
}


@pytest.mark.repetition
def test_the_script_of_the_answer_runs_where_it_was_submitted(pbs: Pbs) -> None:
    (pbs.home / "train.py").write_text(PROGRAM)
    swept = Swept(pbs, "answered", EXPERIMENT, nodes=1)
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    code, text = pbs.scalelab("recommend", "runs/answered", "--sbatch")
    assert code == 0, text
    (pbs.home / "job.sh").write_text(text)
    number = pbs.run("qsub", "job.sh").partition(".")[0]
    assert number.isdecimal()
    wait_until(lambda: not pbs.jobs(), "the job has ended")
    found = pbs.home / "known.json"
    logs = "".join(each.read_text() for each in pbs.home.glob("answered.*"))
    assert found.exists(), text + logs
    known = json.loads(found.read_text())
    assert known["argv"] == [".", "16", "bf16"]
    port = str(20000 + int(number) % 10000)
    wanted = {"MODE": "off line's", "PORT": port, "MASTER_PORT": port}
    wanted |= {"MASTER_ADDR": "127.0.0.1", "SCALELAB_SEED": "0"}
    assert {name: known["env"].get(name) for name in wanted} == wanted
