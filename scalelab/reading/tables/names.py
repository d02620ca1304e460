"""The names that columns of measurements have elsewhere, and what they say of units."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from scalelab.inputs.target import MetricMode, Target
from scalelab.reading.vocabulary import (
    BYTES,
    DEVICES,
    QUANTITIES,
    SAMPLES,
    SECONDS,
    STEPS,
    TOKENS,
    Quantity,
)
from scalelab.records.columns import COLUMNS, OPTION_PREFIX

SPEEDS = ("step_time_s", "throughput_samples_per_s")
# What tells more of a training than how long it was.
OF_DEVICES = frozenset({"world_size", "num_nodes", "time_to_target_s", *SPEEDS})
# How long a training took until its target, besides its time.
EPOCHS = "epochs"  # the unit of samples where a table counts these
LENGTHS = ("samples_to_target", "steps_to_target")

# Names that hold a number of devices in one table and their name in another.
COUNT_OR_NAME = frozenset(
    "gpu gpus device devices accelerator accelerators tpu".split()
)

# Names of the batch of all devices where it counts tokens, not samples.
BATCHES_IN_TOKENS = (
    "batch_size_tokens batch_tokens batch_size_in_tokens batch_in_tokens "
    "global_batch_size_tokens global_batch_tokens global_batch_size_in_tokens "
    "tokens_per_batch tokens_per_global_batch tokens_per_step"
).split()

# Names that hold the batch of one device in one table and of all in another.
AMBIGUOUS_BATCHES = "batch_size batch batchsize bs minibatch_size".split()

# Settings whose value is the number of devices that share a copy of the model.
SHARED: Mapping[str, str] = {
    name: kind
    for kind in ("tensor", "pipeline", "context")
    for short in (f"{kind[0]}p", f"{kind}_parallel", f"{kind}_model_parallel")
    for name in (short, f"{short}_size", f"{short}_degree", f"{short}ism")
}

# Well-known settings that are no column of their own, so that they become options.
AXES = frozenset(SHARED) | frozenset(
    "layout option options variant framework backend feed program data_loader "
    "dataloader compile compiled compiler xla amp ep expert_parallel "
    "expert_parallel_size sequence_parallel sp vpp virtual_pipeline interleave "
    "split_size attention memory_format sync_batch_norm image_size resolution "
    "interconnect infiniband fabric transport averaging_period bucket_size_mb "
    "gradient_compression pin_memory".split()
)
# Words of names that are such settings, whatever else stands there.
_OF_SETTINGS = frozenset(
    "zero zero1 zero2 zero3 deepspeed fsdp hsdp shard sharded sharding offload "
    "recompute recomputation remat rematerialization ckpt checkpointing pack packed "
    "packing attn flash lora powersgd".split()
)

_MEASURED = frozenset(
    "speedup efficiency memory mem util utilization utilisation loss acc accuracy "
    "perplexity ppl std cv stdev stddev deviation var variance sem err error rep reps "
    "nrep repeats replicates run runs trial id index idx date timestamp day time "
    "duration elapsed energy power cost price mfu hfu flops tflops gflops pflops "
    "throughput note notes comment comments remark remarks url link path file hostname "
    "host temperature".split()
)
# Measured or remarked where it is the whole name; ``lora_rank`` is a setting.
_MEASURED_ALONE = frozenset({"scaling", "source", "rank"})
_UNITS = frozenset("s ms us h min gb gib mb mib w j kwh wh usd eur pct percent".split())

_OF_TRIALS = (
    *("window_step_time_s", "later_step_time_s", "later_differs"),
    *("first_epoch_s", "first_epoch_samples", "steps_missed"),
)
# Columns of the observations that a foreign table may fill.
SETTABLE = tuple(
    column.name
    for column in COLUMNS
    if column.name
    not in ("schema_version", "run", "trial_id", "attempt", "kind", *_OF_TRIALS)
)

_STEPS = [word for word in STEPS if not word.endswith("s")]
_SEVERAL_STEPS = ["it", *(word for word in STEPS if word.endswith("s"))]
_MIDDLES = ("avg", "mean", "median", "p50")
_STEP_TIMES = (
    *"step_time train_step_time step_duration iteration_time iter_time".split(),
    *(f"{middle}_step_time" for middle in _MIDDLES),
    *(f"step_time_{middle}" for middle in _MIDDLES),
    *(f"{middle}_step" for middle in _MIDDLES),
    *(f"time_{per}{step}" for per in ("per_", "") for step in _STEPS),
)
_PEAKS = (
    "peak_memory peak_mem peak_gpu_memory gpu_memory_peak peak_memory_allocated "
    "max_memory_allocated max_memory_reserved peak_memory_reserved max_gpu_memory "
    "gpu_peak_memory memory_peak peak_vram peak_memory_per_gpu"
).split()
# A length or a time until a metric has a value: ``time_to_75_s``, ``epochs to 80% acc``
_GOAL = re.compile(
    r"(?P<what>.*?)[\W_]+(to|until|till)[\W_]+(?P<before>[a-z_ ]*?)[\W_]*"
    r"(?P<value>\d+(\.\d+)?)\s*(?P<percent>%|pct|percent)?[\W_]*(?P<after>.*)",
    re.IGNORECASE,
)
_TO_TARGET = re.compile(
    r"(?<=_)(to|until)_(target|train|result|quality|accuracy|converge|convergence)"
)
_PER_SECOND = ("per_s", "per_sec", "per_second", "s", "sec", "second")
_BEFORE = ("", "throughput_", "train_throughput_", "total_", "training_speed_")


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a foreign column: which of ours it fills, and in which unit."""

    column: str
    factor: float = 1.0
    unit: str = ""
    is_step_rate: bool = False  # steps per second, for ``step_time_s``
    is_per_device: bool = False
    is_in_tokens: bool = False
    theirs: str = ""  # the foreign column, once one is found that says this

    @property
    def directness(self) -> tuple[bool, ...]:
        """Orders columns that tell the same; the first one of them is read."""
        is_speed = self.column in SPEEDS
        return is_speed, self.is_in_tokens, not self.is_step_rate, self.is_per_device

    @property
    def is_derived(self) -> bool:
        """Another column that tells the same directly is read instead."""
        is_of_one = self.is_step_rate or self.is_per_device
        return is_of_one or self.is_in_tokens or self.unit == EPOCHS


