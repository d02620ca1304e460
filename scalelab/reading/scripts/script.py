"""A user's training script, read and never run: what it says, and what it needs."""

import ast
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, takewhile
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.inputs.problems import shown
from scalelab.reading.scripts.options import ScriptOption, config_folders, options_of
from scalelab.reading.small_file import read_small_file

MAX_SCRIPT_BYTES = 1 << 20
_MOST_FILES = 100
# Data beside a script that is larger is named by its path and not copied.
MOST_COPIED_BYTES = 20 << 20
# A name that is divided by what is called after ranks or devices.
_DIVISION = re.compile(
    r"\b(\w+)[ )]*//?=? *([\w.]*(?:world|gpu|device|rank)[\w.]*(?:\(\))?)",
    re.IGNORECASE,
)
# A learning rate that is multiplied by what is called so, or by the size of a group.
_RATE = r"\b(?:lr|\w+_lr|learning_rate)"
_RANKS = r"(?:[\w.]*(?:world|gpu|device|rank)\w*(?:\(\))?|\b\w+\.size\(\))"
_SCALED_RATE = re.compile(
    rf"{_RATE}[ )]*\*=? *{_RANKS}|{_RANKS} *\* *[\w.]*{_RATE}\b", re.IGNORECASE
)
# Packages, variables and names by which a training is spread over devices, besides all
# names that hold "distributed".
_SPREADING = frozenset(
    "accelerate deepspeed horovod lightning megatron trl composer pytorch_lightning "
    "torchtitan transformers jax keras tensorflow RANK LOCAL_RANK WORLD_SIZE "
    "DataParallel fully_shard init_process_group mpi4py".split()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What a script, and the modules beside it that it imports, say of themselves."""

    path: Path
    import_root: Path  # its folder, or that of the package that it is in
    module: str | None  # for python -m, where it is a part of a package
    beside: frozenset[Path]  # what it imports from there, names, or gives to Hydra
    options: tuple[ScriptOption, ...]  # of its modules where it has none itself
    packages: frozenset[str]  # top-level names of what it imports itself
    all_packages: frozenset[str]  # and of what its modules import
    trains_on_several: bool
    divided: Mapping[str, str]  # names that it divides, by which count of ranks
    loads_data: bool  # it makes a data loader or a trainer
    scales_rate: bool  # it multiplies its learning rate by a count of ranks
    tables: tuple[str, ...]  # CSV files that it names, where it writes any

    @property
    def drives_all_devices(self) -> bool:
        """One process seems to train on all devices of a node, as with Keras."""
        alone = {"keras", "tensorflow", "jax"}
        return bool(self.packages & alone) and "torch" not in self.packages

    @property
    def launcher(self) -> str:
        """What starts its ranks, where it joins several."""
        return "mpirun" if self.all_packages & {"mpi4py", "horovod"} else "torchrun"


def read_script(path: Path) -> Script:
    """Read a script, and the modules beside it, without running it."""
    tree = _parsed(path)
    _refuse_data(path, tree)
    path = path.resolve()
    package = _package_of(path, tree)
    root = path.parents[len(package)]
    trees, beside = _modules(path, tree, root, package)
    texts = _texts(tree)
    beside |= {path.parent / text for text in texts if _is_module(text)}
    beside |= set(config_folders(path, tree))

    all_packages = _packages(*trees.values())
    named = {_named(node) for module in trees.values() for node in ast.walk(module)}
    spreads = (all_packages | named) & _SPREADING
    spreads |= {name for name in named if "distributed" in name.lower()}
    tables = sorted(t for t in texts if re.fullmatch(r"[\w-]+\.csv", t, re.ASCII))
    source = "\n".join(file.read_text(errors="replace") for file in trees)

    return Script(
        path=path,
        import_root=root,
        module=".".join((*package, path.stem)) if package else None,
        beside=frozenset(place.resolve() for place in beside if place.exists()),
        options=options_of({path: tree}) or options_of(trees),
        packages=_packages(tree),
        all_packages=all_packages,
        trains_on_several=bool(spreads),
        divided=dict(_DIVISION.findall(source)),
        loads_data=bool(re.search(r"[Ll]oader\(|Trainer\(", source)),
        scales_rate=bool(_SCALED_RATE.search(source)),
        tables=tuple(tables) if named & {"DictWriter", "writer"} else (),
    )


def _refuse_data(path: Path, tree: ast.Module) -> None:
    """Refuse a table of numbers, which is valid Python too."""
    if all(isinstance(node, ast.Expr) for node in tree.body) and not any(
        isinstance(node, ast.Call) for node in ast.walk(tree)
    ):
        raise SpecError(
            f"{shown(str(path))} does nothing when it runs. Give the Python script "
            "that starts the training.",
            code="not_a_script",
        )


def _package_of(path: Path, tree: ast.Module) -> tuple[str, ...]:
    """Return the package that a script is in, if it imports from there; else none."""
    folders = takewhile(lambda folder: (folder / "__init__.py").is_file(), path.parents)
    package = tuple(reversed([folder.name for folder in folders]))
    is_part = bool(package) and package[0] in _packages(tree, inside=package)
    return package if is_part else ()


def _texts(tree: ast.Module) -> set[str]:
    values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    texts = (value for value in values if isinstance(value, str))
    return {text for text in texts if len(text) < 200 and text.isprintable()}


def _is_module(text: str) -> bool:
    return text.endswith(".py") and not text.startswith("/")


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
            "starts the training, or write an experiment with scalelab init.",
            code="not_a_script",
        ) from error


def _modules(
    path: Path, tree: ast.Module, root: Path, package: tuple[str, ...]
) -> tuple[dict[Path, ast.Module], set[Path]]:
    # Those that the script imports come first, then what these import. A package counts
    # as a whole.
    trees, waiting = {path: tree}, [(path, package)]
    beside = {root / package[0]} if package else set()
    while waiting and len(trees) < _MOST_FILES:
        file, inside = waiting.pop(0)
        for name in dict.fromkeys(_imported(trees[file], inside)):
            parts = tuple(name.split("."))
            top = root / parts[0]
            if (root / f"{parts[0]}.py").is_file():
                beside.add(root / f"{parts[0]}.py")
            elif any(top.glob("*.py")):
                beside.add(top)

            for module, within in (
                (root.joinpath(*parts).with_suffix(".py"), parts[:-1]),
                (root.joinpath(*parts) / "__init__.py", parts),
            ):
                if module not in trees and module.is_file():
                    try:
                        trees[module] = _parsed(module)
                    except SpecError:
                        continue
                    waiting.append((module, within))

    return trees, beside


def _imported(tree: ast.Module, package: tuple[str, ...] = ()) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _packages(*trees: ast.Module, inside: tuple[str, ...] = ()) -> frozenset[str]:
    names = (name for tree in trees for name in _imported(tree, inside))
    return frozenset(name.partition(".")[0] for name in names)


def _named(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value if node.value.isupper() else ""  # of the environment
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.name if isinstance(node, ast.alias) else ""


def interpreter(environment: Mapping[str, str]) -> str:
    """Return the Python that a script is started with: the active environment's.

    It is ``python`` where that is ScaleLab's own, or no environment is active.
    """
    active = environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")
    program = Path(active or sys.prefix, "bin", "python")
    is_own = program.parent.parent.resolve() == Path(sys.prefix).resolve()
    return "python" if is_own or not program.is_file() else str(program)


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The code and the data of a script, as an experiment names them."""

    root: Path  # the command runs in a copy of it
    copied: tuple[str, ...]  # paths below it, folders with a slash at the end
    elsewhere: tuple[tuple[ScriptOption, str], ...]  # with the words for their paths


def surroundings(
    script: Script, directory: Path, options: Iterable[ScriptOption]
) -> Surroundings:
    """Return what a script needs."""
    if not str(script.path).isprintable():
        raise SpecError(
            f"{shown(str(script.path))} holds characters that cannot be shown. Rename "
            "it.",
            code="unprintable_name",
        )

    root = _root_of(script, directory.resolve())
    wanted = {script.path, *script.beside}

    elsewhere = []
    for option in options:
        path, is_of_root = _data_of(option, script.path, root)
        # A relative path is looked for in the copy of the root.
        if path and is_of_root and path.is_relative_to(root) and _is_small(path):
            wanted.add(path)
        elif path:
            elsewhere.append((option, shlex.quote(str(path))))

    below = {place for place in wanted if place.is_relative_to(root) and place.exists()}
    copied = sorted(
        place.relative_to(root).as_posix() + ("/" if place.is_dir() else "")
        for place in below
        if not below & {*place.parents}
    )
    return Surroundings(root=root, copied=tuple(copied), elsewhere=tuple(elsewhere))


def _root_of(script: Script, directory: Path) -> Path:
    """Return the folder that is copied: the experiment's, where the script is below."""
    is_below = script.path.is_relative_to(directory) and script.module is None
    root = directory if is_below else script.import_root
    outside = [path for path in script.beside if not path.is_relative_to(root)]
    if outside and script.module is None:  # such as ../conf of Hydra
        return Path(os.path.commonpath([root, *outside]))
    return root


def _data_of(
    option: ScriptOption, script: Path, root: Path
) -> tuple[Path | None, bool]:
    """Return the path that an option has by default, and whether the root leads there.

    What holds the script is not its data.
    """
    for folder in (root, script.parent):
        path = _path_below(folder, option.default)
        if path is not None and not script.is_relative_to(path):
            return path, folder == root
    return None, False


def _path_below(folder: Path, default: object) -> Path | None:
    if not isinstance(default, str) or not default or os.path.isabs(default):
        return None
    try:
        path = (folder / default).resolve()
        return path if path.exists() else None
    except (OSError, ValueError):
        return None


def _is_small(path: Path) -> bool:
    sizes = (file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
    return all(total <= MOST_COPIED_BYTES for total in accumulate(sizes))
