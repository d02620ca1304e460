from __future__ import annotations

import ctypes
import os
import select
from pathlib import Path

import inotify_simple
import pytest

from scalelab.errors import LaunchError
from scalelab.reading.logs.files import FileWatch, FollowedFile


def lines(file: FollowedFile) -> list[bytes]:
    return list(file.lines())


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    followed = FollowedFile(path)
    assert lines(followed) == []
    append(path, b"one\ntwo\nthr")
    assert lines(followed) == [b"one", b"two"]
    append(path, b"ee")
    assert lines(followed) == []
    append(path, b"\n\n\r\nfour\rfive\r")
    assert lines(followed) == [b"three", b"four", b"five"]
    assert followed.num_lines == 5
    followed.close()
    followed.close()


def test_a_progress_bar_is_read_when_it_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    followed = FollowedFile(path)
    append(path, b"start\n\r 0/9")
    assert lines(followed) == [b"start", b" 0/9"]
    assert lines(followed) == []
    append(path, b"\r 1/9  ")
    assert lines(followed) == [b" 1/9  "]
    append(path, b"\r 9/9\n")
    assert lines(followed) == [b" 9/9"]
    assert followed.num_lines == 4
    followed.close()


def test_a_progress_bar_that_is_written_in_pieces_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    followed = FollowedFile(path)
    append(path, b"\r")
    assert lines(followed) == []
    append(path, b"step 1")
    assert lines(followed) == [b"step 1"]
    append(path, b"2")
    assert lines(followed) == [b"step 12"]
    append(path, b" loss 0.5\r\n")
    assert lines(followed) == [b"step 12 loss 0.5"]
    append(path, b"not yet whole")
    assert lines(followed) == []
    followed.close()


def test_what_was_there_before_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    append(path, b"old\n")
    followed = FollowedFile(path)
    append(path, b"new\n")
    assert lines(followed) == [b"new"]
    followed.close()


@pytest.mark.parametrize("way", ["truncated", "replaced"])
def test_file_that_starts_again_is_read_from_its_beginning(
    tmp_path: Path, way: str
) -> None:
    path = tmp_path / "metrics"
    append(path, b"")
    followed = FollowedFile(path)
    append(path, b"a long first line\nand a torn o")
    assert lines(followed) == [b"a long first line"]
    if way == "truncated":
        path.write_bytes(b"new\n")
    else:
        (tmp_path / "other").write_bytes(b"new\n")
        (tmp_path / "other").rename(path)
    assert lines(followed) == [b"new"]
    followed.close()


def test_file_that_was_removed_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    append(path, b"")
    followed = FollowedFile(path)
    append(path, b"last words\n")
    followed.lines()
    path.unlink()
    assert lines(followed) == [b"last words"]
    followed.close()


def test_huge_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    followed = FollowedFile(path)
    append(path, b"x" * 5_000_000)
    assert lines(followed) == []
    append(path, b"x" * 5_000_000 + b"\nshort\n")
    assert lines(followed) == [b"short"]
    followed.close()


def test_pipe_without_a_writer_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no regular file"):
        FollowedFile(tmp_path / "pipe")


def wait_for(watch: FileWatch) -> set[Path]:
    assert select.select([watch.descriptor], [], [], 30)[0], "nothing happened"
    return watch.changed()


def test_change_of_a_file_wakes_the_watcher(tmp_path: Path) -> None:
    path, other = tmp_path / "a ä.log", tmp_path / "b.log"
    watch = FileWatch([path, other])
    assert watch.changed() == set()
    append(tmp_path / "unwatched", b"x")
    assert wait_for(watch) == set()
    append(path, b"x")
    assert wait_for(watch) == {path}
    append(other, b"x")
    assert wait_for(watch) == {other}
    watch.close()


def test_folders_made_later_are_watched(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "1" / "metrics"
    watch = FileWatch([path])
    path.parent.mkdir(parents=True)
    append(path, b"x")
    assert wait_for(watch) == {path}
    while select.select([watch.descriptor], [], [], 0)[0]:
        watch.changed()
    append(path, b"y")
    assert wait_for(watch) == {path}
    watch.close()


def test_a_folder_made_while_the_one_above_is_looked_at_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another process makes it after "runs" was listed and before it is watched.
    watch = FileWatch([], [tmp_path])
    add_watch = inotify_simple.INotify.add_watch

    def late(watches: inotify_simple.INotify, path: Path, mask: int) -> int:
        if path.name == "runs":
            (path / "first").mkdir(exist_ok=True)
        return int(add_watch(watches, path, mask))

    monkeypatch.setattr(inotify_simple.INotify, "add_watch", late)
    (tmp_path / "runs").mkdir()
    assert wait_for(watch) == {tmp_path}
    while select.select([watch.descriptor], [], [], 0)[0]:
        watch.changed()
    append(tmp_path / "runs" / "first" / "events", b"x")
    assert wait_for(watch) == {tmp_path}
    watch.close()


def test_file_moved_into_place_is_seen(tmp_path: Path) -> None:
    watch = FileWatch([tmp_path / "metrics"])
    append(tmp_path / "draft", b"x")
    (tmp_path / "draft").rename(tmp_path / "metrics")
    assert wait_for(watch) == {tmp_path / "metrics"}
    watch.close()


def test_refusal_of_the_kernel_names_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def inotify_init1(self, flags: int) -> int:
            ctypes.set_errno(24)
            return -1

        def inotify_add_watch(self, *arguments: object) -> int:
            ctypes.set_errno(28)
            return -1

    message = (
        r"^inotify_init1: Too many open files\. Raise fs\.inotify\.max_user_instances "
        r"and fs\.inotify\.max_user_watches of the node, or end what uses them up\.$"
    )
    monkeypatch.setattr(inotify_simple, "_libc", Refusing())
    with pytest.raises(LaunchError, match=message):
        FileWatch([tmp_path / "metrics"])
    monkeypatch.setattr(
        Refusing, "inotify_init1", lambda self, flags: os.open(os.devnull, os.O_RDONLY)
    )
    with pytest.raises(LaunchError, match=r"^inotify_add_watch: No space left"):
        FileWatch([tmp_path / "metrics"])


def test_closing_gives_descriptors_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        watch, followed = FileWatch([tmp_path / "a"]), FollowedFile(tmp_path / "a")
        append(tmp_path / "a", b"x")
        lines(followed)
        watch.close()
        followed.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_of_a_program_must_end_in_the_folder_of_its_trial(
    tmp_path: Path,
) -> None:
    trial, outside = tmp_path / "trial", tmp_path / "outside"
    for place in (trial / "version_3", outside):
        place.mkdir(parents=True)
        (place / "metrics").touch()

    (trial / "latest").symlink_to("version_3")
    followed = FollowedFile(trial / "latest" / "metrics", within=trial)
    append(trial / "version_3" / "metrics", b"one\n")
    assert lines(followed) == [b"one"]
    followed.close()

    (trial / "away").symlink_to(outside)
    with pytest.raises(OSError, match="it is a link out of"):
        FollowedFile(trial / "away" / "metrics", within=trial)

    # a file that the user has named elsewhere may be a link
    (tmp_path / "named").symlink_to(outside / "metrics")
    FollowedFile(tmp_path / "named", within=trial).close()