def plain(name: str) -> str:
    """Write a name of a column without regard to case, signs and kinds of letters.

    >>> plain("Step time (\u00b5s)"), plain("Images/sec/GPU")
    ('step_time_us', 'images_sec_gpu')
    """
    text = unicodedata.normalize("NFKC", name).replace("\u03bc", "u").lower()
    return re.sub(r"[^a-z0-9]+", "_", text).strip("_")


def goal_of(name: str) -> tuple[str, Target] | None:
    """Return the name without the target of a training, and that; None: it has none.

    >>> name, target = goal_of("time_to_75_s")
    >>> name, str(target)
    ('time_to_target_s', 'target >= 75')
    """
    if not (found := _GOAL.fullmatch(name)):
        return None
    words = plain(f"{found['before']} {found['after']}").split("_")
    unit = words.pop() if words[-1] in SECONDS else ""

    plain_name = plain(f"{found['what']} to target {unit}")
    if plain_name not in known_names():
        return None

    metric = "_".join(filter(None, words))
    metric = metric or ("accuracy" if found["percent"] else "target")
    mode, value = MetricMode.usual(metric), float(found["value"])
    return plain_name, Target(metric=metric, mode=mode, value=value)


def meaning_of(name: str) -> Meaning | None:
    """Return what a column of this name says; None where the name is not known."""
    goal = goal_of(name)
    known = goal[0] if goal else _TO_TARGET.sub("to_target", plain(name))
    if known == "step_s" and "/" in name:
        known = "steps_s"
    return known_names().get(known)


def unit_in(name: str) -> str | None:
    """Return the known name of a speed, with its unit, inside a longer name.

    >>> unit_in("4 card (tokens/sec)"), unit_in("8 GPUs [ms]")
    ('tokens_sec', 'step_time_ms')
    """
    words = plain(name).split("_")
    ends = itertools.combinations(range(len(words) + 1), 2)
    parts = [words[first:last] for first, last in ends]
    parts.sort(key=len, reverse=True)
    for part in (*parts, ["step", "time", words[-1]]):
        meaning = known_names().get("_".join(part))
        if meaning and meaning.column in SPEEDS and SECONDS.keys() & {*part}:
            return "_".join(part)

    return None


@functools.cache
def known_names() -> Mapping[str, Meaning]:
    """Return every known name, as :func:`plain` writes it, with what it says."""
    found: dict[str, Meaning] = {}
    for name, meaning in itertools.chain(_without_units(), _in_units(), _throughputs()):
        found.setdefault(name, meaning)
    return found


