"""The options of a script's command line, by the parser that it uses."""

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from scalelab.errors import SpecError
from scalelab.inputs.document import parse_document, read_document

_FLAG = re.compile(r"-{0,2}[A-Za-z0-9][\w.-]{0,80}", re.ASCII)
_CONFIG_DICT = re.compile(r"\bconfig\.([\w.]*\w)(?:[ \t]*=[ \t]*([^=\s#][^\n#]*))?")
_MOST_NESTED = 4
# What absl defines, by what its flags take.
_ABSL = {("flags", f"DEFINE_{kind}") for kind in ("integer", "float", "string", "enum")}
_CLICK = {("click", "option"), ("click", "argument")}
# Classes that hold transformers' TrainingArguments: its own, TRL's, subclasses.
_TRAINER = re.compile(r"\w*TrainingArguments|[A-Z]+Config|RewardConfig")
# What trials set of them, or a user must know of.
_TRAINING_ARGUMENTS = cast(
    ast.ClassDef,
    ast.parse(
        """
class TrainingArguments:
    output_dir: str
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    learning_rate: float = 5e-5
    num_train_epochs: float = 3
    seed: int = 42
"""
    ).body[0],
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptOption:
    """An option of a script's command line, its default where that is plain."""

    flag: str  # as written, such as --batch-size, or data.batch_size of Hydra
    name: str
    default: object = None
    is_required: bool = False
    joint: str = " "  # between flag and value; empty: the value stands alone

    def with_value(self, value: str) -> str:
        """Return the option as it stands in a command line with a value."""
        return f"{self.flag}{self.joint}{value}" if self.joint else value


def options_of(trees: Mapping[Path, ast.Module]) -> tuple[ScriptOption, ...]:
    """Return the options that parsed files define, the first of each flag."""
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    values = {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }

    found: dict[str, ScriptOption] = {}
    for path, tree in trees.items():
        for call in _calls(tree):
            for option in _called(path, tree, call, classes, values):
                if _FLAG.fullmatch(option.flag):
                    found.setdefault(option.flag, option)

    return tuple(found.values())


def config_folders(path: Path, tree: ast.Module) -> Iterator[Path]:
    """Yield the folders of configurations that a script gives to Hydra."""
    for call in _calls(tree):
        if _is_hydra(call) and isinstance(folder := _hydra(call)[0], str):
            yield path.parent / folder


def _called(
    path: Path,
    tree: ast.Module,
    call: ast.Call,
    classes: Mapping[str, ast.ClassDef],
    values: Mapping[str, ast.expr],
) -> Iterator[ScriptOption]:
    name, owner = _name(call.func), _owner(call)
    if name == "add_argument" or (owner, name) in _CLICK:
        yield from _of_argparse(call)
    elif (owner, name) in _ABSL:
        flag, default = ([*map(literal, call.args[:2]), None, None])[:2]
        yield ScriptOption(flag=f"--{flag}", name=str(flag), default=default, joint="=")
    elif name == "DEFINE_config_file":
        yield from _of_config_file(path, call)
    elif name in ("HfArgumentParser", "TrlParser"):
        for argument in call.args[:1]:
            given = values.get(_name(argument), argument)
            for data_class in getattr(given, "elts", [given]):
                yield from _fields(_name(data_class), classes)
    elif name == "cli" and owner == "tyro" and call.args:
        yield from _fields(_name(call.args[0]), classes, as_tyro=True)
    elif _is_hydra(call):
        yield from _of_hydra(path, *_hydra(call))
    elif name == "exec" and "configurator" in ast.dump(call):  # as nanoGPT's
        yield from _globals(tree)


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name(node: object) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _owner(call: ast.Call) -> str:
    return _name(getattr(call.func, "value", None))


def _said(call: ast.Call, *names: str) -> dict[str, object]:
    by_place = dict(zip(names, map(literal, call.args), strict=False))
    return by_place | {
        keyword.arg: literal(keyword.value) for keyword in call.keywords if keyword.arg
    }


def literal(node: ast.expr | None) -> object:
    """Return the value that is written there; None for anything to compute."""
    try:
        return ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _of_argparse(call: ast.Call) -> Iterator[ScriptOption]:
    names = [name for name in map(literal, call.args) if isinstance(name, str)]
    keywords = _said(call)

    takes_value = (
        str(keywords.get("action", "store")) == "store" and "is_flag" not in keywords
    )
    if not names or not takes_value:
        return

    # The long form: the short one says less to whoever reads the experiment.
    flag = max(names, key=lambda name: (name.startswith("--"), -names.index(name)))
    dest = keywords.get("dest")
    is_positional = not flag.startswith("-")
    is_left_out = is_positional and keywords.get("nargs") in ("?", "*")
    yield ScriptOption(
        flag=flag,
        name=dest if isinstance(dest, str) else flag.lstrip("-").replace("-", "_"),
        default=keywords.get("default"),
        is_required=bool(keywords.get("required", is_positional and not is_left_out)),
        joint="" if is_positional else " ",
    )


def _of_config_file(path: Path, call: ast.Call) -> Iterator[ScriptOption]:
    # The values of a ConfigDict of ml_collections, as its flags name them.
    keywords = _said(call, "name", "default")
    name, default = keywords.get("name"), keywords.get("default")

    file = path
    if isinstance(default, str):
        file = path.parent / default.partition(":")[0]
    else:
        yield ScriptOption(flag=f"--{name}", name="", is_required=True, joint="=")

    text = file.read_text(errors="replace") if file.is_file() else ""
    for keys, value in re.findall(_CONFIG_DICT, text):
        known = None
        with suppress(ValueError, SyntaxError):
            known = ast.literal_eval(value)
        yield ScriptOption(
            flag=f"--{name}.{keys}", name=keys.split(".")[-1], default=known, joint="="
        )


def _fields(
    name: str,
    classes: Mapping[str, ast.ClassDef],
    *,
    as_tyro: bool = False,
    inside: tuple[str, ...] = (),
    depth: int = 0,
) -> Iterator[ScriptOption]:
    # The fields of a data class, its own first, then those of its bases.
    found = classes.get(name) if depth < _MOST_NESTED else None
    if found is None and _TRAINER.fullmatch(name):
        found = _TRAINING_ARGUMENTS

    for node in found.body if found else ():
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        path, inner = (*inside, node.target.id), _name(node.annotation)
        if inner in classes:
            yield from _fields(
                inner, classes, as_tyro=as_tyro, inside=path, depth=depth + 1
            )
            continue

        keywords = {"default": literal(node.value)} if node.value else {}
        if isinstance(node.value, ast.Call):
            keywords = _said(node.value)

        flag = ".".join(path)
        yield ScriptOption(
            flag=f"--{flag.replace('_', '-') if as_tyro else flag}",
            name=path[-1],
            default=keywords.get("default"),
            is_required=not {"default", "default_factory"} & {*keywords},
        )

    for base in map(_name, found.bases if found else ()):
        # A class may have the name of its base, such as TrainingArguments.
        deep = _MOST_NESTED if base == name else depth + 1
        yield from _fields(base, classes, as_tyro=as_tyro, inside=inside, depth=deep)


def _is_hydra(call: ast.Call) -> bool:
    return _name(call.func) == "main" and _owner(call) == "hydra"


def _hydra(call: ast.Call) -> tuple[object, object]:
    keywords = _said(call, "config_path", "config_name")
    return keywords.get("config_path"), keywords.get("config_name")


def _of_hydra(path: Path, folder: object, name: object) -> Iterator[ScriptOption]:
    # What Hydra itself writes goes beside the working directory otherwise.
    yield ScriptOption(flag="hydra.run.dir", name="run_dir", joint="=")
    if not isinstance(folder, str) or not isinstance(name, str):
        return

    for key, value in _keys(path.parent / folder, name).items():
        yield ScriptOption(
            flag=key,
            name=key.rpartition(".")[2],
            default=value,
            is_required=value == "???",
            joint="=",
        )


def _keys(
    folder: Path, name: str, prefix: str = "", depth: int = 0
) -> dict[str, object]:
    # The keys of a configuration of Hydra, those of its defaults included.
    path = folder / f"{name.removesuffix('.yaml')}.yaml"
    try:
        text = read_document(path)
        values = parse_document(text, source=str(path))
    except SpecError:
        return {}

    if "@package _global_" in text:
        prefix = ""

    found: dict[str, object] = {}
    listed = values.pop("defaults", None)
    for entry in listed if isinstance(listed, list) and depth < _MOST_NESTED else ():
        groups = entry if isinstance(entry, dict) else {"": entry}
        for group, choice in groups.items():
            if isinstance(choice, str) and choice != "_self_":
                inner = ".".join(filter(None, (prefix, group.replace("/", "."))))
                found |= _keys(folder / group, choice, inner, depth + 1)

    return found | _flat(values, prefix)


def _flat(values: Mapping[str, object], prefix: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in values.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        found |= _flat(value, key) if isinstance(value, dict) else {key: value}
    return found


def _globals(tree: ast.Module) -> Iterator[ScriptOption]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, literal(node.value)
            is_computed = isinstance(node.value, ast.BinOp)
            if is_computed or isinstance(value, int | float | str):
                yield ScriptOption(
                    flag=f"--{name}", name=name, default=value, joint="="
                )
