from __future__ import annotations

import hashlib
import io
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.corpus.upstreams.fetch import Listed, Partial, discard, fetch, is_at_hand, known_digest
from everytoken.corpus.upstreams.retries import FetchError, Transient, retrying

CONTENT = bytes(range(256)) * 4


def listed(content: bytes = CONTENT, version: str | None = None, pinned: bool = True) -> Listed:
    return Listed(len(content), f"sha256:{hashlib.sha256(content).hexdigest()}" if pinned else None, version)


def sender(content: bytes, pieces: list[int] | None = None) -> Callable[[io.FileIO], None]:
    """Return a download that breaks off after each of the pieces, and then gives the rest."""
    rest = list(pieces or [])

    def download(stream: io.FileIO) -> None:
        start = stream.seek(0, os.SEEK_END)
        if rest and start < len(content):
            stream.write(content[start : start + rest.pop(0)])
            raise Transient("cut")
        stream.write(content[start:])

    return download


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr("everytoken.shards.remote.retries.pause", waited.append)
    return waited


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@given(st.lists(st.integers(1, 300), max_size=12), st.sampled_from([True, False]))
def test_any_cuts_give_the_same_bytes_and_leave_nothing(pieces: list[int], pinned: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr("everytoken.shards.remote.retries.pause", lambda _: None)
        place = Path(folder, "a.jsonl")
        fetch(place, listed(pinned=pinned), sender(CONTENT, pieces))
        assert place.read_bytes() == CONTENT
        assert names(Path(folder)) == ["a.jsonl"]


@given(st.integers(0, len(CONTENT) - 1), st.integers(0, 7))
def test_no_flipped_bit_gets_its_name(byte: int, bit: int) -> None:
    wrong = bytearray(CONTENT)
    wrong[byte] ^= 1 << bit
    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(FetchError, match=r"expected sha256:[0-9a-f]{64}, found sha256:[0-9a-f]{64}"):
            fetch(Path(folder, "a.jsonl"), listed(), sender(bytes(wrong)))
        assert names(Path(folder)) == []


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b""])
def test_another_size_than_listed_is_an_error_also_without_a_digest(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(FetchError, match=rf"expected 1,024 bytes as listed, fetched {len(content):,}"):
        fetch(tmp_path / "a.jsonl", listed(pinned=False), sender(content))
    assert names(tmp_path) == []


def begun(place: Path, of: Listed, so_far: bytes) -> None:
    """Leave what a killed process leaves."""

    def die(stream: io.FileIO) -> None:
        stream.write(so_far)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(place, of, die)


def test_only_what_a_digest_can_check_is_resumed(tmp_path: Path) -> None:
    for pinned in (True, False):
        sizes: list[int] = []

        def download(stream: io.FileIO, sizes: list[int] = sizes) -> None:
            sizes.append(stream.seek(0, os.SEEK_END))
            sender(CONTENT)(stream)

        place = tmp_path / f"{pinned}.jsonl"
        begun(place, listed(pinned=pinned), CONTENT[:100])
        fetch(place, listed(pinned=pinned), download)
        assert sizes == [100 if pinned else 0]
        assert place.read_bytes() == CONTENT


@pytest.mark.parametrize("so_far", [CONTENT, CONTENT + b"too much", b"\0" * len(CONTENT)])
def test_whatever_was_left_the_right_bytes_get_the_name(tmp_path: Path, so_far: bytes) -> None:
    begun(tmp_path / "a.jsonl", listed(), so_far)
    fetch(tmp_path / "a.jsonl", listed(), sender(CONTENT))
    assert (tmp_path / "a.jsonl").read_bytes() == CONTENT
    assert names(tmp_path) == ["a.jsonl"]


def test_what_was_fetched_of_another_version_is_not_mixed_in_and_is_removed(tmp_path: Path) -> None:
    begun(tmp_path / "a.jsonl", listed(b"x" * 1024), b"x" * 100)
    begun(tmp_path / "b.jsonl", listed(), CONTENT[:10])
    fetch(tmp_path / "a.jsonl", listed(), sender(CONTENT))
    assert (tmp_path / "a.jsonl").read_bytes() == CONTENT
    assert len([name for name in names(tmp_path) if name.endswith(".partial")]) == 1, "the one of b.jsonl stays"


def test_a_copy_is_at_hand_only_for_the_version_that_it_is_of(tmp_path: Path) -> None:
    place = tmp_path / "a.jsonl"
    first, second = listed(version="etag:1", pinned=False), listed(version="etag:2", pinned=False)
    assert not is_at_hand(place, first)
    fetch(place, first, sender(CONTENT))
    assert is_at_hand(place, first)
    assert not is_at_hand(place, second)
    fetch(place, second, sender(CONTENT[::-1]))
    assert place.read_bytes() == CONTENT[::-1]
    (note,) = tmp_path.glob(".*.listed.json")
    note.unlink()  # as after a crash between the two
    assert not is_at_hand(place, second)
    fetch(place, second, sender(CONTENT[::-1]))
    discard(place)
    discard(place)
    assert names(tmp_path) == [note.name]
    assert not is_at_hand(place, second)


def test_the_digest_of_a_version_is_known_after_the_copy_is_discarded(tmp_path: Path) -> None:
    place = tmp_path / "a.jsonl"
    first, second = listed(version="etag:1", pinned=False), listed(version="etag:2", pinned=False)
    assert known_digest(place, first) is None
    fetch(place, first, sender(CONTENT))
    discard(place)
    assert known_digest(place, first) == listed().pinned
    assert known_digest(place, second) is None
    (note,) = tmp_path.iterdir()
    for damaged in ("", "[]", "{}", '["x"]'):
        note.write_text(damaged)
        assert known_digest(place, first) is None
    untold = listed(version="", pinned=False)
    fetch(place, untold, sender(CONTENT))
    assert is_at_hand(place, untold)
    assert known_digest(place, untold) is None, "the same size may be another content"


@pytest.mark.parametrize("name", ["x" * 249 + ".jsonl", "ü" * 124 + ".jsonl", "[a].jsonl", "*.jsonl"])
def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path, name: str) -> None:
    place, of = tmp_path / name, listed(version="etag:1")
    (tmp_path / "a.jsonl").write_bytes(b"another")
    begun(place, listed(b"x" * 1024), b"x" * 100)
    begun(place, of, CONTENT[:100])
    fetch(place, of, sender(CONTENT))
    assert is_at_hand(place, of)
    assert place.read_bytes() == CONTENT
    discard(place)
    assert len(names(tmp_path)) == 2, "the note, and the other file"


