"""``everytoken verify RELEASE [STREAMS]``: every changed bit is found and named, down to the document and the token."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from everytoken.checks import Check
from everytoken.cli import cli
from everytoken.corpus.exclusion import ExcludedAddress, write_list
from everytoken.provenance.releases.release import Release, open_release
from everytoken.provenance.verification.releases import find_streams, release_checks
from everytoken.provenance.verification.window_faults import checksum, single_changes
from everytoken.seeds import numpy_generator
from tests.provenance.builds import Build, build, release_of, write_texts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build with its release; nobody writes into it."""
    folder = tmp_path_factory.mktemp("release")
    write_texts(folder / "texts")
    made = build(folder / "data", folder / "texts")
    release_of(made)
    return made


@pytest.fixture
def copy(made: Build, tmp_path: Path) -> Path:
    """``release`` and ``streams`` to be damaged: copies, as files of a build are hard links."""
    shutil.copytree(made.folder / "08_reporting/release", tmp_path / "release")
    for name in ("annotated_stream", "compact_stream"):
        shutil.copytree(made.folder / "05_model_input" / name, tmp_path / "streams" / name)
    (tmp_path / "texts").symlink_to(made.folder.parent / "texts")
    return tmp_path


def checks(copy: Path, *, full: bool = True, streams: bool = True, upstream: bool = False) -> list[Check]:
    given = {name: copy / f"streams/{name}_stream" for name in ("annotated", "compact") if streams}
    fetched, roots = copy / "fetched" if upstream else None, {"pieces": str(copy / "texts")}
    return release_checks(copy / "release", given, full=full, documents=4, seed=1, upstream=fetched, roots=roots)


def faults(found: list[Check]) -> dict[str, str]:
    return {check.name: check.text for check in found if not check.ok}


def verify(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["verify", *map(str, arguments)])


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    yield
    path.write_bytes(before)


def test_a_whole_release_and_its_streams_hold(made: Build, copy: Path) -> None:
    assert find_streams(copy / "release", [copy]) == (
        {name: copy / f"streams/{name}_stream" for name in ("annotated", "compact")},
        [],
    )
    for full in (False, True):
        found = checks(copy, full=full, upstream=True)
        assert not faults(found)
        said = {check.name: check.text for check in found}
        statistics = made["compact_stream"].statistics
        assert said["plan"].startswith("4 shards, 3 in the order of seed 42, the first [2, 1, 3]")
        rows = {split: made[f"{split}_documents"].rows for split in ("annotated", "unannotated", "held_out")}
        assert said["rows"].startswith(", ".join(f"{number} {split}" for split, number in rows.items()))
        assert said["upstream files"].endswith("as released; 4 shards" if full else "as released")
        assert "4 documents read again" in said["upstream"] and "tokens are those of" in said["upstream"]
    tokens = statistics["windows"] * 65 + statistics["remainder_tokens"]
    assert said["compact documents"].startswith(f"{tokens:,} tokens with EOS = {statistics['windows']} windows of 65")
    lengths = np.load(copy / "streams/annotated_stream/token_lengths.npy")
    at_cap = int(np.count_nonzero(lengths == 59))
    assert f"{at_cap} ({at_cap / len(lengths):.1%}) at the cap of 59" in said["annotated documents"]


def test_the_command_prints_a_line_a_check(copy: Path) -> None:
    whole = verify(copy / "release", copy / "streams", "--full")
    assert whole.exit_code == 0, whole.output
    *lines, last, verdict = whole.output.splitlines()
    assert all(line.startswith("ok    ") for line in lines) and len(lines) > 20
    assert re.fullmatch(r"read [\d,]+ bytes in [\d.]+ s \([\d.]+ GB/s\)", last)
    assert verdict == f"all {len(lines)} checks hold"
    (copy / "release/corpus-manifest/held_out/part_00001.parquet").unlink()
    sampled = verify(copy / "release", "--documents", 2, "--seed", 3)
    assert sampled.exit_code == 1
    said = " ".join(sampled.output.split())
    assert re.search(r"FAIL checksums: \S+held_out/part_00001.parquet is missing: copy the release again", said)
    *lines, how, verdict = sampled.output.splitlines()
    assert how == "sizes and a sample of seed 3 only; --full reads every byte"
    count = sum(line.startswith(("ok  ", "FAIL")) for line in lines)
    assert verdict.startswith(f"1 of {count} checks does not hold")


