"""What an answer refuses, each refusal by its code, and what its notes say."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from made_up_sweeps import sweep
from measured_runs import COMMAND, measured_run
from sample_notes import NOTES
from sentences import Golden
from test_by_device import question

from scalelab.experiment.job import Job
from scalelab.inputs.links import Link
from scalelab.recommend.answer.argument_words import ground
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.note_words import in_words
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.by_device import answer
from scalelab.recommend.knowledge import History
from scalelab.recommend.money.history import PriceHistory
from scalelab.recommend.money.prices import GIVEN, Quote
from scalelab.recommend.question.batches import AskedBatch
from scalelab.recommend.question.objective import Constraints
from scalelab.session import load
from scalelab.site.prices import PriceEntry
from scalelab.site.spot import AskedSpot

RARELY = {"spot": AskedSpot.model_validate({"interrupted_every": "12h"})}
SHORT = sweep((1, 2), local_batches=(16,), repeats=2)
FREE = sweep((1, 2), global_batch=None, local_batches=(16, 32), repeats=2)
LARGE = SHORT[SHORT["world_size"] > 1].reset_index(drop=True)
TWO = pd.concat([SHORT, SHORT.assign(device_name="K80")], ignore_index=True)
OF_64S = sweep((1, 2, 4, 8), global_batch=None, local_batches=(64,), repeats=1)
FAILED = OF_64S.assign(outcome="out_of_memory", step_time_s=None)
TRIED = pd.concat([FREE, FAILED], ignore_index=True)
TOKENS = Job(tokens=10_000, sequence_length=1024)
STEPS = {"job": Job(steps=1000)}
OF_64 = {"job": Job(samples=1e6, global_batch_size=64)}


def ask(frame: pd.DataFrame = SHORT, **changes: Any) -> Recommendation:
    history = changes.pop("history", None)
    return answer(replace(question(), **changes), frame, {}, history)


def quoted(*prices: tuple[str | None, object], **terms: Any) -> dict[str, Any]:
    entries = [
        PriceEntry(device=name, on_demand=price, **terms) for name, price in prices
    ]
    return {
        "quotes": tuple(Quote(entry=e, rank=GIVEN, said_by="as given") for e in entries)
    }


def spot(**terms: Any) -> dict[str, Any]:
    return {"spot": AskedSpot.model_validate(terms)}


def limit(**amounts: float) -> dict[str, Any]:
    return {"limits": Constraints(limits=amounts)}


def read_prices(path: Path, text: str) -> PriceHistory:
    path.write_text(text)
    return PriceHistory.read(path)


def script_of_five(folder: Path) -> str:
    (folder / "train.py").write_text("")
    run = load(measured_run(folder / "run", COMMAND).directory)
    found = run.recommend(gpus=[5])
    rows = [replace(row, is_chosen=row.world_size == 5) for row in found.rows]
    return str(run.job_script(replace(found, rows=tuple(rows))))


def test_every_note_has_a_sentence(golden: Golden) -> None:
    said: dict[str, list[str]] = {}
    for kind, values in NOTES:
        said.setdefault(f"note {kind}", []).append(in_words(Fact(kind, values), "GPU"))
        with suppress(KeyError):  # not every note is among the grounds of an answer
            said.setdefault(f"ground {kind}", []).append(ground(kind, values, "GPU"))

    for heading, sentences in said.items():
        if sentences:
            golden.hold(heading, *sentences)


def test_every_refusal_has_a_code_and_a_sentence(
    tmp_path: Path, golden: Golden
) -> None:
    past = tmp_path / "spot.csv"
    hours = [f"2026-11-01T{hour:02}:00:00Z,0.1" for hour in range(24)]
    past.write_text("\n".join(["time,usd", *hours]))
    bad = tmp_path / "bad.csv"
    other = SHORT.assign(device_name="H100", workload="other")
    before = History.of([("before", other)])
    rows = [
        ("no_job", partial(ask, job=None)),
        ("no_job", partial(ask, job=Job(epochs=3))),
        (
            "other_sequence_length",
            partial(ask, SHORT.assign(sequence_length=512), job=TOKENS),
        ),
        ("device_hours_of_several", partial(ask, TWO, **limit(device_hours=9.0))),
        ("several_values", partial(ask, pd.concat([SHORT, other], ignore_index=True))),
        ("unknown_column", partial(ask, select={"colour": "red"})),
        ("value_not_measured", partial(ask, select={"workload": "third"})),
        ("law_learns_alone", partial(ask, law="usl", history=before)),
        ("nothing_to_learn", partial(ask, history=before)),
        (
            "law_without_links",
            partial(ask, law="usl", between_nodes=Link.parse("100Gbit/s")),
        ),
        ("pool_too_small", partial(ask, LARGE, runs=24, pool=1)),
        ("walltime_too_short", partial(ask, walltime_s=120.0, checkpoint_s=119.9)),
        ("no_accuracy_gap", partial(ask, limits=Constraints(max_gap=0.01))),
        ("steps_of_several_batches", partial(ask, FREE, **STEPS)),
        (
            "only_batch_too_large",
            partial(ask, **STEPS, batches=AskedBatch(largest=64)),
        ),
        (
            "batch_said_twice",
            partial(AskedBatch, global_batch_size=8, largest=16),
        ),
        (
            "batch_of_job_too_large",
            partial(ask, **OF_64, batches=AskedBatch(largest=32)),
        ),
        (
            "batch_not_shared",
            partial(ask, batches=AskedBatch(local_batch_size=4096)),
        ),
        (
            "batch_beyond_memory",
            partial(ask, TRIED, batches=AskedBatch(local_batch_size=64)),
        ),
        (
            "limit_not_positive",
            partial(Constraints, limits={"device_hours": -1.0}),
        ),
        (
            "nothing_measured_to_choose",
            partial(ask, OF_64S, **limit(time=7e4), batches=AskedBatch(largest=16)),
        ),
        ("limit_without_price", partial(ask, **limit(money=20.0))),
        ("limit_without_price", partial(ask, **limit(energy=3.0))),
        ("limit_without_price", partial(ask, **limit(carbon=3.0))),
        ("device_not_measured", partial(ask, **quoted(("c5", 2)))),
        ("several_prices", partial(ask, **quoted(("A100", 2), ("A100", 3)))),
        (
            "several_currencies",
            partial(ask, TWO, **quoted(("A100", 2), ("K80", "3eur"))),
        ),
        ("cores_unknown", partial(ask, **quoted((None, 0.5), per="core_hour"))),
        ("several_powers", partial(ask, power=(("A100", 250.0), ("A100", 300.0)))),
        ("unreadable_prices", partial(read_prices, bad, "")),
        ("no_price_columns", partial(read_prices, bad, "a,b\n1,2")),
        ("too_few_prices", partial(read_prices, bad, "time,usd\n2026-01-01,1")),
        (
            "bad_price_line",
            partial(read_prices, bad, "time,usd\n2026-01-01,1\nnoon,1"),
        ),
        ("spot_not_compared", partial(ask, **spot(price=0.3))),
        (
            "spot_not_compared",
            partial(ask, **limit(money=20.0), **quoted((None, 2)), **RARELY),
        ),
        ("spot_of_several_devices", partial(ask, TWO, **spot(history=past))),
        (
            "spot_in_other_currency",
            partial(
                ask,
                **quoted((None, "4eur")),
                **spot(price="3usd", interrupted_every="6h"),
            ),
        ),
        ("uneven_nodes", partial(script_of_five, tmp_path)),
    ]
    golden.refusals(rows)
