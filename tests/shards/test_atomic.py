"""Files and folders appear whole or not at all; temporaries of the dead go, those of the living stay."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everytoken.shards import StoreBusy, atomic_file, write_text
from everytoken.shards.atomic import atomic_folder, remove_temporaries, sole_writer
from tests.shards.folders import content


@contextmanager
def no_file_longer_than(limit: int) -> Iterator[None]:
    """A full disk: writing beyond the limit is an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
        assert not (tmp_path / "a.txt").exists()
    assert content(tmp_path) == {"a.txt": b"new"}


def test_an_error_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert content(tmp_path) == {"a.txt": b"old"}


def test_a_full_disk_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with no_file_longer_than(1000), pytest.raises(OSError, match="too large"):
        write_text(tmp_path / "a.txt", "x" * 5000)
    assert content(tmp_path) == {"a.txt": b"old"}


def test_a_folder_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    for text in ("old", "new"):
        with atomic_folder(tmp_path / "f") as folder:
            (folder / "deep").mkdir()
            (folder / "deep" / text).write_text(text)
    assert content(tmp_path) == {"f/deep/new": b"new"}


def test_an_error_leaves_the_old_folder_and_no_temporary(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "f") as folder:
        (folder / "old").touch()
    with pytest.raises(ValueError, match="half"), atomic_folder(tmp_path / "f") as folder:
        (folder / "new").touch()
        raise ValueError("half")
    assert content(tmp_path) == {"f/old": b""}


def test_temporaries_of_one_name_are_removed_and_no_others(tmp_path: Path) -> None:
    stay = ["model", ".model.v2.123.tmp", ".model.tmp", ".hidden", "x.1.tmp", ".model.v2.1.old.tmp", ".mode1.5.tmp"]
    for name in [*stay, ".model.77.tmp"]:
        (tmp_path / name).touch()
    (tmp_path / ".model.77.old.tmp" / "deep").mkdir(parents=True)
    remove_temporaries(tmp_path, "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stay)


def test_names_with_pattern_characters_are_only_names(tmp_path: Path) -> None:
    (tmp_path / ".a[1].77.tmp").touch()
    (tmp_path / ".a1.77.tmp").touch()
    remove_temporaries(tmp_path, "a[1]")
    assert list(content(tmp_path)) == [".a1.77.tmp"]


def test_a_linked_temporary_is_unlinked_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "precious").touch()
    (tmp_path / ".x.1.tmp").symlink_to(tmp_path / "target")
    remove_temporaries(tmp_path)
    assert content(tmp_path) == {"target/precious": b""}


def test_there_is_one_writer_at_a_time(tmp_path: Path) -> None:
    busy = pytest.raises(StoreBusy, match="being written by another process")
    with sole_writer(tmp_path), busy, sole_writer(tmp_path):
        pass
    with sole_writer(tmp_path):
        assert content(tmp_path) == {}, "no lock file stays behind"