def test_a_file_that_is_missing_is_named_once_and_what_needs_it_is_not_checked(copy: Path) -> None:
    kinds: dict[tuple[str, str], Path] = {}
    for root in ("release", "streams"):
        for path in sorted(path for path in (copy / root).rglob("*") if path.is_file() and path.name != "ledger.json"):
            kinds.setdefault((str(path.parent), path.suffix if "part_" in path.name else path.name), path)
    for path in kinds.values():
        path.rename(copy / "elsewhere")
        found = checks(copy)
        (copy / "elsewhere").rename(path)
        (fault,) = faults(found).values()
        assert str(path) in fault and ("is missing" in fault or "No such file" in fault), path
        assert not any("run the pipeline" in check.text for check in found)
    part = copy / "release/corpus-manifest/annotated/part_00001.parquet"
    part.unlink()
    windows = window_of(copy / "streams/compact_stream/compact.bin")
    windows[0, 9] ^= 1
    windows.flush()  # type: ignore[attr-defined]
    assert list(faults(checks(copy, full=False, upstream=True))) == ["checksums", "compact windows"]
    found = checks(copy)
    assert set(faults(found)) == {"checksums", "compact windows"}, "a fault that the missing file is not to blame for"
    said = {check.name: check.text for check in found}
    assert said["manifest"].endswith("not checked: parts that are missing (1), see checksums")
    assert said["annotated documents"].startswith("not checked: only ")
    assert said["annotated sidecar"] == f"not checked: {part} is missing, see checksums"
    printed = verify(copy / "release", copy / "streams", "--full").output
    assert f"--    annotated sidecar: not checked: {part} is missing, see checksums\n" in printed
    assert re.search(r"\n2 of \d+ checks do not hold; 3 could not be made\n$", printed)


def test_a_stream_that_was_not_given_is_named(copy: Path) -> None:
    both, one = (verify(copy / "release", copy / path).output for path in ("streams", "streams/compact_stream"))
    line = "--    annotated: not compared, as none of the paths holds this stream\n"
    assert line in one and line not in both


def test_what_is_damaged_is_to_be_copied_again(copy: Path) -> None:
    part = copy / "release/corpus-manifest/annotated/part_00001.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    found = faults(checks(copy))
    assert f"{part} cannot be read" in found["manifest"] and found["manifest"].endswith("Copy the release again.")
    assert not any("pipeline" in fault for fault in found.values())


def test_streams_that_are_not_there_or_there_twice_are_said(copy: Path) -> None:
    shutil.copytree(copy / "streams/compact_stream", copy / "streams/again")
    twice = verify(copy / "release", copy / "streams")
    assert twice.exit_code == 1 and "FAIL  compact is there 2 times" in twice.output
    none = verify(copy / "release", copy / "release")
    said = " ".join(none.output.split())
    assert none.exit_code == 1 and "holds none of the release's streams: annotated, compact" in said
    no_release = verify(copy / "streams", "--upstream")
    assert no_release.exit_code == 2 and "--upstream is for a release" in no_release.output


def test_every_flipped_bit_is_found_and_its_file_named(copy: Path) -> None:
    generator, missed = numpy_generator(7), []
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        content, streams = path.read_bytes(), path.is_relative_to(copy / "streams")
        for bit in generator.integers(0, 8 * len(content), 1 if path.suffix == ".parquet" else 2).tolist():
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            with changed(path, bytes(flipped)):
                found = faults(checks(copy, streams=streams))
            if not any(str(path) in fault for fault in found.values()):
                missed.append((path.relative_to(copy), bit, found))
    assert not missed


def window_of(path: Path) -> np.ndarray:
    return np.memmap(path, "<u2", "r+").reshape(-1, 65)


