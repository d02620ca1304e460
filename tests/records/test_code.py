import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentences import refused

from scalelab.errors import SpecError, StoreError
from scalelab.experiment.spec import Experiment
from scalelab.records import code as module
from scalelab.records.code import code_hash, code_paths, snapshot_code


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, content in {
        "train.py": "import vit\n",
        "vit/__init__.py": "",
        "vit/model.py": "width = 3\n",
        "vit/__pycache__/model.pyc": "bytecode",
        ".git/HEAD": "ref",
        "data/large.bin": "x" * 4096,
        "runs/old/run.json": "{}",
        "runs/old/ledger.jsonl": "{}",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (root / "train.py").chmod(0o755)
    return root


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "run" / "code"


def names(directory: Path) -> list[str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(directory)) for path in files)


def test_files_and_directories_are_copied(root: Path, destination: Path) -> None:
    directory, digest = snapshot_code(["train.py", "vit"], root, destination)
    assert directory == destination / digest
    assert names(directory) == ["train.py", "vit/__init__.py", "vit/model.py"]
    assert (directory / "vit" / "model.py").read_text() == "width = 3\n"
    assert os.access(directory / "train.py", os.X_OK)
    assert not os.access(directory / "vit" / "model.py", os.X_OK)
    assert os.listdir(destination) == [digest]


def test_everything_leaves_out_runs_and_bytecode(root: Path, destination: Path) -> None:
    directory, _ = snapshot_code(["."], root, destination)
    assert names(directory) == [
        "data/large.bin",
        "train.py",
        "vit/__init__.py",
        "vit/model.py",
    ]


def test_the_hash_sees_names_contents_and_permissions(
    root: Path, destination: Path
) -> None:
    def digest(*paths: str) -> str:
        return snapshot_code(list(paths), root, destination)[1]

    first = digest("train.py", "vit")
    assert digest("vit", "./train.py", "vit/model.py") == first
    os.utime(root / "vit" / "model.py", (0, 0))
    assert digest("train.py", "vit") == first
    seen = {first}
    (root / "vit" / "model.py").write_text("width = 4\n")
    seen.add(digest("train.py", "vit"))
    (root / "train.py").chmod(0o644)
    seen.add(digest("train.py", "vit"))
    (root / "vit" / "model.py").rename(root / "vit" / "net.py")
    seen.add(digest("train.py", "vit"))
    assert len(seen) == 4
    assert set(os.listdir(destination)) == seen


def test_links_inside_are_followed(root: Path, destination: Path) -> None:
    (root / "vit" / "link.py").symlink_to(root / "train.py")
    (root / "alias").symlink_to("vit")
    directory, _ = snapshot_code(["alias"], root, destination)
    assert names(directory) == ["alias/__init__.py", "alias/link.py", "alias/model.py"]
    assert not (directory / "alias" / "link.py").is_symlink()


def loop(root: Path) -> None:
    (root / "vit" / "again").symlink_to(root / "vit")


def link_out(root: Path) -> None:
    (root / "vit" / "out").symlink_to(root.parent)


def dangle(root: Path) -> None:
    (root / "vit" / "gone").symlink_to("nowhere")


def pipe(root: Path) -> None:
    os.mkfifo(root / "vit" / "pipe")