def test_many_at_once_fetch_once(tmp_path: Path) -> None:
    place, calls = tmp_path / "a.jsonl", []

    def download(stream: io.FileIO) -> None:
        calls.append(1)
        sender(CONTENT)(stream)

    threads = [threading.Thread(target=fetch, args=(place, listed(), download)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]
    assert place.read_bytes() == CONTENT
    assert names(tmp_path) == ["a.jsonl"]


def test_attempts_that_bring_nothing_end_and_those_that_bring_bytes_count_anew(
    tmp_path: Path, waits: list[float]
) -> None:
    with pytest.raises(FetchError, match="cut, 6 times in a row"):
        fetch(tmp_path / "a.jsonl", listed(), sender(CONTENT, [1, 1, 0, 0, 0, 0, 0, 0]))
    assert waits == [1, 1, 2, 4, 8, 16]
    (partial,) = tmp_path.iterdir()
    assert partial.read_bytes() == CONTENT[:2], "what came is kept for the next run"


def test_a_file_that_only_comes_from_its_start_is_begun_a_bounded_number_of_times(tmp_path: Path) -> None:
    begun_with: list[int] = []

    def download(stream: Partial) -> None:
        stream.start_anew()
        begun_with.append(stream.seek(0, os.SEEK_END))
        stream.write(CONTENT[: len(begun_with)])  # more each time: by that alone it would never end
        raise Transient("cut")

    with pytest.raises(FetchError, match=r"only from its start, and the transfer broke off 7 times. Run again when"):
        fetch(tmp_path / "a.jsonl", listed(), download)
    assert begun_with == [0] * 7
    assert names(tmp_path) == []


def test_a_wait_is_the_servers_up_to_the_bound(waits: list[float]) -> None:
    asked = [3.0, 300.0]

    def attempt() -> str:
        if asked:
            raise Transient("busy", asked.pop(0))
        return "done"

    assert retrying(attempt) == "done"
    assert waits == [4, 301]
    asked.append(311.0)
    with pytest.raises(FetchError, match="busy and asks to wait 311 s, where this waits up to 310 s"):
        retrying(attempt)