def test_an_edited_token_of_the_compact_stream_is_named_with_its_document(made: Build, copy: Path) -> None:
    windows = window_of(copy / "streams/compact_stream/compact.bin")
    at = next(i for i in range(20, 64) if 0 not in windows[11, i - 20 : i + 1])
    before = int(windows[11, at])
    windows[11, at] = before ^ 1
    windows.flush()  # type: ignore[attr-defined]
    (fault,) = faults(checks(copy)).values()
    what, *more = fault.split("\n")
    file = copy / "streams/compact_stream/compact.bin"
    assert what == f"{file} window 11 position {at}: expected {before}, found {before ^ 1}"
    assert more[0].startswith("if one token was changed") and "it holds" in more
    told = re.search(r"token (\d+) of unannotated document (\d+) \((part_\d+) row (\d+): pieces/(\d)/(\d+)", fault)
    assert told is not None
    token, number, row = int(told[1]), int(told[2]), int(told[4])
    tokens = next(part for part in made["unannotated_tokens"] if part.name == told[3]).table().to_pylist()[row]
    assert (tokens["shard_index"], tokens["row"]) == (int(told[5]), int(told[6]))
    assert tokens["tokens"][token] == before
    first = sum(part.rows for part in made["unannotated_tokens"] if part.name < told[3])
    assert number == first + row
    with_texts = faults(checks(copy, upstream=True))["compact windows"]
    assert with_texts.startswith(f"{what}\ntoken {token} of unannotated document {number} (")
    printed = verify(copy / "release", copy / "streams", "--full").output.replace(str(copy), "")
    lines = printed.splitlines()
    at_fault = next(i for i, line in enumerate(lines) if line.startswith("FAIL  compact windows:"))
    end = next(i for i in range(at_fault + 1, len(lines)) if not lines[i].startswith("      "))
    assert end - at_fault > 4 and all(len(line) <= 120 for line in lines[at_fault:end])
    assert lines[-1].startswith("1 of ") and lines[-1].endswith(" checks does not hold")


def test_an_edited_token_of_the_annotated_stream_is_named_with_its_document(made: Build, copy: Path) -> None:
    windows = window_of(copy / "streams/annotated_stream/annotated.bin")
    before = windows[5, 2:4].tolist()
    windows[5, 2:4] = before[::-1]
    windows.flush()  # type: ignore[attr-defined]
    row = pq.read_table(copy / "streams/annotated_stream/sidecar.parquet").to_pylist()[5]
    document = f"pieces/{row['shard_index']}/{row['row']}"
    for upstream in (False, True):
        (fault,) = faults(checks(copy, upstream=upstream)).values()
        assert ("position 2" if upstream else "is not as released") in fault.split("\n")[0] and document in fault
    assert f"annotated.bin window 5 position 2: expected {before[0]}, found {before[1]}\n" in fault
    assert "positions that differ besides: 1\n" in fault


def test_the_sample_finds_what_is_in_it(copy: Path) -> None:
    windows = window_of(copy / "streams/compact_stream/compact.bin")
    windows[0, 9] ^= 1  # the first and the last window are always looked at
    windows.flush()  # type: ignore[attr-defined]
    (fault,) = faults(checks(copy, full=False)).values()
    assert "window 0 position 9: expected" in fault and "\nif one token was changed" in fault


def test_a_checksum_tells_which_token_was_changed() -> None:
    generator = numpy_generator(3)
    for kind in ("<u2", "<i4"):
        window = generator.integers(0, 320, 65).astype(kind)
        expected, position = checksum(window), int(generator.integers(0, 65))
        before = int(window[position])
        window[position] = (before + 7) % 320
        told = {(change.position, change.expected) for change in single_changes(window, expected, 320)}
        assert told == {(position, before)}


def rewrite(path: Path, **columns: Any) -> None:
    """Write a parquet file with other values in a row: by column, row and value."""
    table = pq.read_table(path)
    for name, (row, value) in columns.items():
        values = table.column(name).to_pylist()
        values[row] = value
        number = table.schema.get_field_index(name)
        table = table.set_column(number, table.schema.field(number), pa.array(values, table.schema.field(number).type))
    pq.write_table(table, path)


@pytest.mark.parametrize(
    ("column", "value"),
    [("doc_id", "another"), ("safety_score", 1), ("token_length", 1), ("text", "another"), ("row", 9)],
)
def test_a_sidecar_that_differs_is_named_by_window_and_document(copy: Path, column: str, value: Any) -> None:
    path = copy / "streams/annotated_stream/sidecar.parquet"
    row = pq.read_table(path).to_pylist()[3]
    assert row[column] != value
    rewrite(path, **{column: (3, value)})
    (copy / "streams/annotated_stream/ledger.json").unlink()  # which would tell of the file alone
    for full in (True, False):
        found = release_checks(
            copy / "release", {"annotated": copy / "streams/annotated_stream"}, full=full, documents=40, seed=1
        )
        fault = faults(found)["annotated sidecar"]
        assert re.search(rf"^{path} row 3 \(window 3\): {column}: expected .*, found .*\nit holds annotated", fault)
        assert f"pieces/{row['shard_index']}/{row['row']}" in fault


