"""``accept``: which trained models are good enough, from the YAML to the answer."""

import json
from html import unescape
from pathlib import Path

import pytest
from real_sweeps import Sweep, attempts

import scalelab

EXPERIMENT = """\
name: small
workload: {workload}
measure: {{long_trial: none, kind: [throughput, end_to_end], steps: 8, repeats: 1}}
job: {{epochs: 2, samples_per_epoch: 1437}}
accept: {accept}
gpus: [1, 2]
global_batch_size: 64
learning_rate: 0.05
site: {{device_type: cpu, gpus_per_node: 2}}
"""
OWN = """\
from scalelab.training.workloads.digits_mlp import DigitsMlp

class Mine(DigitsMlp):
    def evaluate(self, model, batch):
        return {"hits": super().evaluate(model, batch)["val_acc"]}
"""


def experiment(accept: str, workload: str = "digits_mlp") -> str:
    return EXPERIMENT.format(accept=accept, workload=workload)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_trained_models_are_judged_and_judged_anew(sweep: Sweep, here: Path) -> None:
    ended = sweep(experiment("[val_acc >= 0.5, val_loss < 2]"))
    assert ended.returncode == 0, ended
    assert "2 of 2 trained models accepted" in " ".join(ended.stdout.split())
    frame = scalelab.load("runs/small").observations
    judged = frame["kind"] == "end_to_end"
    assert frame.loc[judged, "accepted"].tolist() == [True, True]
    assert frame.loc[~judged, "accepted"].isna().all()
    line = "2 of 2 trials were accepted: val_acc >= 0.5 and val_loss < 2."
    assert line in unescape(Path("runs/small/report.html").read_text())
    for trial_id in frame.loc[judged, "trial_id"]:
        text = Path(f"runs/small/trials/{trial_id}/001/evaluation.json").read_text()
        found = json.loads(text)
        assert sum(each["samples"] for each in found["classes"]) == 360
        right = sum(each["recall"] * each["samples"] for each in found["classes"])
        assert found["metrics"]["val_acc"] == pytest.approx(right / 360)
    begun = attempts()

    again = sweep(experiment("val_acc > 0.999"))
    assert "0 of 2 trained models accepted" in " ".join(again.stdout.split())
    assert again.stdout.startswith("Nothing meets val_acc > 0.999.\nClosest: ")
    assert "(0 of 2 trained models accepted)" in " ".join(again.stdout.split())
    assert again.returncode == 4, again
    assert attempts() == begun
    refused = sweep(experiment("val_f1 > 0.9"))
    assert refused.returncode == 2
    assert "accept metric 'val_f1' is not measured by digits_mlp." in refused.stderr
    assert scalelab.load("runs/small").accepted.startswith("0 of 2")


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.timeout(300)
def test_a_class_of_ones_own_is_refused_at_its_first_evaluation(
    sweep: Sweep, here: Path
) -> None:
    Path("mine.py").write_text(OWN)
    own = experiment("ACCEPT", "mine:Mine").replace("[1, 2]", "1")
    own = own.replace("[throughput, end_to_end]", "end_to_end")
    refused = sweep(own.replace("ACCEPT", "val_acc > 0.9"))
    assert refused.returncode == 1, "its first trial failed the check"
    said = "accept metric 'val_acc' is not measured by mine:Mine. It measures: hits."
    assert said in refused.stderr
    accepted = sweep(own.replace("ACCEPT", "hits >= 0.1"), "--retry-failed")
    assert accepted.returncode == 0, accepted
    assert "1 of 1 trained model accepted" in " ".join(accepted.stdout.split())
