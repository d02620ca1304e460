"""A user's training script, read and never run: its options, imports and hints."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.inputs.problems import shown

MAX_SCRIPT_BYTES = 1 << 20
_FLAG = re.compile(r"-{0,2}[A-Za-z0-9][\w.-]{0,80}", re.ASCII)
# Packages, variables and names by which a training is spread over devices.
_SPREADING = {
    *("accelerate", "deepspeed", "horovod", "lightning", "megatron"),
    *("pytorch_lightning", "torchtitan", "transformers", "jax", "keras", "tensorflow"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "DataParallel", "DistributedDataParallel"),
    *("DistributedSampler", "fully_shard", "init_process_group"),
}
# What absl defines, by what its flags take.
_ABSL = ("DEFINE_integer", "DEFINE_float", "DEFINE_string", "DEFINE_enum")
# Options of transformers.TrainingArguments that trials set or a user must know of.
_TRAINING_ARGUMENTS: dict[str, object] = {
    "output_dir": None,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "num_train_epochs": 3,
    "dataloader_num_workers": 0,
    "seed": 42,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptOption:
    """An option of a script's command line.

    Parameters
    ----------
    flag
        As it is written, such as ``--batch-size``; the name alone where it is an
        argument without a flag.
    name
        Name of the value, such as ``batch_size``.
    default
        Its default value, where that is written as a plain value; else None.
    is_required
        The script does not start without it.
    joint
        What stands between flag and value: a space or ``=``.
    """

    flag: str
    name: str
    default: object = None
    is_required: bool = False
    joint: str = " "

    @property
    def is_positional(self) -> bool:
        """The value stands alone, without a flag."""
        return not self.flag.startswith("-")

    def with_value(self, value: str) -> str:
        """Return the option as it stands in a command line with a value."""
        return value if self.is_positional else f"{self.flag}{self.joint}{value}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What a script says of itself.

    Parameters
    ----------
    path
        The file.
    options
        Options that its command line takes, in the order of the script.
    packages
        Top-level names of what it imports.
    texts
        The text constants in it.
    trains_on_several
        It imports or names what spreads a training over processes or devices.
    divided
        Names that it divides by a number of ranks or devices, each with the text of
        that number.
    """

    path: Path
    options: tuple[ScriptOption, ...]
    packages: frozenset[str]
    texts: frozenset[str]
    trains_on_several: bool
    divided: Mapping[str, str]

    @property
    def drives_all_devices(self) -> bool:
        """One process seems to train on all devices of a node, as with Keras."""
        alone = {"keras", "tensorflow", "jax"}
        return bool(self.packages & alone) and "torch" not in self.packages


def read_script(path: Path) -> Script:
    """Read a script without running it.

    Raises
    ------
    SpecError
        If the file cannot be read or is no Python.
    """
    tree = _parsed(path)
    nodes = list(ast.walk(tree))
    found = (*_called(nodes), *_assigned(tree, nodes))
    options = {each.flag: each for each in found if _FLAG.fullmatch(each.flag)}
    packages, texts = frozenset(imported(nodes)), frozenset(_texts(nodes))
    return Script(
        path=path,
        options=tuple(options.values()),
        packages=packages,
        texts=texts,
        trains_on_several=bool(_SPREADING & {*packages, *texts, *_names(nodes)}),
        divided=dict(_divisions(nodes)),
    )


