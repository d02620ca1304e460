"""How good the answers of the command line are, beside a spreadsheet.

    python benchmarks/answers.py [--data DIR] [--generated 1] [--curves N]
                                 [--only TEXT] [--rows OUT]

From part of a measured table a run is imported as a user would: rows on one node, on up
to two, on up to four, or five probes. It is asked about the table's own device counts,
for a deadline (1.5 and 3 times the fastest within the batches seen) or a budget of
device-hours (1.3 times the cheapest), and the answer is held against the rest of the
table. DIR holds a published ``throughput.csv`` (see ``laws.py``); ``--generated N``
adds N machines of each kind whose truth is declared. Shares and means, per view and
question, and over all with a 90% interval that draws curves anew; OUT gets the rows
behind them (``answers.csv``, ``intervals.csv``):

wild      the global batch exceeds every one measured, or the local batch does
unjudged  nothing in the full table tells the chosen configuration's time
broken    of the judged answers that say they meet the limits: they break one by 5%
brier     mean square of the stated probability minus whether the limits held
lost      'nothing meets', though a measured row meets the limits with 15% to spare
unseen    of the answer's rows that were not measured: the interval holds the truth
regret    device-hours (deadline) or time (budget) over the best that holds the limit
          within the batches seen, at most 2; 2 where refused, broken or given up though
          something meets; not counted where nothing does, or where it is unjudged
again     the same with the measurement added that the answer proposes
sheet     the same of the best measured row: what a spreadsheet gives
legal     the same of perfect knowledge that takes no second node where one was measured

Regrets are means of the means by curve; the difference from the sheet is paired.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from answer_truths import (
    CONFIGURATION,
    Configuration,
    Curve,
    configuration,
    generated_curves,
    imported,
    published_curves,
    views,
)

from scalelab.errors import ScaleLabError
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.session import answer_text

QUESTIONS = {
    "deadline 1.5": ("hours", 1.5),
    "deadline 3": ("hours", 3.0),
    "budget 1.3": ("gpu_hours", 1.3),
}
OTHER = {"hours": "gpu_hours", "gpu_hours": "hours"}
WORST = 2.0
SHOWN = ["workload", "gpu_type", *CONFIGURATION, "step_time_s"]
SHARES = ["wild", "unjudged", "broken", "brier", "lost", "unseen"]
REGRETS = ["regret", "again", "sheet", "legal"]

Answer = Recommendation | ScaleLabError


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question about one view of a curve, and what is true."""

    curve: Curve
    seen: pd.DataFrame
    samples: float
    inside: pd.DataFrame
    limited: str = "hours"
    limit: float = np.inf

    @property
    def minimised(self) -> str:
        return OTHER[self.limited]

    def answer(self, seen: pd.DataFrame, home: Path, **options: Any) -> Answer:
        """Import rows and ask; a refusal is an answer."""
        limits: dict[str, Any] = (
            {"max_time": f"{self.limit * 3600:.6g}s"}
            if self.limited == "hours"
            else {"max_gpu_hours": self.limit}
        )
        try:
            return imported(seen[SHOWN], home).recommend(
                job={"samples": int(self.samples)},
                gpus=sorted({int(size) for size in self.curve.rows["gpus"]}),
                **limits,
                **options,
            )
        except ScaleLabError as error:
            return error

    def amounts(self, at: Configuration) -> dict[str, np.ndarray] | None:
        """Return hours and device-hours of further runs; None: not known."""
        step_s = self.curve.further_runs_s(at)
        if step_s is None:
            return None
        hours = step_s * self.samples / at.global_batch / 3600
        return {"hours": hours, "gpu_hours": hours * at.gpus}

    @property
    def meeting(self) -> pd.DataFrame:
        """The configurations of the table that meet the limit nine times in ten."""
        return self.inside[
            self.inside[self.limited] * self.inside["sure"] <= self.limit
        ]

    def regret(self, at: Configuration) -> float:
        """Return what a configuration costs over the best one, the worst if broken.

        Not a number where the table cannot tell.
        """
        amounts = self.amounts(at)
        if amounts is None:
            return np.nan
        if np.median(amounts[self.limited]) > 1.05 * self.limit:
            return WORST
        return self.excess(float(np.median(amounts[self.minimised])))

    def excess(self, cost: float) -> float:
        """Return the share by which a cost exceeds the least that meets the limit."""
        best = self.meeting[self.minimised].min() if len(self.meeting) else 0.0
        return float(np.clip(cost / best - 1, 0, WORST)) if best else WORST

    @property
    def legal(self) -> float:
        """The regret of perfect knowledge that takes no second node unseen."""
        alone = self.meeting[self.meeting["nodes"] <= 1]
        may = alone if self.seen["nodes"].max() == 1 else self.meeting
        return self.excess(may[self.minimised].min()) if len(may) else WORST


