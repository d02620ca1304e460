"""Step times of workers that wait for nobody, from the moments their steps ended."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ServedLog:
    """The optimiser steps that a server has seen end."""

    began_ns: int
    is_over: bool
    ended: tuple[tuple[int, int], ...]


class StepTimes:
    """Step times of a series: from one end of as many optimiser steps as workers on.

    At its end nothing more is granted, and workers that are done wait for the others.
    That wait is no step time: the last steps end when they would have ended had
    everybody gone on, each worker at its own pace so far.

    Examples
    --------
    A worker that needs 1 s, and one that needs 5 s and has the last step:

    >>> times = StepTimes(2)
    >>> ends = ((0, 1), (0, 2), (0, 3), (1, 5))
    >>> log = ServedLog(0, True, tuple((who, at * 10**9) for who, at in ends))
    >>> times.of(log), times.of_the_rest()
    ([], [2.0, 2.0])
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._counts = [0] * num_workers
        self._last_ns = [0] * num_workers
        self._ends_ns: list[int] = []
        self._began_ns = self._step_began_ns = 0

    def of(self, log: ServedLog) -> list[float]:
        """Return the seconds of the further steps that ended while nobody waited."""
        if not self._began_ns:
            self._began_ns = self._step_began_ns = log.began_ns
        for worker, at_ns in log.ended:
            self._counts[worker] += 1
            self._last_ns[worker] = at_ns
            self._ends_ns.append(at_ns)
        if log.is_over:
            return []
        return self._taken(len(self._ends_ns) // self._num_workers)

    def of_the_rest(self) -> list[float]:
        """Return the seconds of the last steps, once all workers have ended theirs."""
        if not self._ends_ns:
            return []
        num_ends, last_ns = len(self._ends_ns), self._ends_ns[-1]
        # One that a staleness bound has kept waiting has gone on until the last step.
        until_ns = [max(last_ns, self._step_began_ns) for last_ns in self._last_ns]
        gone_on = [
            np.arange(of_worker + cycle, last_ns, cycle)
            for count, of_worker in zip(self._counts, until_ns, strict=True)
            if count and (cycle := (of_worker - self._began_ns) / count)
        ]
        merged = np.sort(np.concatenate([self._ends_ns, *gone_on]))
        self._ends_ns = merged[:num_ends].astype(np.int64).tolist()
        return self._taken(num_ends // self._num_workers)

    def _taken(self, num_steps: int) -> list[float]:
        num_ends = num_steps * self._num_workers
        ends_ns = self._ends_ns[self._num_workers - 1 : num_ends : self._num_workers]
        del self._ends_ns[:num_ends]
        times_s = np.diff([self._step_began_ns, *ends_ns]) / 1e9
        self._step_began_ns = ends_ns[-1] if ends_ns else self._step_began_ns
        return [float(time_s) for time_s in times_s]
