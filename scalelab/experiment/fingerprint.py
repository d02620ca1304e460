"""Fingerprints: what the numbers of a run depend on, and how two of them differ."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scalelab.experiment.hidden import is_recorded_as
from scalelab.inputs.numerals import SEVERAL, DeviceWords, device_words
from scalelab.inputs.problems import shown
from scalelab.kinds.trainers import COMMAND, facts_of

# Conditions that judge a trial when it is read: another one changes no number.
ACCEPT = "accept"
_OF_MEASUREMENT = "measure."
_OF_PROGRAM = "program."
_IN_COMMON = 25  # characters that are shown before two texts differ


@dataclass(frozen=True, slots=True)
class Change:
    """One change that makes old and new trials incomparable."""

    key: str  # in the fingerprint, with dots between levels
    words: str

    def __str__(self) -> str:
        return f"{self.key}: {self.words}"


def program_key(name: str) -> str:
    """Return the key of one of several programs in a fingerprint."""
    return f"{_OF_PROGRAM}{name}"


def of_programs(fingerprint: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return what a fingerprint says of each of several programs, by its key there."""
    return {
        key: values
        for key, values in fingerprint.items()
        if key.startswith(_OF_PROGRAM)
    }


def fingerprint_changes(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[Change, ...]:
    """Return the changes that make old and new trials incomparable.

    A family of trials, or a program, that only one of the two asks for changes no trial
    of the others, so it is no change.
    """
    changes: list[Change] = []
    for key in sorted({*before, *after} - {ACCEPT}):
        is_family = key.startswith((_OF_MEASUREMENT, _OF_PROGRAM))
        if not is_family or (key in before and key in after):
            changes += _changes(key, before.get(key), after.get(key))
    return tuple(changes)


def _changes(key: str, before: Any, after: Any) -> Iterator[Change]:
    if before == after:
        return
    if key == "env" or (key.startswith(_OF_PROGRAM) and key.endswith(".env")):
        yield from _env_changes(key, before or {}, after or {})
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from _changes(f"{key}.{name}", before.get(name), after.get(name))
    else:
        sides = _from_first_difference(before, after)
        yield Change(key, " -> ".join(map(shown, sides)))


def _from_first_difference(before: Any, after: Any) -> tuple[Any, Any]:
    """Return two texts without most of the beginning that long ones have in common.

    >>> _from_first_difference("python train.py --lr {learning_rate} --a", "python -b")
    ('python train.py --lr {learning_rate} --a', 'python -b')
    >>> _from_first_difference("python train.py --lr {learning_rate} --a 1", "python "
    ... "train.py --lr {learning_rate} --a 2")
    ('... {learning_rate} --a 1', '... {learning_rate} --a 2')
    """
    if not isinstance(before, str) or not isinstance(after, str):
        return before, after
    pairs = zip(before, after, strict=False)
    common = next((i for i, (a, b) in enumerate(pairs) if a != b), len(before))
    begin = common - _IN_COMMON

    # Where the next word begins, so that none is cut.
    space = before.find(" ", max(begin, 0), begin + _IN_COMMON)
    if begin <= 0 or space < 0:
        return before, after

    return f"...{before[space:]}", f"...{after[space:]}"


def _env_changes(
    key: str, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[Change]:
    # Their values may be secrets.
    for name in sorted({*before, *after}):
        if name not in after:
            yield Change(f"{key}.{name}", "removed")
        elif name not in before:
            yield Change(f"{key}.{name}", "added")
        elif not is_recorded_as(after[name], before[name]):
            yield Change(f"{key}.{name}", "another value")


def words_of_run(
    fingerprint: Mapping[str, Any], rows: Iterable[Mapping[str, Any]] = ()
) -> DeviceWords:
    """Return the words for the devices of a run, by those of its rows if it has any."""
    types: set[Any] = set()
    facts = facts_of(fingerprint.get("workload") or COMMAND)
    is_emulated = facts is not None and facts.declares_times
    for row in rows:
        types |= {row.get("device_type")} - {None}
        is_emulated |= bool(row.get("emulated"))
    device_type, *others = types or {fingerprint.get("device_type")}
    return device_words(SEVERAL if others else device_type, is_emulated=is_emulated)
