"""Counts asked by number, rows that differ in batch, and nodes of one device."""

from pathlib import Path
from typing import Any

import pytest

from scalelab.errors import SpecError
from scalelab.session import import_table
from scalelab.session.answer import Answer
from scalelab.session.run import Run

REINFORCED = "gpus,nodes,global batch,step_time_s\n16,2,512,40\n128,16,512,10\n"
SMALL = "gpus,nodes,global batch,step_time_s\n1,1,32,4\n2,1,32,2.1\n4,1,32,1.2\n"
WEAK = "gpus,nodes,batch per gpu,samples/s\n" + "".join(
    f"{n},{n // 8},32,{rate}\n"
    for n, rate in {8: 1000, 16: 1950, 32: 3800, 64: 7400, 128: 14500}.items()
)
JOB = {"samples": 100_000_000}


def table(text: str, home: Path, name: str = "run", **options: Any) -> Run:
    path = home / "table.csv"
    path.write_text(text)
    return import_table(path, home / name, **options)


def values(answer: Answer, kind: str) -> Any:
    (found,) = (fact.values for fact in answer.facts if fact.kind == kind)
    return found


@pytest.mark.parametrize(
    ("text", "asked", "missing"), [(REINFORCED, [1024], 1024), (SMALL, [4, 6], 6)]
)
def test_a_count_that_cannot_be_had_gets_its_reason(
    tmp_path: Path, text: str, asked: list[int], missing: int
) -> None:
    answer = table(text, tmp_path).recommend(job={"steps": 1000}, gpus=asked)
    assert missing not in {row.world_size for row in answer.rows}
    (ground,) = (g for g in answer.grounds if g.kind == "batch_not_shared")
    assert ground.state == "open"
    assert ground.text.startswith(f"no row for {missing:,} GPUs: ")


def test_a_declared_node_of_one_device_is_kept(tmp_path: Path) -> None:
    text = "gpus,step_time_s,global_batch\n1,0.5,64\n"
    run = table(text, tmp_path, constant={"gpus_per_node": "1"})
    answer = run.recommend(job={"steps": 1000})
    assert {row.allocation for row in answer.rows} >= {"1x1", "2x1", "4x1"}
    assert all(row.num_nodes == row.world_size for row in answer.rows)


def test_the_devices_of_a_node_are_not_known_from_one_of_them(tmp_path: Path) -> None:
    text = "gpus,nodes,step_time_s,global_batch\n1,1,0.5,64\n"
    answer = table(text, tmp_path).recommend(job={"steps": 1000})
    assert "1x2" in {row.allocation for row in answer.rows}


def test_rows_that_differ_in_batch_are_named(tmp_path: Path) -> None:
    answer = table(WEAK, tmp_path).recommend(job=JOB)
    found = values(answer, "batches_differ")
    assert (found["least"], found["most"]) == (256, 4096)
    barred = {row.world_size for row in answer.rows if row.barred_by == "batch"}
    assert barred == {256, 512}


def test_rows_of_one_batch_are_not(tmp_path: Path) -> None:
    answer = table(SMALL, tmp_path).recommend(job={"steps": 1000})
    assert not [fact for fact in answer.facts if fact.kind == "batches_differ"]


def test_where_a_larger_batch_alone_is_missing_next_asks_for_it(
    tmp_path: Path,
) -> None:
    run = table(WEAK, tmp_path)
    answer = run.recommend(job=JOB, max_time="1h")
    assert not answer.meets_constraints
    step = values(answer, "next_step")
    assert step["step"] == "ask_larger_batch"
    largest = step["command"]["options"]["max_batch"]
    again = run.recommend(job=JOB, max_time="1h", max_batch=largest)
    assert again.meets_constraints
    assert again.chosen.world_size == step["world_size"]


CLIMATE = "device,gpus,nodes,batch per gpu,samples/s,on_demand,spot\n" + "".join(
    f"{device},{n},{n},32,{rate * n},{price},0.12\n"
    for device, rate, price in (("c4", 10, 0.39), ("p2", 90, 0.9))
    for n in (1, 2, 4)
)
SPOT = {"interrupted_every": "12h"}


def costs(answer: Answer, device: str) -> list[float]:
    found = [row.cost for row in answer.rows if row.device == f"{device} spot"]
    return [cost.value for cost in found if cost]


def test_a_price_history_is_of_one_device(tmp_path: Path) -> None:
    run = table(CLIMATE, tmp_path, column={"device_name": "device"})
    past = tmp_path / "past.csv"
    hours = "".join(
        f"2026-11-{1 + h // 24:02}T{h % 24:02}:00:00Z,{6.0 if h % 20 == 0 else 0.1}\n"
        for h in range(240)
    )
    past.write_text(f"time,usd\n{hours}")
    with pytest.raises(SpecError, match="prices one device") as refused:
        run.recommend(job={"samples": 10**6}, spot={**SPOT, "history": str(past)})
    assert "device" in refused.value.hint
    with pytest.raises(SpecError, match="p3"):
        run.recommend(job={"samples": 10**6}, spot={**SPOT, "device": "p3"})

    spot = {**SPOT, "history": str(past), "device": "p2"}
    asked = run.recommend(job={"samples": 10**6}, spot=spot)
    plain = run.recommend(job={"samples": 10**6}, spot=SPOT)
    assert costs(asked, "c4") == pytest.approx(costs(plain, "c4"))
    assert costs(asked, "p2") != pytest.approx(costs(plain, "p2"), rel=0.1)

    # one run pays little or much; the mean is what is said
    (row,) = (r for r in asked.rows if r.device == "p2 spot" and r.world_size == 4)
    assert row.cost is not None
    assert row.cost.value == pytest.approx(0.395 * row.gpu_hours.value, rel=0.3)
    assert row.cost.value > 1.5 * row.cost.lo


UNLIKE = """\
device,gpus,nodes,global batch,step_time_s,price_usd,outcome
p2,1,1,64,1.0,2,completed
p2,2,1,128,1.05,2,completed
p2,4,1,512,,2,out_of_memory
c4,1,1,64,2.0,1,completed
c4,2,1,128,2.1,1,completed
c4,4,1,256,2.2,1,completed
"""


def test_counts_of_trials_name_their_device(tmp_path: Path) -> None:
    answer = table(UNLIKE, tmp_path).recommend(job=JOB)
    grounds = {ground.kind: ground.text for ground in answer.grounds}
    assert grounds["ignored"].startswith("p2: 1 of 3 trials ")
    assert grounds["memory"].startswith("p2: ")

    lines = UNLIKE.splitlines(keepends=True)
    alone = table("".join(lines[:4]), tmp_path, "alone")
    grounds = {ground.kind: ground.text for ground in alone.recommend(job=JOB).grounds}
    assert grounds["ignored"].startswith("1 of 3 trials ")
