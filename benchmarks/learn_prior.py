"""Learn the shipped prior about step-time curves from published measurements.

    python benchmarks/learn_prior.py --data DIR [--out FILE] [--leave-out MACHINE]

Expectation and maximisation: every curve is fitted under the present prior; the next
one has the mean and covariance of the fitted parameters, their uncertainty included,
shrunk to the physical guess below. What belongs to a machine is learned from machines,
however many curves each has; a source with many tables does not decide alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from score_adapter import observations

from scalelab.laws.rows import step_time_rows
from scalelab.laws.step_time.ensemble import Ensemble
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.prior import SHARE_OF_MACHINE
from scalelab.laws.step_time.shape_prior import ShapePrior, free_scale
from scalelab.laws.step_time.shapes import NUM_PARAMETERS, PARAMETERS, Shape

OF_MACHINE = np.array([SHARE_OF_MACHINE.get(name, 0.0) for name in PARAMETERS])
OUT = Path(__file__).parents[1] / "scalelab/laws/step_time/data/step_time_prior.json"
NUM_ROUNDS = 3
MEAN_WORTH, SPREAD_WORTH = 8.0, 12.0  # of the physical guess, in machines
MANY_POINTS = 15  # a curve with fewer tells nothing about its discrepancy
WEIGHT_OF_MANY = 3.0
# what physics suggests, mean and spread, in logs, exponents and log odds
GUESS = {
    "scale": (0.0, 3.0),
    "fixed_share": (0.5, 3.5),
    "batch_exponent": (0.97, 0.08),
    "batch_sharpness": (0.3, 0.5),
    "exchange": (-1.5, 1.5),
    "growth": (0.15, 0.2),
    "node_jump": (0.15, 0.5),
    "growth_per_node": (-0.05, 0.25),
    "growth_nodes": (0.12, 0.22),
    "second_node": (0.0, 0.3),
    "overlap": (0.3, 1.0),
    "imbalance": (-3.5, 1.2),
    "contention": (-5.5, 1.7),
}
SPECIAL = {
    Shape.TIERS: {
        "exchange": (-1.8, 1.5),
        "node_jump": (-0.3, 0.9),
        "growth_per_node": (0.15, 0.25),
        "growth_nodes": (0.3, 0.22),
    },
    Shape.ONE_RING: {},
    Shape.SATURATED: {
        "growth": (0.0, 0.05),
        "node_jump": (0.2, 0.6),
        "growth_per_node": (0.0, 0.1),
        "growth_nodes": (0.15, 0.12),
        "overlap": (-2.0, 0.5),
        "contention": (-7.0, 1.0),
    },
}
# these define the shape and are not learned
HELD = {
    Shape.SATURATED: (
        "growth",
        "growth_per_node",
        "growth_nodes",
        "overlap",
        "contention",
    )
}
# that two nodes are slower than three is a quirk of a few machines, no trend of all:
# how large such factors are is learned, that one is expected is not
CENTERED = "second_node"
AMPLITUDES = (np.log([0.05, 0.04, 0.03, 0.025]), np.array([0.7, 0.8, 1.1, 0.8]))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points of a curve, its weight, and how many curves its machine has."""

    points: Points
    weight: float
    beside: int

    @property
    def weights(self) -> np.ndarray:
        """How much it counts for each parameter, shape (13,).

        Curves of one machine tell the same about what belongs to the machine, and
        never count for more than the root of their number.
        """
        same = 1 / (1 + (self.beside - 1) * OF_MACHINE)
        return np.asarray(self.weight * np.minimum(same, self.beside**-0.5))


def physical_guess() -> dict[Shape, ShapePrior]:
    """Return the prior before any curve is seen."""
    priors = {}
    for shape in Shape:
        values = [(GUESS | SPECIAL[shape])[name] for name in PARAMETERS]
        mean, spread = np.array(values).T
        priors[shape] = ShapePrior(
            mean=mean,
            covariance=np.diag(spread**2),
            amplitude_mean=AMPLITUDES[0],
            amplitude_spread=AMPLITUDES[1],
        )
    return priors


def read_curves(table: pd.DataFrame) -> list[Curve]:
    """Return the curves of a published table, weighed by machine."""
    found = []
    for _, part in table.groupby(machine_of(table)):
        curves = step_time_rows(observations(part)).curves
        for frame in curves.values():
            points = Points.of(frame)
            weight = WEIGHT_OF_MANY if len(points) >= MANY_POINTS else 1.0
            found.append(Curve(points=points, weight=weight, beside=len(curves)))
    return found