def read_small_file(path: Path, *, most_bytes: int, remedy: str) -> bytes:
    """Return what a file holds.

    Raises
    ------
    SpecError
        If it cannot be read, is larger than ``most_bytes``, or is empty.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise SpecError(
            f"{shown(str(path))} cannot be read: {error.strerror}. Give the path of a "
            "file."
        ) from error
    if len(content) > most_bytes:
        raise SpecError(
            f"{shown(str(path))} is larger than {most_bytes >> 20} MiB. {remedy}"
        )
    if not content.strip():
        raise SpecError(f"{shown(str(path))} is empty. {remedy}")
    return content


def _parsed(path: Path) -> ast.Module:
    content = read_small_file(
        path,
        most_bytes=MAX_SCRIPT_BYTES,
        remedy="Give the Python script that starts the training.",
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own style
            return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        raise SpecError(
            f"{shown(str(path))} is no Python script: "
            f"{getattr(error, 'msg', None) or error}{where}. Give the script that "
            "starts the training, or write an experiment with scalelab init."
        ) from error


def _called(nodes: list[ast.AST]) -> Iterator[ScriptOption]:
    """Yield the options that calls define: of argparse, click and absl."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = getattr(function, "attr", getattr(function, "id", ""))
        if name == "add_argument":
            yield from _of_argparse(node)
        elif name in ("option", "argument") and _owner(function) == "click":
            yield from _of_argparse(node)
        elif name in _ABSL and _owner(function) == "flags":
            yield from _of_absl(node)
        elif name == "HfArgumentParser" and "TrainingArguments" in ast.dump(node):
            yield from _of_trainer()


def _owner(function: ast.expr) -> str:
    owner = getattr(function, "value", None)
    return getattr(owner, "attr", getattr(owner, "id", ""))


def _of_argparse(call: ast.Call) -> Iterator[ScriptOption]:
    names = [each for each in map(_literal, call.args) if isinstance(each, str)]
    said = {each.arg: _literal(each.value) for each in call.keywords if each.arg}
    if not names or str(said.get("action", "store")) != "store":
        return
    if said.get("is_flag"):
        return
    # The long form: the short one says less to whoever reads the experiment.
    flag = max(names, key=lambda each: (each.startswith("--"), -names.index(each)))
    dest = said.get("dest")
    name = dest if isinstance(dest, str) else flag.lstrip("-").replace("-", "_")
    is_positional = not flag.startswith("-")
    is_left_out = is_positional and said.get("nargs") in ("?", "*")
    yield ScriptOption(
        flag=flag,
        name=name,
        default=said.get("default"),
        is_required=bool(said.get("required", is_positional and not is_left_out)),
    )


def _of_absl(call: ast.Call) -> Iterator[ScriptOption]:
    values = [*map(_literal, call.args[:2]), None, None]
    if isinstance(values[0], str):
        name = values[0]
        yield ScriptOption(flag=f"--{name}", name=name, default=values[1], joint="=")


def _of_trainer() -> Iterator[ScriptOption]:
    for name, default in _TRAINING_ARGUMENTS.items():
        yield ScriptOption(
            flag=f"--{name}",
            name=name,
            default=default,
            is_required=name == "output_dir",
        )


def _assigned(tree: ast.Module, nodes: list[ast.AST]) -> Iterator[ScriptOption]:
    """Yield the globals of a script whose configurator overrides them, as nanoGPT's."""
    if not any(
        isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "exec"
        and "configurator" in ast.dump(node)
        for node in nodes
    ):
        return
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(
            statement.targets[0], ast.Name
        ):
            name, value = statement.targets[0].id, _literal(statement.value)
            is_plain = isinstance(value, int | float | str)
            if is_plain or isinstance(statement.value, ast.BinOp):
                yield ScriptOption(
                    flag=f"--{name}", name=name, default=value, joint="="
                )


def imported(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the top-level names of what a module imports, relative imports left out."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _texts(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _names(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name


def _divisions(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the names that are divided by what is called after ranks or devices."""
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.FloorDiv):
            divided, divisor = node.left, node.right
        elif isinstance(node, ast.AugAssign) and isinstance(
            node.op, ast.Div | ast.FloorDiv
        ):
            divided, divisor = node.target, node.value
        else:
            continue
        name = getattr(divided, "attr", getattr(divided, "id", ""))
        text = ast.unparse(divisor)
        if name and any(
            part in text.lower() for part in ("world", "gpu", "device", "rank")
        ):
            yield name, text


def _literal(node: ast.expr) -> object:
    """Return the value that is written there; None for anything to compute."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
