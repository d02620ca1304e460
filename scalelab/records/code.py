"""Snapshots of the user's code, named by the hash of their content."""

import hashlib
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.inputs.plain_files import make_folder
from scalelab.inputs.problems import did_you_mean
from scalelab.records.attempt import storing

MAX_BYTES = 100 * 2**20
_SKIPPED = frozenset({"__pycache__", ".git"})


def snapshot_code(
    paths: Sequence[str],
    root: Path,
    destination: Path,
    *,
    max_bytes: int = MAX_BYTES,
    instead: Mapping[bytes, bytes] | None = None,
) -> tuple[Path, str]:
    """Copy files and directories below ``root`` into ``destination/<hash>``.

    Left out are ``__pycache__``, ``.git`` and runs (directories with a ``run.json``).
    Symbolic links are followed while they stay below ``root``.
    """
    root = root.resolve()
    files = _collect(paths, root)

    sizes = {name: file.stat().st_size for name, file in files.items()}
    if sum(sizes.values()) > max_bytes:
        largest = max(sizes, key=sizes.__getitem__)
        raise SpecError(
            f"The code to copy from {root} is {sum(sizes.values()) / 2**20:.1f} MiB, "
            f"more than {max_bytes / 2**20:.1f} MiB; its largest file is {largest} "
            f"({sizes[largest] / 2**20:.1f} MiB). Leave data and checkpoints out of "
            "it.",
            code="code_too_large",
        )

    making = destination / f".{uuid.uuid4().hex}"
    with storing(destination):
        try:
            make_folder(making, below=destination.parent)
            digest = _copy(files, making, instead or {})
            directory = destination / digest
            if directory.is_dir() and not directory.is_symlink():
                shutil.rmtree(making)
            else:
                making.rename(directory)
        except (OSError, SpecError):
            shutil.rmtree(making, ignore_errors=True)
            raise

    return directory, digest


def check_paths(paths: Sequence[str], root: Path) -> None:
    """Refuse paths that are not there."""
    for path in paths:
        start = root / path
        if not start.exists():
            near = start.parent.glob("*") if start.parent.is_relative_to(root) else ()
            names = [os.path.relpath(path_near, root) for path_near in near]
            raise SpecError(
                f"code.snapshot: {path!r} does not exist in {root}. "
                f"{did_you_mean(names, path)}Give files or directories relative to the "
                "experiment file, or to code.root.",
                code="code_missing",
            )


def _collect(paths: Sequence[str], root: Path) -> dict[str, Path]:
    check_paths(paths, root)
    files: dict[str, Path] = {}
    for path in paths:
        start = root / path
        name = os.path.relpath(start, root)
        if name.startswith(".."):
            raise _outside(start, start, root)
        files.update(_walk(start, name, root, ()))

    if not files:
        raise SpecError(
            f"snapshot={list(paths)} holds no files. Name some code in it.",
            code="no_code",
        )

    return dict(sorted(files.items()))


def _walk(
    path: Path, name: str, root: Path, above: tuple[Path, ...]
) -> Iterator[tuple[str, Path]]:
    real = path.resolve()
    if not real.is_relative_to(root):
        raise _outside(path, real, root)

    if real in above:
        raise SpecError(
            f"{path} is a symbolic link to {real}, which contains it: the copy would "
            "never end. Remove the link or list the files one by one.",
            code="endless_link",
        )

    if real.is_file():
        yield os.path.normpath(name), real
    elif real.is_dir():
        if (real / "run.json").exists():
            return
        with _readable(real):
            entries = sorted({*os.listdir(real)} - _SKIPPED)
        for entry in entries:
            inner = os.path.join(name, entry)
            yield from _walk(path / entry, inner, root, (*above, real))
    else:
        raise SpecError(
            f"{path} is neither a file nor a directory (or a link to nothing). Remove "
            "it or list the files one by one.",
            code="not_a_file",
        )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read: {error.strerror}. Give yourself read permission "
            "or leave it out of the snapshot.",
            code="unreadable",
        ) from error


def _outside(path: Path, real: Path, root: Path) -> SpecError:
    arrow = "" if path == real else f" (a link to {real})"
    return SpecError(
        f"snapshot path {path}{arrow} lies outside {root}. Put the code below the "
        "experiment file's directory, or move the experiment file up.",
        code="code_outside",
    )


def _copy(files: dict[str, Path], making: Path, instead: Mapping[bytes, bytes]) -> str:
    digest = hashlib.sha256()
    for name, file in files.items():
        with _readable(file):
            content = file.read_bytes()
        mode = 0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644
        copy = making / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(instead.get(content, content))
        copy.chmod(mode)
        entry = Path(name).as_posix()
        digest.update(f"{len(entry)} {entry} {mode} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:12]


def code_paths(experiment: Experiment) -> tuple[str, ...]:
    """Return what trials run a snapshot of: what the user listed, or their module.

    Empty for a built-in workload, and for a command that runs where it lies.
    """
    if experiment.snapshot_paths or experiment.workload is None:
        return experiment.snapshot_paths
    module, separator, _ = experiment.workload_name.partition(":")
    if not separator:
        return ()
    name = module.partition(".")[0]
    candidates = (f"{name}.py", name)
    return tuple(c for c in candidates if (experiment.code_root / c).exists())[:1]


def code_hash(experiment: Experiment) -> str | None:
    """Return the hash of the code that trials run; None for a built-in workload.

    Of a command that runs where it lies, that is the files its words name.
    """
    root = experiment.code_root
    paths = code_paths(experiment) or tuple(
        word
        for word in (experiment.command or "").split()
        if "{" not in word
        and (file := (root / word).resolve()).is_file()
        and file.is_relative_to(root)
    )
    if not paths:
        return None

    with tempfile.TemporaryDirectory() as scratch:
        return snapshot_code(paths, root, Path(scratch))[1]


def code_of_programs(experiment: Experiment) -> dict[str, str | None]:
    """Return the hash of the files that the words of each of several programs name.

    It is empty where the code is a snapshot, which all of them share.
    """
    if experiment.snapshot_paths:
        return {}
    programs = experiment.by_program().items()
    return {name: code_hash(alone) for name, alone in programs if name}