def resealed(release: Path, edited: Mapping[str, bytes]) -> None:
    """Edit files and make SHA256SUMS right again, as who publishes a release of his own could."""
    for name, content in edited.items():
        (release / name).write_bytes(content)
    sums = dict(reversed(line.split("  ", 1)) for line in (release / "SHA256SUMS").read_text().splitlines())
    sums |= {name: hashlib.sha256(content).hexdigest() for name, content in edited.items()}
    (release / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
    (release / "ledger.json").unlink()


def test_a_release_must_agree_with_itself(copy: Path) -> None:
    release = copy / "release"

    def fault(name: str, old: str, new: str, check: str) -> str:
        content = (release / name).read_text()
        assert old in content
        kept = {file: (release / file).read_bytes() for file in (name, "SHA256SUMS", "ledger.json")}
        resealed(release, {name: content.replace(old, new, 1).encode()})
        found = faults(checks(copy, streams=False))
        for file, before in kept.items():
            (release / file).write_bytes(before)
        return found[check]

    assert "shard at position 0 of the plan: expected 2, found 1" in fault(
        "upstream.json", '"order":[2,1,3]', '"order":[1,2,3]', "plan"
    )
    assert "parameters of the plan: expected" in fault("recipe.json", '"n_shards":3', '"n_shards":2', "plan")
    assert "upstream of pieces" in fault("upstream.json", '"pattern":"*.jsonl"', '"pattern":"*.json"', "plan")
    assert "not the canonical JSON" in fault("recipe.json", '"format":', '"format": ', "recipe")
    windows = open_release(release).streams["compact"]["statistics"]["windows"]
    content = f'"windows":{windows}'
    assert "root digest of compact" in fault(
        "verification/streams.json", content, f'"windows":{windows + 1}', "streams"
    )
    assert "windows: expected" in fault("verification/streams.json", content, f'"windows":{windows + 1}', "windows")
    rows = open_release(release).boundaries["annotated"]["rows"]
    assert "rows of annotated" in fault("file_boundaries.json", f'"rows":{rows}', f'"rows":{rows + 1}', "rows")
    assert "vocab_size: expected 319, found 320" in fault(
        "recipe.json", '"vocab_size":320},"versions"', '"vocab_size":319},"versions"', "tokenizer"
    )


def test_rows_of_a_manifest_must_be_what_the_recipe_allows(copy: Path) -> None:
    path = copy / "release/corpus-manifest/annotated/part_00001.parquet"
    content = path.read_bytes()
    for column, value, expected in [
        ("safety_score", 7, "row 1 (pieces/"),
        ("is_bad", True, "is_bad where safety_score is at least 3, and only there"),
        ("has_annotation", False, "has_annotation to be True"),
        ("shard_index", 5, "an address in a file of the plan"),
        ("token_length", 60, "a token_length from 0 to 59"),
        ("text_hash", 1, "expected content"),
    ]:
        row = next(i for i, one in enumerate(pq.read_table(path).to_pylist()) if not one["is_bad"])
        rewrite(path, **{column: (row, value)})
        fault = faults(checks(copy, streams=False))["manifest"]
        assert f"{path}" in fault and (expected.replace("row 1", f"row {row}") in fault), column
        path.write_bytes(content)


def test_documents_that_were_taken_down_keep_their_place_and_have_no_text(made: Build, tmp_path: Path) -> None:
    splits = ("annotated", "unannotated")
    rows = [made[f"{split}_documents"].parts[1].table().to_pylist()[0] for split in splits]
    down = [ExcludedAddress(row["source"], row["shard_index"], row["row"], "asked for") for row in rows]
    listed = {"path": str(tmp_path / "list.jsonl"), "sha256": write_list(down, tmp_path / "list.jsonl")}
    other = build(tmp_path / "data", made.folder.parent / "texts", subsampling__exclude=listed)
    streams = {name: other.folder / f"05_model_input/{name}_stream" for name in ("annotated", "compact")}
    released = release_of(other)
    fetched, roots = tmp_path / "fetched", {"pieces": str(made.folder.parent / "texts")}
    found = release_checks(released, streams, full=True, documents=200, seed=1, upstream=fetched, roots=roots)
    assert not faults(found)
    said = {check.name: check.text for check in found}
    assert ", 2 taken down" in said["manifest"]
    documents = sum(made[f"{split}_documents"].rows for split in (*splits, "held_out"))
    assert said["upstream"].startswith(f"{documents} documents read again")
    window = int(np.flatnonzero(numpy_generator(42).permutation(rows_of(released)) == first_row(released))[0])
    rewrite(streams["annotated"] / "sidecar.parquet", text=(window, rows[0]["text"]))
    assert (
        f"(window {window})"
        in faults(release_checks(released, streams, full=True, documents=4, seed=1))["annotated sidecar"]
    )


def rows_of(release: Release) -> int:
    return int(release.boundaries["annotated"]["rows"])


def first_row(release: Release) -> int:
    return int(release.boundaries["annotated"]["parts"][1]["first_row"])


def test_rescued_texts_must_be_those_of_the_manifest(copy: Path) -> None:
    path = sorted((copy / "release/text_rescue/unannotated").glob("*.parquet"))[0]
    rewrite(path, text=(0, "another text"))
    fault = faults(checks(copy, streams=False))["text_rescue"]
    assert re.search(rf"{path} row 0 \(global_row \d+\): expected the text whose hash the manifest has", fault)


def test_texts_that_changed_upstream_are_named(made: Build, copy: Path) -> None:
    texts = made.folder.parent / "texts"
    moved = {path: path.read_bytes() for path in texts.glob("*.jsonl")}
    try:
        for path, content in moved.items():
            path.write_bytes(content.replace(b"self", b"Self").replace(b"def ", b"deF "))
        fault = faults(checks(copy, full=False, streams=False, upstream=True))["upstream"]
        assert re.search(r"document \d+ \(part_\d+ row \d+: pieces/\d/\d+.*upstream has one with", fault)
    finally:
        for path, content in moved.items():
            path.write_bytes(content)


def test_a_file_more_upstream_is_named(made: Build, copy: Path) -> None:
    added = made.folder.parent / "texts/zz_new.jsonl"
    try:
        added.write_text('{"id": "new", "text": "a file that was not there when the shards were put in order"}\n')
        fault = faults(checks(copy, streams=False, upstream=True))["upstream files"]
        assert "shards that the upstreams have" in fault and "expected 4" in fault and "found 5" in fault
    finally:
        added.unlink()


@pytest.mark.parametrize("garbage", [b"", b"{}", b"[]", b'{"compact": 3}', b"\x00\xff"])
def test_garbage_is_a_fault_and_no_traceback(copy: Path, garbage: bytes) -> None:
    for name in ("recipe.json", "verification/streams.json", "SHA256SUMS", "ledger.json"):
        with changed(copy / "release" / name, garbage):
            assert faults(checks(copy, streams=False)), name
    for path in (copy / "streams/annotated_stream").iterdir():
        with changed(path, garbage):
            found = faults(release_checks(copy / "release", {"annotated": path.parent}, full=True, documents=4, seed=1))
            assert any(str(path) in fault for fault in found.values()), path


def test_what_needs_a_release_that_cannot_be_opened_is_said_not_to_be_checked(copy: Path) -> None:
    (copy / "release/recipe.json").write_text("{}")
    found = {check.name: check for check in checks(copy)}
    assert [name for name, check in found.items() if check.outcome == "failed"] == ["ledger", "digests", "release"]
    assert {"recipe", "plan", "rows", "manifest", "streams", "windows"} < {
        name
        for name, check in found.items()
        if check.outcome == "not made" and check.text == "not checked: see release"
    }


def test_truncated_streams_are_named_by_window(copy: Path) -> None:
    path = copy / "streams/compact_stream/compact.bin"
    os.truncate(path, 65 * 2 * 10 + 4)
    found = faults(checks(copy))
    assert "compact.bin: expected" in found["compact files"] and "ends in window 10" in found["compact windows"]
