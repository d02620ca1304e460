"""What the trials of a sweep that are left will take besides device time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scalelab.session.arguments import RecommendArguments
from scalelab.session.run import Run

if TYPE_CHECKING:
    from scalelab.running.sweep import Sweep


def spending_to_come(asked: Sweep) -> list[str]:
    """Return in words the money, energy and carbon that the trials left will take.

    It is empty where nothing is known of prices and powers, where prices are of several
    currencies, and before a trial of each kind has ended, in each node group.
    """
    if not (times := asked.source.times_left):
        return []
    from scalelab.recommend.answer.kept import Question
    from scalelab.recommend.answer.sentences import spent_in_words
    from scalelab.recommend.by_device import limits_of
    from scalelab.recommend.money.trials import in_all, trials_take
    from scalelab.recommend.question.devices import kinds_of
    from scalelab.recommend.question.objective import Constraints

    run = Run.open(asked.directory)
    question = Question(
        limits=Constraints(), quotes=tuple(run.quotes(RecommendArguments()))
    )
    limits = {
        group: limits_of(question, kind, run.observations, asked.site.groups.get(group))
        for kind in kinds_of(run.observations)
        for group in [kind.node_group or None]
    }

    is_known = {trial.node_group for trial, _ in times} <= limits.keys()
    if not is_known or len({limit.units("").currency for limit in limits.values()}) > 1:
        return []

    parts = [
        trials_take(
            limits[trial.node_group],
            *np.array([[held_s], [trial.world_size], [trial.allocation.num_nodes]]),
        )
        for trial, held_s in times
    ]

    units = next(iter(limits.values())).units(asked.device_hour_word)
    return spent_in_words(in_all(parts), units)