def is_known(name: str) -> bool:
    """Whether a name is well known, though perhaps its cells must say of what."""
    names = (*COUNT_OR_NAME, *AMBIGUOUS_BATCHES)
    return plain(name) in names or meaning_of(name) is not None


def meaning_as(column: str, theirs: str) -> Meaning | None:
    """Return what their column says if it is ours, in the unit that its name has.

    Our column may be named in another unit: ``step_time_ms``.
    """
    known, meaning = meaning_of(column), meaning_of(theirs)
    if known is None or column not in SETTABLE:
        return known
    if meaning is not None and meaning.column == known.column:
        return meaning

    words = plain(theirs).split("_")
    if known.column in LENGTHS:
        lengths = (known_names().get(f"{word}_to_target") for word in words)
        return next(filter(None, lengths), known)

    units = [word for word in words if word in SECONDS and len(word) > 1]
    units = [word for word in units if word != "min"] + words[-1:]
    if _is_duration(known.column) and units[0] in SECONDS:
        return Meaning(known.column, SECONDS[units[0]], units[0])

    return known


def is_measured(name: str) -> bool:
    """Whether a name is that of something measured, or of a remark: no setting.

    >>> is_measured("Peak memory (GB)"), is_measured("memory_format")
    (True, False)
    """
    if plain(name) in _MEASURED_ALONE:
        return True
    words = plain(name).split("_")
    while len(words) > 1 and words[-1] in _UNITS:
        words.pop()
    return words[-1] in _MEASURED


def is_axis(name: str) -> bool:
    """Whether a name is that of a well-known setting that becomes an option."""
    has_word = not _OF_SETTINGS.isdisjoint(plain(name).split("_"))
    is_well_known = plain(name) in AXES or (has_word and not is_measured(name))
    return is_well_known or name.startswith(OPTION_PREFIX)


def _is_duration(column: str) -> bool:
    return column.endswith("_s") and not column.endswith("_per_s")


def _without_units() -> Iterator[tuple[str, Meaning]]:
    for column in SETTABLE:
        known = QUANTITIES.get(column, Quantity()).headers.split()
        for name in (plain(column), *known):
            yield name, Meaning(column)
    for name in BATCHES_IN_TOKENS:
        yield name, Meaning("global_batch_size", is_in_tokens=True)
    for item, per in itertools.product(_SEVERAL_STEPS, _PER_SECOND):
        yield f"{item}_{per}", Meaning("step_time_s", is_step_rate=True)
    yield f"{EPOCHS}_to_target", Meaning("samples_to_target", unit=EPOCHS)


def _in_units() -> Iterator[tuple[str, Meaning]]:
    for unit, factor in SECONDS.items():
        for column in filter(_is_duration, SETTABLE):
            yield f"{column.removesuffix('_s')}_{unit}", Meaning(column, factor, unit)
        step = Meaning("step_time_s", factor, unit)
        for base in _STEP_TIMES:
            yield f"{base}_{unit}", step

        for step_word in _STEPS:
            yield f"{unit}_per_{step_word}", step
            if not unit.startswith("min"):  # "min step" is the shortest one
                yield f"{unit}_{step_word}", step

        yield f"step_{unit}", step

    for base, (unit, factor) in itertools.product(_PEAKS, BYTES.items()):
        yield f"{base}_{unit}", Meaning("gpu_memory_peak_bytes", factor, unit)


def _throughputs() -> Iterator[tuple[str, Meaning]]:
    column = "throughput_samples_per_s"
    for item in (*SAMPLES, *TOKENS):
        total = Meaning(column, is_in_tokens=item in TOKENS)
        of_one = replace(total, is_per_device=True)
        for before, per in itertools.product(_BEFORE, _PER_SECOND):
            yield f"{before}{item}_{per}", total
            for device in DEVICES:
                names = (
                    f"{before}{item}_{per}_per_{device}",
                    f"{before}{item}_{per}_{device}",
                    f"{before}{item}_per_{device}_{per}",
                    f"{before}{item}_{device}_{per}",
                    f"throughput_per_{device}_{item}_{per}",
                )
                yield from ((name, of_one) for name in names)

    for device in DEVICES:
        for name in (f"throughput_per_{device}", f"per_{device}_throughput"):
            yield name, Meaning(column, is_per_device=True)
