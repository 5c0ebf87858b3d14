"""What is damaged is found, by name; what is whole passes. Each fault is also looked for without its ledger."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.seeds import numpy_generator
from everytoken.shards import (
    Artifact,
    ArtifactStore,
    Inline,
    Part,
    Rows,
    Store,
    file_sha256,
    plan_artifact,
    value_digest,
    versioned,
)
from everytoken.tokens import DataParameters, StreamError, WindowWriter, open_training_windows, open_window_stream
from everytoken.tokens.checks.integrity import require, tokenizers_of, verify
from everytoken.tokens.checks.stored import find_stored
from everytoken.tokens.checks.windows import Seen, check_ids, check_padding, new_digest, sampled, scan
from everytoken.tokens.streams.packed import write_annotated_stream, write_compact_stream
from tests.shards.functions import count_up
from tests.shards.functions import given as given_parts
from tests.tokens.corpora import encoded, small_tokenizer, stored, tokenizer_of
from tests.tokens.packing_inputs import pack

SEQ = 8
SMALL = {"seq_length": SEQ, "seed": 1, "shuffle_memory": 1 << 20}
SAMPLED = DataParameters(
    schedule="integer",
    weights=None,
    replay=None,
    later_epochs="as_written",
    seed=0,
    check="sampled",
    document_mask=False,
)
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compact and an annotated stream, raw shards and a tokenizer, each an artifact."""
    folder = tmp_path_factory.mktemp("made")
    common = {"tokenizer": tokenizer_of(), **SMALL}
    compact = stored(folder / "in/a", [encoded([7, 3, 0, 12] * 50)])
    annotated = stored(folder / "in/b", [encoded([0, 3, 8, 7] * 20)])
    ArtifactStore(folder / "compact").save(
        plan_artifact(write_compact_stream, tokens=compact, shuffle_block=None, **common)
    )
    ArtifactStore(folder / "annotated").save(plan_artifact(write_annotated_stream, tokens=annotated, **common))
    pack(folder)
    small_tokenizer(folder / "small", [f"some text number {i} and more words of it" for i in range(40)])
    shutil.move(folder / "small/tokenizer", folder / "bpe")
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    for name in ("compact", "annotated", "raw_shards", "bpe"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


def faults(path: Path, level: str = "full") -> dict[str, str]:
    return {check.name: check.fault for check in verify(path, level) if not check.ok}


# ---- what is whole ----


@pytest.mark.parametrize("level", ["sizes", "sampled", "full"])
@pytest.mark.parametrize("with_ledger", [True, False])
def test_what_is_whole_passes_at_every_level(copied: Path, level: str, with_ledger: bool) -> None:
    for name in ("compact", "annotated", "raw_shards"):
        if not with_ledger:
            (copied / name / "ledger.json").unlink()
        checks = verify(copied / name, level)
        require(checks)
        assert [check.name for check in checks][: 2 * with_ledger] == ["ledger", "files"] * with_ledger
        assert all(check.numbers and check.text for check in checks)
    require(verify(copied / "bpe", level))


def test_the_numbers_are_those_of_the_streams(made: Path) -> None:
    numbers = {check.name: check.numbers for check in verify(made / "annotated", "full")}
    assert numbers["sizes"] == {"windows": 80, "tokens each": 9, "bytes a token": 2}
    assert numbers["lengths"] == {"tokens of content": 18 * 20}
    assert numbers["sidecar"] == {"rows": 80}
    windows = open_window_stream(made / "annotated").windows
    assert numbers["windows"] == {"windows": 80, "is the largest id": windows.max(), "EOS in content": 0}
    assert numbers["digests"] == {"files with their SHA-256": 4}
    compact = {check.name: check.text for check in verify(made / "compact", "full")}
    assert compact["sizes"] == "144 windows, 9 tokens each, 2 bytes a token"
    raw = {check.name: check.numbers for check in verify(made / "raw_shards", "full")}
    manifest = json.loads((made / "raw_shards/manifest.json").read_text())
    assert raw["shards"]["EOS"] == manifest["documents"] == raw["manifest"]["documents"] == 600


def test_a_planned_stream_has_nothing_to_check() -> None:
    with pytest.raises(StreamError, match="only planned"):
        open_window_stream(Artifact(), "full")


# ---- what is damaged ----


def flip(name: str, at: int) -> Damage:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at] ^= 1
        (folder / name).write_bytes(data)

    return damage


