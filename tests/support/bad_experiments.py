"""Broken experiments by the hundred, each from a valid one by one mutation."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml

WORKLOAD: dict[str, Any] = {
    "name": "digits",
    "workload": {"name": "digits_mlp", "hidden_sizes": [64, 64]},
    "measure": {
        "kind": ["throughput", "convergence"],
        "warmup_steps": 5,
        "steps": 50,
        "repeats": 3,
        "relative_precision": 0.02,
        "evaluate_every_samples": 1437,
        "max_epochs": 20,
        "timeout": "30min",
    },
    "job": {"epochs": 40, "samples_per_epoch": 1437, "target": "val_acc >= 0.95"},
    "gpus": [1, 2, 4],
    "global_batch_size": [64, 128],
    "local_batch_size": [8, 16],
    "learning_rate": {
        "base": 0.1,
        "at_batch": 64,
        "rule": ["linear", "sqrt"],
        "warmup": {"epochs": 5},
    },
    "parallelism": "ddp",
    "precision": ["fp32", "bf16"],
    "seed": [0, 1],
    "options": {"dropout": [0.1, 0.2]},
    "scaling": "strong",
    "product": False,
    "site": {"nodes": 2, "gpus_per_node": 2, "device_type": "cpu"},
    "confirm_above": {"trials": 100, "gpu_hours": 5},
}
COMMAND: dict[str, Any] = {
    "name": "vit-b16",
    "command": "python train.py --batch {local_batch_size} --lr {learning_rate}",
    "launcher": "torchrun",
    "code": {"snapshot": ["train.py", "vit/"], "root": "."},
    "env": {"WANDB_MODE": "offline", "THREADS": 1},
    "metrics": {"jsonl": "$SCALELAB_METRICS"},
    "measure": {"long_trial": "none", "kind": "throughput", "steps": 60},
    "job": {"tokens": 1_000_000, "sequence_length": 512},
    "nodes": [1, 2],
    "gpus_per_node": 4,
    "local_batch_size": {"at_most": 512, "multiple_of": 8},
    "learning_rate": 0.001,
    "site": {
        "scheduler": "slurm",
        "device_type": "cuda",
        "nodes": 8,
        "gpus_per_node": 4,
        "partition": "gpu",
        "walltime": "04:00:00",
        "memory_per_node": "64GB",
        "directives": ["--mail-type=END"],
    },
}
VALID = (WORKLOAD, COMMAND)

Path = tuple[str | int, ...]
Mutation = Callable[[random.Random, dict[str, Any]], str | None]

# No key takes any of these, whatever its kind.
NEVER_VALID: tuple[Any, ...] = (
    {"nested": {"deeper": {"deepest": [1, 2, {"a": None}]}}},
    [[1], [2]],
    [],
    [None],
    {"": ""},
)
# Taken by no count, number, size, enumeration or name.
NOT_A_SETTING: tuple[Any, ...] = (
    0,
    -1,
    -(10**20),
    10**25,
    -0.5,
    1e300,
    "zero",
    "\u00fcml\u00e4ut \u4e2d\u6587 \U0001f680",
    "a\nb\n\nc",
    "x" * 5000,
    "",
    "1; rm -rf /",
    True,
    False,
)
# Keys that take any text, any number or both: only the wrong shape breaks them.
FREE = {
    ("workload", "hidden_sizes"),
    ("options", "dropout"),
    ("code", "root"),
    ("code", "snapshot"),
    ("metrics", "jsonl"),
    ("env", "WANDB_MODE"),
    ("env", "THREADS"),
    ("site", "directives"),
    ("site", "partition"),
    ("command",),
    ("parallelism",),
    ("product",),
    ("seed",),
    ("measure", "warmup_steps"),
    ("name",),
    ("site",),
}


def bad_experiments(number: int, *, seed: int = 20261120) -> Iterator[tuple[str, str]]:
    """Yield pairs of what was done and the YAML text of a broken experiment."""
    generator = random.Random(seed)
    mutations: list[Mutation] = [
        _wrong_value,
        _wrong_value,
        _wrong_value,
        _wrong_shape,
        _unknown_key,
        _missing_key,
        _duplicate_key,
        _broken_text,
        _contradiction,
        _bad_arithmetic,
    ]
    made = 0
    while made < number:
        mutation = mutations[made % len(mutations)]
        values = copy.deepcopy(generator.choice(VALID))
        text = mutation(generator, values)
        if text is not None:
            made += 1
            yield mutation.__name__.strip("_"), text


def bad_files(number: int, *, seed: int = 20261121) -> Iterator[tuple[str, bytes]]:
    """Yield pairs of what was done and the bytes of a file that is no experiment."""
    generator = random.Random(seed)
    for index in range(number):
        text = yaml.safe_dump(generator.choice(VALID)).encode()
        place = generator.randrange(len(text))
        kind = ("not_utf8", "random_bytes", "nul", "utf16", "huge")[index % 5]
        yield (
            kind,
            {
                "not_utf8": text[:place] + b"\xff\xfe\x80" + text[place:],
                "random_bytes": generator.randbytes(generator.randrange(1, 400)),
                "nul": text[:place] + b"\0" + text[place:],
                "utf16": text.decode().encode("utf-16"),
                "huge": text + b"# padding\n" * 40_000,
            }[kind],
        )


def _paths(value: Any, here: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*here, key)
            yield from _paths(inner, (*here, key))


def _set(values: dict[str, Any], path: Path, new: Any) -> None:
    for part in path[:-1]:
        values = values[part]
    values[path[-1]] = new


def _dump(values: dict[str, Any]) -> str:
    return yaml.safe_dump(values, allow_unicode=True, sort_keys=False)


def _wrong_value(generator: random.Random, values: dict[str, Any]) -> str | None:
    path = generator.choice([path for path in _paths(values) if path not in FREE])
    if path[-1] in ("env", "options"):
        return None
    _set(values, path, generator.choice(NOT_A_SETTING))
    return _dump(values)


def _wrong_shape(generator: random.Random, values: dict[str, Any]) -> str | None:
    path = generator.choice(list(_paths(values)))
    wrong = generator.choice(NEVER_VALID)
    if path == ("workload", "hidden_sizes"):
        return None
    if path in (("code",), ("env",), ("options",)) and not isinstance(wrong, dict):
        wrong = {"": wrong}
    if path == ("site", "directives") and wrong == []:
        return None
    _set(values, path, wrong)
    return _dump(values)


def _unknown_key(generator: random.Random, values: dict[str, Any]) -> str | None:
    open_mappings = ("workload", "env", "options")
    mappings: list[Path] = [()]
    mappings += [
        path
        for path in _paths(values)
        if isinstance(_get(values, path), dict) and path[0] not in open_mappings
    ]
    target = _get(values, generator.choice(mappings))
    key = generator.choice(list(target))
    misspelt = generator.choice(
        [key[:-1] + "x", key + "s_", "Name", "GPUs", "\u00e9t\u00e9", "x" * 300, "0"]
    )
    if generator.random() < 0.5:
        target[misspelt] = target.pop(key)
    else:
        target[misspelt] = 1
    return _dump(values)


def _get(values: Any, path: Path) -> Any:
    for part in path:
        values = values[part]
    return values


def _missing_key(generator: random.Random, values: dict[str, Any]) -> str | None:
    needed: list[Path] = [("name",), ("gpus",), ("nodes",), ("gpus_per_node",)]
    needed += [("workload",), ("command",), ("learning_rate", "base"), ("metrics",)]
    needed += [("workload", "name"), ("job", "samples_per_epoch")]
    needed += [("job", "sequence_length"), ("learning_rate", "at_batch")]
    needed += [("site", "device_type"), ("metrics", "jsonl")]
    path = generator.choice(needed)
    is_local = "scheduler" not in values["site"]
    if path == ("metrics",) or (path[0] == "site" and is_local):
        return None
    try:
        del _get(values, path[:-1])[path[-1]]
    except (KeyError, TypeError):
        return None
    return _dump(values)


def _duplicate_key(generator: random.Random, values: dict[str, Any]) -> str | None:
    key = generator.choice(list(values))
    again = json.dumps(values[key])
    return f"{_dump(values)}{key}: {again}\n"


def _broken_text(generator: random.Random, values: dict[str, Any]) -> str | None:
    text = _dump(values)
    lines = text.splitlines()
    place = generator.randrange(1, len(lines))
    inserted = generator.choice(
        [
            "\tgpus: 1",
            "x: &a [1, 2]\ny: [*a, *a]",
            "x: !!python/object/apply:os.system [ls]",
            "x: !custom 1",
            "x: " + "[" * 200,
            "x: " + "{a: " * 60 + "1" + "}" * 60,
            "x: .nan",
            "x: -.inf",
            "x: 1e999",
            "x: " + "9" * 6000,
            "? [a, b]\n: 1",
            "<<: {gpus: 1}",
            "x: 'open",
            'x: "\\q"',
            "%YAML 9.9",
            "- 1",
            "---",
            "@",
            "x: &a [*a]",
            "1: 2",
            "null: 2",
        ]
    )
    kind = generator.randrange(4)
    if kind == 0:
        return generator.choice(
            ["", "# only a comment\n", "- 1\n- 2\n", "text", "3", "null", "[]", "~"]
        )
    if kind == 1:
        return text[:1] + "\x07" + text[1:]
    return "\n".join([*lines[:place], inserted, *lines[place:]])


def _contradiction(generator: random.Random, values: dict[str, Any]) -> str | None:
    added: list[dict[str, Any]] = [
        {"workload": "digits_mlp", "command": "python train.py"},
        {"gpus": 2, "nodes": 1, "gpus_per_node": 2},
        {"scaling": "weak", "global_batch_size": 64},
        {"scaling": "strong", "global_batch_size": None},
        {"local_batch_size": None, "global_batch_size": None},
        {"gradient_accumulation_steps": 2, "global_batch_size": 64},
        {"measure": {"kind": "convergence"}, "job": {"steps": 10}},
        {"measure": {"kind": "convergence"}, "job": {"target": "val_acc >= 0.9"}},
        {"measure": {"long_trial": "none", "max_samples": 10, "max_epochs": 2}},
        {"job": {"epochs": 1, "steps": 3}},
        {"job": {}},
        {"job": {"target": "val_acc > 0.9"}},
        {"job": {"target": "val_acc >= much"}},
        {"learning_rate": {"base": 0.1, "rule": "linear"}},
        {"learning_rate": {"base": 0.1, "at_batch": 32}},
        {"learning_rate": {"base": 0.1, "warmup": {"epochs": 1, "steps": 3}}},
        {"learning_rate": {"base": 0.1, "warmup": {}}},
        {"workload": "emulated", "measure": {"kind": "convergence"}},
        {"workload": "resnet_cifra"},
        {"workload": "not a module:Class"},
        {"metrics": {"jsonl": "a", "regex": "(?P<loss>.)"}, "workload": None},
        {"metrics": {"regex": "(?P<loss>"}, "command": "python a.py"},
        {"metrics": {"regex": "loss (?P<loss>.+)"}, "command": "python a.py"},
        {"env": {"A": 1}, "workload": "digits_mlp"},
        {"command": "python a.py {batch_size}", "workload": None},
        {"command": "python a.py", "workload": None, "options": {"unused": [1]}},
        {"command": "a {seed}", "workload": None, "options": {"seed": [1]}},
        {"code": {"snapshot": "../secrets"}},
        {"code": {"snapshot": "/etc/passwd"}},
        {"site": {"partition": "gpu"}},
        {"site": {"scheduler": "pbs", "partition": "gpu"}},
        {"site": {"scheduler": "slurm"}},
        {"site": {"scheduler": "address", "device_type": "cpu", "gpus_per_node": 1}},
    ]
    values.update(generator.choice(added))
    return _dump({key: value for key, value in values.items() if value is not None})


def _bad_arithmetic(generator: random.Random, values: dict[str, Any]) -> str | None:
    """Return an experiment that is valid by itself but has no trial for some value."""
    values = copy.deepcopy(WORKLOAD)
    values.update(
        generator.choice(
            [
                {"global_batch_size": 100},
                {"global_batch_size": [64, 7]},
                {"local_batch_size": [16, 60]},
                {"gpus": [1, 3]},
                {"gpus": [1, 2, 16]},
                {"gpus": 5000},
                {"local_batch_size": "auto", "global_batch_size": 30},
                {"seed": list(range(400)), "options": {"a": list(range(200))}},
                {"options": {name: list(range(30)) for name in "abcd"}},
            ]
        )
    )
    return _dump(values)