def known_truths(curve: Curve, samples: float) -> pd.DataFrame:
    """Return a table's configurations: batches, true hours, and 9 in 10 over these."""
    found = curve.rows[CONFIGURATION].round().astype(int).drop_duplicates()
    steps = [
        curve.further_runs_s(Configuration(*at)) for at in found.itertuples(index=False)
    ]
    found["global_batch"] = found["gpus"] * found["local_batch"] * found["accum_steps"]
    middle = np.array([np.median(each) for each in steps])
    found["sure"] = [np.quantile(each, 0.9) for each in steps] / middle
    found["hours"] = middle * samples / found["global_batch"] / 3600
    found["gpu_hours"] = found["hours"] * found["gpus"]
    return found


def unlimited(
    curve: Curve, parts: Mapping[str, pd.DataFrame]
) -> Iterator[tuple[str, Asked]]:
    """Yield, by the name of what is known of a curve, a question without a limit."""
    samples = float(curve.rows["global_batch"].max() * 2000)
    full = known_truths(curve, samples)
    for view, seen in parts.items():
        inside = full[full["global_batch"] <= seen["global_batch"].max()]
        yield view, Asked(curve=curve, seen=seen, samples=samples, inside=inside)


def questions(curve: Curve) -> Iterator[tuple[str, str, Asked]]:
    """Yield view, question and what is asked."""
    for view, asked in unlimited(curve, views(curve.rows)):
        for question, (limited, factor) in QUESTIONS.items():
            limit = factor * float(asked.inside[limited].min())
            yield view, question, replace(asked, limited=limited, limit=limit)


def scored(asked: Asked, answer: Answer) -> dict[str, Any]:
    """Return what is true of the chosen configuration, and its regret."""
    some = len(asked.meeting) > 0
    if not isinstance(answer, Recommendation):
        return {"said": f"refused: {answer}", "regret": WORST if some else np.nan}
    chosen, at = answer.chosen, configuration(answer.chosen)
    amounts, seen = asked.amounts(at), asked.seen
    score = {
        "said": " ".join(answer_text(answer, 100).split()[:40]),
        "meets": answer.meets_constraints,
        "p": chosen.probability,
        "basis": str(chosen.basis),
        "at": str(tuple(at)),
        "wild": at.global_batch > 1.001 * seen["global_batch"].max()
        or at.local_batch > seen["local_batch"].max(),
        "unjudged": amounts is None,
    }
    if not answer.meets_constraints:
        return score | {"regret": WORST if some else np.nan}
    if amounts is not None:
        limited = amounts[asked.limited]
        score["true"] = np.median(limited) / asked.limit
        score["broken"] = score["true"] > 1.05
        held = limited <= asked.limit
        score["brier"] = float(np.mean((chosen.probability - held) ** 2))
    return score | {"regret": asked.regret(at)}


def again(asked: Asked, answer: Answer, home: Path) -> float | None:
    """Return the regret once the proposed measurement is there; None: it is not."""
    proposed = answer.next_trial if isinstance(answer, Recommendation) else None
    if proposed is None:
        return None
    nodes = sum(
        int(part.split("x")[0]) if "x" in part else 1
        for part in proposed.allocation.split("+")
    )
    at = Configuration(
        proposed.world_size,
        nodes,
        proposed.batch.local_batch_size,
        proposed.batch.gradient_accumulation_steps,
    )
    more = asked.curve.measured(at, asked.seen)
    if more is None:
        return None
    answered = asked.answer(pd.concat([asked.seen, more]), home)
    return float(scored(asked, answered)["regret"])


def spreadsheet(asked: Asked) -> tuple[float, bool]:
    """Return the regret of the best measured row, and whether one is a safe choice."""
    steps = asked.seen.groupby(CONFIGURATION)["step_time_s"].median().reset_index()
    at = [Configuration(*map(round, each)) for each in steps[CONFIGURATION].to_numpy()]
    total = np.array([each.global_batch for each in at])
    hours = steps["step_time_s"].to_numpy() * asked.samples / total / 3600
    spent = {"hours": hours, "gpu_hours": hours * steps["gpus"].to_numpy()}
    holds = spent[asked.limited] <= asked.limit
    if not holds.any():
        return WORST, False
    best = int(np.where(holds, spent[asked.minimised], np.inf).argmin())
    safe = [
        bool(np.quantile(truth[asked.limited], 0.9) <= 0.85 * asked.limit)
        for truth in map(asked.amounts, at)
        if truth is not None
    ]
    return asked.regret(at[best]), any(safe)