def truncate(name: str, by: int) -> Damage:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - by)


def swap(one: str, other: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / one).rename(folder / "aside")
        (folder / other).rename(folder / one)
        (folder / "aside").rename(folder / other)

    return damage


def edit_array(window: int, value: int) -> Damage:
    def damage(folder: Path) -> None:
        lengths = np.load(folder / "token_lengths.npy")
        lengths[window] = value
        np.save(folder / "token_lengths.npy", lengths)

    return damage


def edit_sidecar(folder: Path) -> None:
    table = pq.read_table(folder / "sidecar.parquet")
    lengths = table["token_length"].to_pylist()
    lengths[5] += 1
    index = table.column_names.index("token_length")
    pq.write_table(table.set_column(index, "token_length", pa.array(lengths, pa.int32())), folder / "sidecar.parquet")


def cut_sidecar(folder: Path) -> None:
    pq.write_table(pq.read_table(folder / "sidecar.parquet").slice(1), folder / "sidecar.parquet")


def edit_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][1]["tokens_by_source"]["web"] += 1
    (folder / "manifest.json").write_text(json.dumps(manifest))


# stream, damage, fault without the ledger (check, what it says), or None when only digests can tell
CASES: dict[str, tuple[str, Damage, tuple[str, str] | None, str]] = {
    "compact bit": ("compact", flip("compact.bin", 40), None, r"compact/compact\.bin: expected SHA-256"),
    "compact cut": ("compact", truncate("compact.bin", 2), ("sizes", r"compact\.bin is truncated"), "compact.bin"),
    "compact no bin": ("compact", lambda f: (f / "compact.bin").unlink(), ("sizes", "is missing"), "compact.bin"),
    "compact no index": ("compact", lambda f: (f / "compact.idx").unlink(), ("sizes", "is missing"), "compact.idx"),
    "compact index cut": (
        "compact",
        truncate("compact.idx", 8),
        ("sizes", r"compact\.idx is truncated"),
        "compact.idx",
    ),
    "compact index bit": (
        "compact",
        flip("compact.idx", 34 + 4 * 144 + 8 * 7),
        ("index", "sequence 7 starts at byte"),
        "idx",
    ),
    "compact length bit": ("compact", flip("compact.idx", 34 + 4 * 7), ("index", "sequence 8 starts at byte"), "idx"),
    "compact boundary": ("compact", flip("compact.idx", 34 + 12 * 144 + 8 * 6), ("index", "boundary"), "idx"),
    "swapped": (
        "compact",
        swap("compact.bin", "compact.idx"),
        ("sizes", "does not start with"),
        r"compact\.bin.*compact\.idx",
    ),
    "annotated bit": (
        "annotated",
        flip("annotated.bin", 2 * (9 * 3 + 8)),
        ("windows", "window 3 position 8"),
        "annotated.bin",
    ),
    "lengths": ("annotated", edit_array(4, 2), ("windows", "window 4 position"), "token_lengths.npy"),
    "length too long": (
        "annotated",
        edit_array(4, 9),
        ("lengths", "window 4: expected a length from 0 to 8, found 9"),
        "token_lengths",
    ),
    "length below": (
        "annotated",
        edit_array(4, -1),
        ("lengths", "window 4: expected a length from 0 to 8, found -1"),
        "token_lengths",
    ),
    "lengths cut": (
        "annotated",
        truncate("token_lengths.npy", 3),
        ("sizes", "no array of NumPy, or is truncated"),
        "token_lengths",
    ),
    "sidecar": ("annotated", edit_sidecar, ("sidecar", r"row 5: expected token_length \d"), "sidecar"),
    "sidecar rows": ("annotated", cut_sidecar, ("sidecar", "expected 80 rows, found 79"), "sidecar"),
    "sidecar cut": ("annotated", truncate("sidecar.parquet", 9), ("sidecar", ""), "sidecar"),
    "shard bit": ("raw_shards", flip("shard_00002.bin", 9), ("shards", r"shard_00002\.bin"), "shard_00002.bin"),
    "shard cut": (
        "raw_shards",
        truncate("shard_00003.bin", 4),
        ("sizes", r"shard_00003\.bin is truncated"),
        "shard_00003",
    ),
    "shards swapped": (
        "raw_shards",
        swap("shard_00001.bin", "shard_00002.bin"),
        ("shards", r"shard_00001\.bin.*shard_00002\.bin"),
        "shard_00001",
    ),
    "manifest": (
        "raw_shards",
        edit_manifest,
        ("manifest", r"sources of shard_00001\.bin are \d+, expected 500"),
        "manifest.json",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("with_ledger", [True, False])
def test_each_fault_is_found_by_name(copied: Path, case: str, with_ledger: bool) -> None:
    name, damage, alone, named = CASES[case]
    folder = copied / name
    damage(folder)
    if not with_ledger:
        (folder / "ledger.json").unlink()
    found = faults(folder)
    if alone is not None:
        check, message = alone
        assert re.search(message, found[check]), found
        with pytest.raises(StreamError):
            require(verify(folder, "full"))
    if with_ledger:
        assert re.search(named, found["digests"]), found
    elif alone is None:
        assert found == {}, "without a ledger nobody can know"


def test_a_ledger_that_was_edited_is_no_witness(copied: Path) -> None:
    path = copied / "compact/ledger.json"
    path.write_text(path.read_text().replace('"remainder_tokens": ', '"remainder_tokens": 1'))
    assert "it was edited" in faults(copied / "compact", "sizes")["ledger"]
    path.write_text("{}")
    assert "is no ledger of an artifact" in faults(copied / "compact", "sizes")["ledger"]


def forge(folder: Path, **changed: object) -> None:
    """Change the ledger, and its checksum with it."""
    path = folder / "ledger.json"
    ledger = {**json.loads(path.read_text()), **changed}
    ledger["checksum"] = value_digest({key: value for key, value in ledger.items() if key != "checksum"})
    path.write_text(json.dumps(ledger))


def test_the_root_digest_is_summed_up_again(copied: Path) -> None:
    forge(copied / "compact", root_digest="0" * 64)
    assert "its root digest is 0000000000000000, expected" in faults(copied / "compact")["digests"]


def test_files_too_many_and_of_another_size_are_named_at_every_level(copied: Path) -> None:
    (copied / "compact/compact2.bak").touch()
    (copied / "annotated/sidecar.parquet").unlink()
    truncate("annotated.idx", 1)(copied / "annotated")
    assert "compact2.bak: the ledger knows no such file" in faults(copied / "compact", "sizes")["files"]
    found = faults(copied / "annotated", "sizes")["files"]
    assert "sidecar.parquet: expected" in found and "it is missing" in found
    assert "annotated.idx: expected" in found


@pytest.mark.parametrize(
    ("statistics", "check", "message"),
    [
        (
            {"tokenizer": {"vocab_size": 5}},
            "windows",
            r"window \d+ position \d+: expected an id of at least 0 and below",
        ),
        ({"eos_id": 0, "eos_tokens": 7}, "windows", "expected 7 EOS as its ledger says, found"),
        ({"eos_id": 0, "documents": 9999, "remainder_tokens": 3}, "windows", "at least 9,996 EOS"),
        ({"windows": 5}, "sizes", "expected 5 windows as its ledger says, found 144"),
    ],
)
def test_tokens_are_compared_with_what_the_ledger_says(
    copied: Path, statistics: dict[str, object], check: str, message: str
) -> None:
    forge(copied / "compact", statistics=statistics)
    assert re.search(message, faults(copied / "compact")[check])


def test_the_eos_of_a_compact_stream_are_at_most_those_of_documents_and_those_that_texts_spell(
    made: Path, tmp_path: Path
) -> None:
    (eos,) = [check.numbers["EOS"] for check in verify(made / "compact", "full", facts(0)) if check.name == "windows"]
    statistics = ArtifactStore(made / "compact").load().statistics
    assert statistics["documents"] - statistics["remainder_tokens"] <= eos < statistics["documents"] == 200
    spelled = stored(tmp_path / "in", [encoded([7, 3, 0, 12] * 50, eos=1)])  # the content has ones, too
    planned = plan_artifact(
        write_compact_stream, tokens=spelled, tokenizer=tokenizer_of(eos=1), shuffle_block=None, **SMALL
    )
    ArtifactStore(tmp_path / "compact").save(planned)
    found = {check.name: check.fault for check in verify(tmp_path / "compact", "full", facts(0))}
    assert re.search("at most 200 EOS, one for each document and 0 that texts spell, found", found["windows"])
    require(verify(tmp_path / "compact", "full", facts(10_000)))
    tokens = np.memmap(tmp_path / "compact/compact.bin", np.uint16, "r+")
    tokens[tokens == 1] = 2
    tokens.flush()
    found = {check.name: check.fault for check in verify(tmp_path / "compact", "full", facts(10_000))}
    assert re.search("at least 196 EOS for its documents, found 0", found["windows"])


def facts(special_ids: int) -> dict[str, int]:
    return {"vocab_size": 700, "eos_id": 0, "special_ids": special_ids}


def test_what_texts_spell_is_found_by_the_digests_of_the_recipes(made: Path, tmp_path: Path) -> None:
    bpe = ArtifactStore(made / "bpe").load()
    tokens = Store(tmp_path / "tokens")
    tokens.save(given_parts(3).map(spelling, tokenizer=bpe), Inline())
    stream = plan_artifact(
        write_compact_stream, tokens=tokens.load(), tokenizer=bpe, shuffle_block=None, **{**SMALL, "seq_length": 3}
    )
    ArtifactStore(tmp_path / "stream").save(stream)
    paths = [tmp_path / "stream", tmp_path / "tokens", made / "bpe"]
    expected = {"vocab_size": 285, "eos_id": 0, "special_ids": 6}
    assert tokenizers_of([*paths, made / "annotated", tmp_path / "absent"])[tmp_path / "stream"] == expected
    assert "special_ids" not in tokenizers_of([paths[0], paths[2]])[tmp_path / "stream"], "the store is not given"
    assert tmp_path / "stream" not in tokenizers_of(paths[:2]), "the tokenizer is not given"


@versioned("spelling", 1)
def spelling(part: Part, *, tokenizer: Artifact) -> Rows:
    """A part of encoded documents in which texts spell two special tokens."""
    table = encoded([10, 3, 11])

    def batches():  # type: ignore[no-untyped-def]
        yield from table.to_batches()
        return {"special_ids": 2}

    return Rows(table.schema, batches())


def test_eos_of_a_whole_compact_stream_are_within_what_can_be_known(made: Path) -> None:
    statistics = ArtifactStore(made / "compact").load().statistics
    found = int(np.count_nonzero(open_window_stream(made / "compact").windows == 0))
    assert statistics["documents"] - statistics["remainder_tokens"] <= found <= statistics["documents"]
    assert statistics["remainder_tokens"] > 0


def test_a_stream_of_documents_is_checked_too(tmp_path: Path) -> None:
    """As `everytoken tokenize` writes it: sequences of several lengths."""
    from everytoken.tokens.streams.megatron import _HEADER

    ids, lengths = np.arange(9, dtype="<u2"), np.array([2, 4, 3], "<i4")
    ids.tofile(tmp_path / "documents.bin")
    pointers = (np.cumsum(lengths) - lengths).astype("<i8") * 2
    header = _HEADER.pack(b"MMIDIDX\x00\x00", 1, 8, 3, 4)
    index = header + lengths.tobytes() + pointers.tobytes() + np.arange(4, dtype="<i8").tobytes()
    (tmp_path / "documents.idx").write_bytes(index)
    for path in (tmp_path, tmp_path / "documents", tmp_path / "documents.bin"):
        checks = verify(path, "full")
        require(checks)
        assert [check.name for check in checks] == ["sizes", "index", "tokens"]
        assert checks[0].numbers == {"sequences": 3, "tokens": 9}


# ---- windows ----


def first_fault(windows: np.ndarray, lengths: np.ndarray, eos: int) -> tuple[int, int] | None:
    """Window by window and token by token."""
    for i, (window, length) in enumerate(zip(windows.tolist(), lengths.tolist(), strict=True)):
        for position in range(length, len(window)):
            if window[position] != eos:
                return i, position
    return None


@settings(max_examples=200)
@given(
    st.integers(1, 6).flatmap(
        lambda window: st.lists(
            st.tuples(st.lists(st.integers(0, 2), min_size=window, max_size=window), st.integers(0, window - 1)),
            min_size=1,
            max_size=6,
        )
    )
)
def test_padding_is_right_exactly_when_every_token_from_the_length_on_is_eos(rows: list[tuple[list[int], int]]) -> None:
    windows, lengths = np.array([row for row, _ in rows], "<u2"), np.array([length for _, length in rows], "<i4")
    numbers = np.arange(len(rows)) + 100
    expected = first_fault(windows, lengths, 0)
    if expected is None:
        check_padding(Path("s"), numbers, windows, lengths, 0)
    else:
        with pytest.raises(StreamError, match=rf"^s window {expected[0] + 100} position {expected[1]}\b"):
            check_padding(Path("s"), numbers, windows, lengths, 0)


@pytest.mark.parametrize(("dtype", "bad"), [("<i4", -7), ("<i4", 50), ("<u2", 50)])
def test_an_id_outside_the_vocabulary_is_found_where_it_is(dtype: str, bad: int) -> None:
    windows = np.full((4, 6), 49, dtype)
    check_ids(Path("s"), np.arange(4), windows, 50, 49, seen := Seen())
    assert (seen.largest, seen.eos) == (49, 24)
    windows[2, 3] = bad
    with pytest.raises(StreamError, match=f"s window 2 position 3: expected an id of at least 0.*found {bad}"):
        check_ids(Path("s"), np.arange(4), windows, 50, None, Seen())


def test_scanning_gives_every_window_once_and_the_digest_of_every_byte(tmp_path: Path) -> None:
    ids = numpy_generator(0).integers(0, 1000, 5_000_003).astype("<u2")
    ids.tofile(tmp_path / "x.bin")
    digest, found = new_digest(), []
    for numbers, windows in scan(tmp_path / "x.bin", np.dtype("<u2"), 7, digest):
        assert np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(windows)))
        found.append(windows.copy())
    assert len(found) > 1
    assert np.array_equal(np.concatenate(found), ids[: len(ids) // 7 * 7].reshape(-1, 7))
    assert digest.hexdigest() == file_sha256(tmp_path / "x.bin")


# ---- opening ----


def test_opening_finds_damage_in_the_windows_it_looks_at(copied: Path) -> None:
    streams = {name: copied / name for name in ("compact", "annotated")}
    open_training_windows(streams, SAMPLED, batch_size=4)
    flip("annotated.bin", 2 * 8)(copied / "annotated")  # the last token of the first window, which is always looked at
    with pytest.raises(StreamError, match="window 0 position 8, "):
        open_window_stream(copied / "annotated")
    (copied / "compact/ledger.json").write_text("{}")
    with pytest.raises(StreamError, match="is no ledger"):
        open_window_stream(copied / "compact")


def test_a_stream_of_another_size_than_its_ledger_says_is_not_opened(copied: Path) -> None:
    with WindowWriter(copied / "compact/compact", SEQ + 1, np.uint16) as writer:
        writer.write(np.ones((3, SEQ + 1), np.uint16))
    with pytest.raises(StreamError, match=r"compact\.bin: expected [\d,]+ bytes, found 54"):
        open_window_stream(copied / "compact")


@pytest.mark.sensitive
def test_opening_a_huge_stream_takes_no_longer_than_a_small_one(tmp_path: Path) -> None:
    count = 3_000_000  # windows of 4,098 bytes: a sparse file of 12 GB
    with WindowWriter(tmp_path / "stream", 2049, np.uint16) as writer:
        writer.write(np.zeros((0, 2049), np.uint16))
        writer.windows = count
    os.truncate(tmp_path / "stream.bin", count * 4098)
    np.save(tmp_path / "token_lengths.npy", np.zeros(count, "<i4"))
    seconds = []
    for _ in range(5):
        begun = time.process_time()  # not of the clock: another process may have the core
        assert len(open_window_stream(tmp_path)) == count
        seconds.append(time.process_time() - begun)
    assert min(seconds) < 0.25, "the whole file was read: that takes seconds"


def test_the_sample_has_both_ends_and_is_the_same_every_time() -> None:
    for count in (0, 1, 5, 33, 10_000_000):
        numbers = sampled(np.empty((count, 0)))
        assert np.array_equal(numbers, sampled(np.empty((count, 0))))
        assert np.array_equal(numbers, np.unique(numbers))
        assert not count or (numbers[0] == 0 and numbers[-1] == count - 1)
        assert len(numbers) <= 32


# ---- other things that are stored ----


def test_what_a_folder_holds_is_found_below_it(made: Path, tmp_path: Path) -> None:
    found = [path.name for path in find_stored(made)]
    assert found[:2] == ["annotated", "bpe"]
    assert {"annotated", "bpe", "compact", "raw_shards", "tokenizer"} <= set(found)
    assert find_stored(made / "compact") == [made / "compact"]
    with pytest.raises(StreamError, match="holds nothing to verify"):
        find_stored(tmp_path)
    with pytest.raises(StreamError, match="holds nothing to verify"):
        verify(tmp_path / "absent", "full")


def test_a_store_names_its_damaged_parts(tmp_path: Path) -> None:
    Store(tmp_path / "store").save(given_parts(3).map(count_up), Inline())
    require(verify(tmp_path / "store", "full"))
    for part in (0, 2):
        flip(f"part_0000{part}.parquet", 30)(tmp_path / "store")
    assert faults(tmp_path / "store", "sampled") == {}
    found = faults(tmp_path / "store")["digests"]
    assert "part_00000" in found and "part_00002" in found and "part_00001" not in found
    (tmp_path / "store/part_00001.parquet").unlink()
    assert "part_00001" in faults(tmp_path / "store", "sizes")["sizes"]


def test_a_tokenizer_must_be_the_one_of_its_ledger(copied: Path) -> None:
    checks = {check.name: check.numbers for check in verify(copied / "bpe", "sampled")}
    assert checks["tokenizer"] == {"tokens in the vocabulary": 285, "is the id of EOS": 0}
    path = copied / "bpe/tokenizer.json"
    path.write_text(path.read_text().replace("Ġwords", "Ġwordz"))
    assert "tokenizer.json" in faults(copied / "bpe", "sampled")["tokenizer"]
    assert "expected SHA-256" in faults(copied / "bpe")["digests"]