def nothing(root: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("paths", "spoil", "message"),
    [
        ([], nothing, r"snapshot=\[\] holds no files"),
        (
            ["tain.py"],
            nothing,
            r"code\.snapshot: 'tain\.py' does not exist in .*project\. Did you mean",
        ),
        (["../run"], nothing, "does not exist"),
        ([".."], nothing, r"lies outside .*project\. Put the code below"),
        (["/etc"], nothing, r"snapshot path /etc lies outside"),
        (["vit"], link_out, r"out \(a link to .*\) lies outside"),
        (["vit"], loop, r"again is a symbolic link to .*vit, which contains it"),
        (["vit"], dangle, r"gone is neither a file nor a directory \(or a link to no"),
        (["vit"], pipe, r"pipe is neither a file nor a directory"),
        (["runs/old"], nothing, r"snapshot=\['runs/old'\] holds no files"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    root: Path,
    destination: Path,
    paths: list[str],
    spoil: Callable[..., Any],
    message: str,
) -> None:
    spoil(root)
    with pytest.raises(SpecError, match=message):
        snapshot_code(paths, root, destination)
    assert not destination.exists()


def test_too_much_is_refused_with_the_largest_file(
    root: Path, destination: Path
) -> None:
    message = (
        r"is 0\.0 MiB, more than 0\.0 MiB; its largest file is data/large\.bin "
        r"\(0\.0 MiB\)\. Leave data"
    )
    with pytest.raises(SpecError, match=message):
        snapshot_code(["."], root, destination, max_bytes=2048)
    snapshot_code(["vit"], root, destination, max_bytes=2048)


@pytest.mark.parametrize("where", ["list", "read"])
def test_what_cannot_be_read_is_refused(
    root: Path, destination: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    target = (os, "listdir") if where == "list" else (Path, "read_bytes")
    monkeypatch.setattr(*target, refuse)
    with refused("unreadable", "Permission denied"):
        snapshot_code(["vit"], root, destination)
    monkeypatch.undo()
    assert not destination.exists() or os.listdir(destination) == []


def test_a_full_disk_leaves_nothing(
    root: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.Path, "write_bytes", refuse)
    with pytest.raises(StoreError, match=r"cannot be written: No space left.*resumes"):
        snapshot_code(["vit"], root, destination)
    assert os.listdir(destination) == []


def experiment(root: Path, text: str) -> Experiment:
    sizes = "name: x\ngpus: 1\nlocal_batch_size: 8\n"
    return Experiment.from_text(sizes + text, directory=root)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("workload: digits_mlp", ()),
        ("workload: vit:Model", ("vit",)),
        ("workload: vit.model:Model", ("vit",)),
        ("workload: train:Model", ("train.py",)),
        ("workload: elsewhere:Model", ()),
        (
            "workload: train:Model\ncode: {snapshot: [vit, train.py]}",
            ("vit", "train.py"),
        ),
        ("command: python train.py", ()),
        ("command: python train.py\ncode: {snapshot: vit/}", ("vit/",)),
        ("workload: model:Model\ncode: {root: vit}", ("model.py",)),
    ],
)
def test_what_trials_run_a_copy_of(
    root: Path, text: str, paths: tuple[str, ...]
) -> None:
    assert code_paths(experiment(root, text)) == paths


@pytest.mark.parametrize(
    ("text", "changed", "is_seen"),
    [
        ("workload: vit:Model", "vit/model.py", True),
        ("workload: vit:Model", "train.py", False),
        ("command: python train.py --out {trial_dir}", "train.py", True),
        ("command: python train.py --config vit/model.py", "vit/model.py", True),
        ("command: python train.py", "vit/model.py", False),
        ("command: python -m vit\ncode: {snapshot: [vit]}", "vit/model.py", True),
    ],
)
def test_a_change_of_the_code_changes_its_hash(
    root: Path, text: str, changed: str, is_seen: bool
) -> None:
    asked = experiment(root, text)
    before = code_hash(asked)
    assert before is not None
    assert code_hash(asked) == before
    (root / changed).write_text("width = 5\n")
    assert (code_hash(asked) != before) == is_seen


@pytest.mark.parametrize(
    "text",
    [
        "workload: digits_mlp",
        "command: python -m somewhere.train",
        "command: python ../outside.py /etc/hostname",
        "command: python elsewhere.py",
    ],
)
def test_code_that_lies_elsewhere_has_no_hash(root: Path, text: str) -> None:
    (root.parent / "outside.py").write_text("")
    assert code_hash(experiment(root, text)) is None


def test_nothing_is_left_of_hashing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    code_hash(experiment(root, "workload: vit:Model"))
    assert os.listdir(scratch) == []


def test_code_that_cannot_be_copied_is_refused(root: Path) -> None:
    with pytest.raises(SpecError, match=r"code\.snapshot: 'gone\.py' does not exist"):
        code_hash(experiment(root, "command: a\ncode: {snapshot: gone.py}"))