def machine_of(table: pd.DataFrame) -> pd.Series:
    """Name what is left out together: a machine, or a source of small tables."""
    counts = table.groupby("curve_id")["step_time_s"].transform("size")
    large = counts.groupby(table["source"]).transform("median") >= MANY_POINTS
    return table["source"].where(~large, table["source"] + " " + table["gpu_type"])


def learn(curves: Sequence[Curve]) -> dict[Shape, ShapePrior]:
    """Alternate between fitting the curves and updating the priors."""
    guess = physical_guess()
    priors = guess
    for _ in range(NUM_ROUNDS):
        fits = [Ensemble.fit(curve.points, priors) for curve in curves]
        priors = {shape: _updated(shape, guess[shape], curves, fits) for shape in Shape}
    return priors


def _updated(
    shape: Shape, guess: ShapePrior, curves: Sequence[Curve], fits: Sequence[Ensemble]
) -> ShapePrior:
    weights = np.array([curve.weights for curve in curves])
    means, covariances = [], []
    for fit in fits:
        nodes = fit.fits[shape].nodes
        shares = np.array([node.share for node in nodes])
        centers = np.array([node.parameters for node in nodes])
        center = shares @ centers
        spread = sum(
            share * (node.covariance + np.outer(off, off))
            for share, node, off in zip(shares, nodes, centers - center, strict=True)
        )
        means.append(center)
        covariances.append(spread)
    total = weights.sum(axis=0)
    mean = (weights * np.array(means)).sum(axis=0) + MEAN_WORTH * guess.mean
    mean /= total + MEAN_WORTH
    mean[0] = mean[PARAMETERS.index(CENTERED)] = 0.0
    offsets = np.array(means) - mean
    squares = np.array(covariances) + np.einsum("ci,cj->cij", offsets, offsets)
    roots = np.sqrt(weights)
    spread = np.einsum("ci,cj,cij->ij", roots, roots, squares)
    worth = np.sqrt(total + SPREAD_WORTH)
    covariance = (spread + SPREAD_WORTH * guess.covariance) / np.outer(worth, worth)
    held = [PARAMETERS.index(name) for name in HELD.get(shape, ())]
    for position in held:
        mean[position] = guess.mean[position]
        covariance[position, :] = covariance[:, position] = 0.0
        covariance[position, position] = guess.covariance[position, position]
    amplitude_mean, amplitude_spread = _amplitudes(guess, curves, fits)
    return ShapePrior(
        mean=mean,
        covariance=free_scale(covariance),
        amplitude_mean=amplitude_mean,
        amplitude_spread=amplitude_spread,
    )


def _amplitudes(
    guess: ShapePrior, curves: Sequence[Curve], fits: Sequence[Ensemble]
) -> tuple[np.ndarray, np.ndarray]:
    weights = np.array(
        [
            c.weight / np.sqrt(c.beside) if len(c.points) >= MANY_POINTS else 0.0
            for c in curves
        ]
    )
    logs = np.array([fit.process.log_amplitudes for fit in fits])
    total = weights.sum()
    mean = (weights @ logs + 2 * guess.amplitude_mean) / (total + 2)
    squares = weights @ (logs - mean) ** 2 + 4 * guess.amplitude_spread**2
    return mean, np.sqrt(squares / (total + 4))


def table_of(priors: dict[Shape, ShapePrior]) -> dict[str, object]:
    """Return priors as plain numbers."""
    table = {}
    for shape, prior in priors.items():
        spread = np.sqrt(np.diag(prior.covariance))
        table[shape.value] = {
            "mean": prior.mean.round(3).tolist(),
            "spread": spread.round(3).tolist(),
            "correlation": (prior.covariance / np.outer(spread, spread))
            .round(3)
            .tolist(),
            "amplitude_mean": prior.amplitude_mean.round(3).tolist(),
            "amplitude_spread": prior.amplitude_spread.round(3).tolist(),
        }
    return table


def main() -> None:
    """Learn and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--leave-out", default="")
    arguments = parser.parse_args()
    table = pd.read_csv(arguments.data / "throughput.csv")
    table = table[machine_of(table) != arguments.leave_out]
    priors = learn(read_curves(table))
    assert priors[Shape.TIERS].mean.shape == (NUM_PARAMETERS,)
    text = {"parameters": PARAMETERS, "priors": table_of(priors)}
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