def coverage(asked: Asked, answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield per row of an answer the share of further runs that its interval holds."""
    keys = asked.seen[CONFIGURATION].round().astype(int).itertuples(index=False)
    known = {Configuration(*key) for key in keys}
    for row in answer.rows if isinstance(answer, Recommendation) else ():
        amounts = asked.amounts(configuration(row))
        if amounts is not None:
            time_s = 3600 * amounts["hours"]
            yield {
                "basis": str(row.basis),
                "seen": configuration(row) in known,
                "held": np.mean((row.time_s.lo <= time_s) & (time_s <= row.time_s.hi)),
                "width": np.log(row.time_s.hi / row.time_s.lo),
                "bias": np.log(row.time_s.value / np.median(time_s)),
            }


@dataclass(frozen=True)
class Findings:
    """One row per answer, and one per row of an answer."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, curve: Curve) -> None:
        """Ask every question about a curve."""
        with tempfile.TemporaryDirectory() as home:
            for view, question, asked in questions(curve):
                about = {"curve": curve.name, "view": view, "question": question}
                answer = asked.answer(asked.seen, Path(home))
                rows = [about | each for each in coverage(asked, answer)]
                self.rows.extend(rows)
                row = about | scored(asked, answer)
                unseen = [each["held"] for each in rows if not each["seen"]]
                row["unseen"] = np.mean(unseen) if unseen else np.nan
                repeated = again(asked, answer, Path(home))
                row["again"] = row["regret"] if repeated is None else repeated
                row["sheet"], is_safe = spreadsheet(asked)
                row["legal"] = asked.legal
                if not len(asked.meeting):
                    row |= {"sheet": np.nan, "legal": np.nan}
                row["lost"] = is_safe and not row.get("meets", False)
                self.answers.append(row)

    def frame(self) -> pd.DataFrame:
        """Return the answers; numbers are missing where there is nothing to judge."""
        found = pd.DataFrame(self.answers)
        for name in (*SHARES, *REGRETS):
            if name not in found:
                found[name] = np.nan
            found[name] = found[name].astype(float)
        return found


def spread(by_curve: pd.DataFrame) -> pd.DataFrame:
    """Return means over curves and their 90% intervals, curves drawn anew."""
    values = by_curve.to_numpy()
    drawn = np.random.default_rng(0).integers(len(values), size=(2000, len(values)))
    ends = np.nanquantile(np.nanmean(values[drawn], axis=1), [0.05, 0.95], axis=0)
    return pd.DataFrame({"mean": by_curve.mean(), "lo": ends[0], "hi": ends[1]})


def shown_by_curve(answers: pd.DataFrame) -> None:
    """Print what each curve's answers lose, and means over curves."""
    judged = answers.dropna(subset=["regret", "sheet"])
    losses = judged.groupby("curve")[REGRETS].mean()
    losses["less sheet"] = losses["regret"] - losses["sheet"]
    print(losses.round(3).to_string(), "\n")
    shares = answers.groupby("curve")[SHARES].mean()
    print(f"all: {len(answers)} answers on {len(shares)} curves")
    print(spread(shares.join(losses)).round(3).to_string(), "\n")
    means = losses.mean()
    against = (means[["regret", "again", "legal"]] / means["sheet"]).round(2)
    print(f"of the sheet's loss: {against.to_dict()}")
    for name in ("regret", "sheet"):
        met = judged.loc[judged[name] < WORST, name]
        print(f"{name}: {len(met)} of {len(judged)} met, excess {met.median():.3f}\n")


def show(found: Findings) -> None:
    """Print the figures."""
    answers, rows = found.frame(), pd.DataFrame(found.rows)
    columns = [*SHARES, *REGRETS]
    for by in (["view"], ["question"], ["view", "question"]):
        grouped = answers.groupby(by)[columns].mean()
        sizes = answers.groupby(by).size().rename("n")
        print(grouped.join(sizes).round(3).to_string(), "\n")
    shown_by_curve(answers)
    print("80% intervals: share held; width, error and bias in logs")
    rows = rows.assign(error=rows["bias"].abs())
    grouped = rows.groupby(["seen", "basis"])[["held", "width", "error", "bias"]]
    means = grouped.mean().join(grouped.size().rename("n"))
    print(means.round(3).to_string())


def main() -> None:
    """Print the figures of published and generated tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--generated", type=int, default=0, metavar="N")
    parser.add_argument("--curves", type=int)
    parser.add_argument("--only", default="", help="curves whose name contains this")
    parser.add_argument("--rows", type=Path)
    asked = parser.parse_args()
    if asked.data is None and not asked.generated:
        parser.error("nothing to judge: give --data DIR, --generated N, or both")
    warnings.simplefilter("ignore")
    published = (
        published_curves(pd.read_csv(asked.data / "throughput.csv"))
        if asked.data
        else iter(())
    )
    curves = chain(published, generated_curves(asked.generated))
    found = Findings()
    for curve in [c for c in curves if asked.only in c.name][: asked.curves]:
        found.add(curve)
        print(curve.name, file=sys.stderr, flush=True)
        if asked.rows:
            asked.rows.mkdir(parents=True, exist_ok=True)
            found.frame().to_csv(asked.rows / "answers.csv", index=False)
            pd.DataFrame(found.rows).to_csv(asked.rows / "intervals.csv", index=False)
    show(found)


if __name__ == "__main__":
    main()
