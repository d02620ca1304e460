"""What the text of an answer says and what its JSON says agree, fact by fact."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated_tables import MAKERS
from imported_tables import imported

from scalelab.errors import FitError, SpecError
from scalelab.recommend.answer.note_words import in_words
from scalelab.recommend.answer.text import allocations, answer_text
from scalelab.session.answer import Answer
from scalelab.session.run import Run

WIDE = 1000
NUM_QUESTIONS = 8
# the unit of a figure, and how much of the JSON's unit it is
SCALES = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "days": 86400.0,
    "%": 0.01,
    **dict.fromkeys(("GPU-s", "core-s", "emulated GPU-s"), 1 / 3600),
    "GiB": 2.0**30,
    "Gbit/s": 1.25e8,
}
FIGURE = re.compile(
    r"(?<![\w.])([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?)(?:\s?(%|us|ms|s|min|h|days|"
    r"GPU-s|core-s|emulated GPU-s|GiB|Gbit/s)(?![\w/-]))?"
)
# of a time, such as 8.3 min [7.9-8.7]
ENDS = re.compile(r"(\d) (us|ms|s|min|h|days) \[([\d.,]+)(?:-| or more)([\d.,]*)\]")
SAID_TWICE = ("facts", "notes", "unsupported", "failures")
NAMED = ("not_sure_enough", "on_the_edge", "faster", "to_submit_now")
EXAMPLE = "200Gbit/s"  # of a link, which no answer knows
Figure = tuple[float, float]  # a value in the JSON's unit, and half its last digit


def figures(text: str) -> Iterator[Figure]:
    """Yield the figures of a text; those of a size such as ``2x8`` apart."""
    text = ENDS.sub(r"\1 \2 \3 \2 \4 \2", text)
    for found, unit in FIGURE.findall(re.sub(r"(?<=\d)[x=-](?=\d)", " ", text)):
        plain = found.replace(",", "").rstrip(".")
        mantissa, _, power = plain.partition("e")
        digits = len(mantissa.partition(".")[2])
        scale = SCALES.get(unit, 1.0)
        yield float(plain) * scale, 0.51 * 10.0 ** (int(power or 0) - digits) * scale


def leaves(value: Any) -> Iterator[float]:
    """Yield the numbers in JSON values, those written in their texts included."""
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, str):
        yield from (each for each, _ in figures(value))
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each)
    elif value is not None and not isinstance(value, bool):
        yield float(value)


def unsaid(text: str, values: Iterable[float]) -> list[Figure]:
    """Return the figures of a text that are none of some values, nor 100%."""
    values = (*values, 1.0) if "over 100%" in text else values
    known = np.array([*values])
    known = np.concatenate([known, -known])
    return [
        (figure, half)
        for figure, half in figures(text)
        if not (np.abs(known - figure) <= half + 1e-9 * abs(figure)).any()
    ]


def contradictions(answer: Answer, asked: Mapping[str, Any]) -> list[str]:
    """Return in which points text and JSON, or two facts, do not agree."""
    values = json.loads(json.dumps(answer.to_json(), allow_nan=False))
    return [
        *(f"{said!r} of {fact.kind}: {found}" for fact, said, found in _facts(answer)),
        *_table(answer, values),
        *_sentences(answer, values),
        *_named(values),
        *_question(values, asked),
    ]


def _facts(answer: Answer) -> Iterator[Any]:
    for fact in answer.facts:
        values = json.loads(json.dumps(dict(fact.values)))
        numbers = [*leaves(values)]
        shares = [1 - v for v in numbers]
        ratios = [1 / v for v in numbers if v]
        more = [v - 1 for v in numbers]
        # a confidence that a chance suffices for is rounded down
        sure = min(int(100 * (values.get("probability") or 0)), 99) / 100
        known = [*numbers, *shares, *ratios, *more, sure, 0.99, 0.01]
        said = in_words(fact, answer.device_word).replace(EXAMPLE, "")
        if found := unsaid(said, known):
            yield fact, said, found


def borne(interval: Mapping[str, float]) -> float:
    """The value with two digits, or more where the interval is narrow."""
    value = interval["value"]
    width = (interval["hi"] - interval["lo"]) / value
    digits = next(n for n, wide in ((2, 0.1), (3, 0.01), (4, 0.0)) if width >= wide)
    return round(value, digits - 1 - math.floor(math.log10(value)))


def _table(answer: Answer, values: Mapping[str, Any]) -> Iterator[str]:
    columns = allocations(answer)
    read = {
        "size": lambda row: [row["world_size"]],
        "time": lambda row: [row["time_s"]["value"]],
        "device_hours": lambda row: [row["gpu_hours"]["value"]],
        "money": lambda row: [row["cost_usd"]["value"]],
        "efficiency": lambda row: [row["scaling_efficiency"]],
        "chance": lambda row: [row["probability"], 0.99, 0.01],
        "speed": lambda row: [borne(row["throughput_samples_per_s"])],
        "tokens": lambda row: [borne(row["throughput_tokens_per_s"])],
        "utilization": lambda row: [row["flops_utilization"]["value"]],
        "next": lambda row: [
            *(row["next_time_change"], row["next_gpu_hours_change"]),
            row["next_world_size"],
        ],
        "nodes": lambda row: leaves(row["allocation"]),
        "batch": lambda row: leaves(row["batch"]),
        "layout": lambda row: leaves(row["settings"]),
    }
    for name, (title, *cells) in columns.items():
        if name in ("basis", "interval", "barred"):
            continue
        for cell, row in zip(cells, values["rows"], strict=True):
            unit = title.rpartition("-")[2]
            scaled = f"{cell} GPU-s" if unit == "s" and name == "device_hours" else cell
            if cell and (found := unsaid(scaled, read[name](row))):
                yield f"{name} {cell} at {row['world_size']}: {found}"
    for row, cell in zip(values["rows"], columns["interval"][1:], strict=True):
        unit = columns["time"][1 + values["rows"].index(row)].split()[-1]
        ends = " ".join(f"{end} {unit}" for end in cell.split("-"))
        if found := unsaid(ends, leaves(row["time_s"])):
            yield f"interval {cell} at {row['world_size']}: {found}"
    for row, cell in zip(values["rows"], columns["basis"][1:], strict=True):
        if row["basis"] != cell:
            yield f"basis {cell} at {row['world_size']}"
    for row, cell in zip(values["rows"], columns.get("barred", ())[1:], strict=False):
        if (row["barred_by"] or "") != cell:
            yield f"barred by {cell} at {row['world_size']}"


def _sentences(answer: Answer, values: Mapping[str, Any]) -> Iterator[str]:
    # a long command goes on behind a backslash
    shown = answer_text(answer, WIDE, explain=True).replace(" \\\n", " ")
    text = " ".join(shown.split())
    for name in ("notes", "unsupported"):
        for said in values[name]:
            if " ".join(said.split()) not in text:
                yield f"not in the text: {said}"
    about = {k: v for k, v in values.items() if k not in SAID_TWICE}
    saved = [f[n] for f in values["facts"] for n in ("speedup", "cost_ratio") if n in f]
    saved += [1 / each for each in saved]
    known = [*leaves(about), 0.99, 0.01, *saved, *(1 - each for each in saved)]
    from_facts = {in_words(fact, answer.device_word) for fact in answer.facts}
    for said in answer.sentences:
        if " ".join(said.split()) not in text:
            yield f"not in the text: {said}"
        if said not in from_facts and (found := unsaid(said, known)):
            yield f"{said!r}: {found}"
    chosen = next(row for row in values["rows"] if row["is_chosen"])
    names = [values["limits"], values["device_name"]]
    if unsaid(answer.sentences[0], leaves([chosen, *names])):
        if values["meets_constraints"]:
            yield f"{answer.sentences[0]!r} is not the chosen row"
    marked = re.findall(
        r"^ *>(\d+)", answer_text(answer, WIDE, explain=True), re.MULTILINE
    )
    if marked != [str(chosen["world_size"])]:
        yield f"marked {marked}"
    if text.startswith("Nothing meets") == values["meets_constraints"]:
        yield "meets and does not meet"
    knee = values["knee"]
    is_claimed = (
        "Doubling stops paying" in text.partition("Doubling stops paying where")[0]
    )
    if is_claimed != (knee is not None and knee["term"] is not None):
        if not (knee and knee["lo"] is None):
            yield f"knee {knee}"
    if "is open" in text and knee["probability_in_range"] is not None:
        yield f"knee that is open: {knee}"


def _named(values: Mapping[str, Any]) -> Iterator[str]:
    rows = {
        (row["world_size"], row["allocation"], row["batch"]["local_batch_size"]): row
        for row in values["rows"]
    }
    sizes = {row["world_size"]: row for row in values["rows"]}
    chosen = next(row for row in values["rows"] if row["is_chosen"])
    for fact in values["facts"]:
        kind = fact["kind"]
        at = tuple(
            fact.get(n) for n in ("world_size", "allocation", "local_batch_size")
        )
        if kind in NAMED and (row := rows.get(at)):
            if unsaid(fact["takes"][0], [fact["time_s"]]):
                yield f"{kind}: {fact['takes'][0]} against {fact['time_s']}"
            same = (row["settings"], row["batch"]["global_batch_size"]) == (
                *(fact["settings"], fact["global_batch_size"]),
            )
            if same and not np.isclose(row["time_s"]["value"], fact["time_s"]):
                yield f"{kind}: {fact['time_s']} against {row['time_s']}"
            if same and row["basis"] != fact["basis"]:
                yield f"{kind}: {fact['basis']} against {row['basis']}"
            is_chance = same and fact["limits"]
            if is_chance and not np.isclose(row["probability"], fact["probability"]):
                yield f"{kind}: {fact['probability']} against {row['probability']}"
        if kind in ("faster", "on_the_edge") and fact["than"] != chosen["world_size"]:
            yield f"{kind}: than {fact['than']}"
        if kind == "against_cheapest":
            allowed = [
                r["gpu_hours"]["value"] for r in values["rows"] if r["is_eligible"]
            ]
            if not np.isclose(
                fact["more"], chosen["gpu_hours"]["value"] / min(allowed) - 1
            ):
                yield f"{kind}: {fact}"
        if kind == "extrapolated" and (
            fact["world_size"] != chosen["world_size"] or chosen["basis"] == "measured"
        ):
            yield f"{kind}: {fact}"
        if kind == "efficiency" and values["baseline"].split()[0] != str(
            fact["world_size"]
        ):
            yield f"{kind}: {fact} against {values['baseline']}"
        if kind == "considered" and not (
            {fact["least"], fact["most"]} == {min(sizes), max(sizes)}
        ):
            yield f"{kind}: {fact}"


def _question(values: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    if values["confidence"] != asked.get("confidence", 0.9):
        yield f"confidence {values['confidence']}"
    if price := asked.get("price_per_gpu_hour_usd"):
        for row in values["rows"]:
            cost, hours = (row[n]["value"] for n in ("cost_usd", "gpu_hours"))
            if not np.isclose(cost, price * hours):
                yield f"cost {cost} of {hours} GPU-h at {price}"
    said = [*leaves(values["limits"])]
    for name in ("max_time_s", "max_gpu_hours", "max_cost_usd"):
        if (limit := asked.get(name)) and not any(
            unsaid(word, [limit]) == [] for word in values["limits"]
        ):
            yield f"{name} {limit} is said as {said}"
    believed = {f["kind"]: f for f in values["facts"]}
    if ("batch" in asked or "job" in asked) != ("asked_job" in believed):
        yield "the job that was asked is not said"
    if (asked.get("law", "scalelab") != "scalelab") and "believed" not in believed:
        yield "the law that was asked is not said"
    is_guessed = any(row["basis"] == "not measured here" for row in values["rows"])
    states = {"between_nodes", "accept_unmeasured"} & {*asked}
    if is_guessed and states and "believed" not in believed:
        yield "what was believed is not said"


def questions(
    rng: np.random.Generator, rows: Any, count: int
) -> Iterator[dict[str, Any]]:
    """Yield questions about a table: a job, limits, choices and beliefs at random."""
    sizes, batches = sorted({*rows["gpus"]}), sorted({*rows["global_batch"]})
    samples = int(max(batches)) * 2000
    time_s = float((rows["step_time_s"] * samples / rows["global_batch"]).median())
    for _ in range(count):
        limit_s = time_s * float(np.exp(rng.normal(0, 1.2)))
        any_of = {
            "max_time_s": limit_s,
            "max_gpu_hours": max(sizes) * limit_s / 3600,
            "max_cost_usd": 2.5 * max(sizes) * limit_s / 3600,
            "gpus": sorted({int(n) for n in rng.integers(1, 4 * max(sizes), 3)}),
            "max_batch": int(rng.integers(1, 9)) * 10_000,
            "batch": int(rng.choice(batches)),
            "local_batch": int(rng.choice(rows["local_batch"])),
            "select": {"world_size": int(rng.choice(sizes))},
            "between_nodes": f"{rng.integers(1, 400)}Gbit/s",
            "accept_unmeasured": True,
            "law": str(rng.choice(["amdahl", "usl", "power", "pollux"])),
            "confidence": round(float(rng.uniform(0.5, 0.99)), 3),
        }
        weights = np.array([3, 3, 3, 2, 1, 2, 1, 1, 2, 2, 1, 3.0])
        names = rng.choice(
            [*any_of], rng.integers(0, 6), replace=False, p=weights / weights.sum()
        )
        asked = {str(name): any_of[name] for name in names}
        if asked.get("law"):
            asked.pop("between_nodes", None)
        if asked.get("batch"):
            asked.pop("max_batch", None)
        if rng.random() < 0.6 or "max_cost_usd" in asked:
            asked["price_per_gpu_hour_usd"] = 2.5
        yield {"job": {"samples": samples}, **asked}


def disagreements(run: Run, rows: Any, seed: int, count: int) -> tuple[int, list[str]]:
    answered, found = 0, []
    for asked in questions(np.random.default_rng(seed), rows, count):
        try:
            answer = run.recommend(**asked)
        except (FitError, SpecError):
            continue
        answered += 1
        found += [f"{each}  ({asked})" for each in contradictions(answer, asked)]
    return answered, found


# Tables whose answers say what others do not.
IN_CI = {
    ("plain", 2),
    ("scatter 15%", 4),
    ("missing batch", 4),
    ("accumulation", 4),
    ("weak", 4),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "nodes"),
    [
        pytest.param(*case, marks=() if case in IN_CI else pytest.mark.repetition)
        for case in [("plain", 2), *product(MAKERS, (1, 4))]
    ],
)
def test_text_and_json_agree(kind: str, nodes: int, tmp_path: Path) -> None:
    rows = MAKERS[kind](kind, np.random.default_rng(3)).rows
    rows = rows[rows["nodes"] <= nodes].reset_index(drop=True)
    run = imported(rows, tmp_path)
    answered, found = disagreements(run, rows, len(kind) + nodes, NUM_QUESTIONS)
    assert found == []
    assert answered >= NUM_QUESTIONS / 2
