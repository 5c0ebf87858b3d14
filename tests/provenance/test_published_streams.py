"""``everytoken verify STREAMS --against PUBLISHED``: real streams against their indexes, lengths and SHA-256 alone."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from everytoken.address import Address
from everytoken.cli import cli
from everytoken.pipelines import annotation, canary, ingestion, subsampling, tokenization
from everytoken.shards import LEDGER_FILE
from tests.corpus.upstreams.hub_server import COMMIT, Hub, serve_hub
from tests.provenance.small_job import SmallJob, write_upstream

DATASET = "dlab-spp/corpus-verification"
STREAMS = ("annotated", "canary", "compact")
UNSEEDED = "--    compact order: not checked: the published order of documents inside a part had no seed"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a compact, an annotated and a canary stream."""
    folder = tmp_path_factory.mktemp("job")
    write_upstream(folder)
    job = SmallJob(folder)
    job.run(ingestion, annotation, subsampling, tokenization, canary)
    return job.data / "05_model_input"


@pytest.fixture
def streams(made: Path, tmp_path: Path) -> Path:
    """A copy of the streams, to change."""
    for name in STREAMS:
        shutil.copytree(made / f"{name}_stream", tmp_path / "streams" / f"{name}_stream")
    return tmp_path / "streams"


@pytest.fixture
def published(made: Path, tmp_path: Path) -> Path:
    """What is published of them: all that is small, in one folder, and the SHA-256 of every file."""
    folder = tmp_path / "published"
    folder.mkdir()
    sums = []
    for name in STREAMS:
        shutil.copy(made / f"{name}_stream/{name}.idx", folder)
        for file in (made / f"{name}_stream/{name}.bin", folder / f"{name}.idx"):
            sums.append(f"{sha256(file)}  {file.name}\n")
    shutil.copy(made / "annotated_stream/token_lengths.npy", folder)
    (folder / "SHA256SUMS").write_text("".join(sums) + f"{sha256(folder / 'token_lengths.npy')}  token_lengths.npy\n")
    return folder


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def verify(*arguments: object, code: int = 0) -> list[str]:
    done = CliRunner().invoke(cli, ["verify", *map(str, arguments)])
    assert done.exit_code == code and isinstance(done.exception, SystemExit | None), (done.output, done.exception)
    return done.output.splitlines()


def failed(lines: list[str]) -> str:
    """The one fault, with the lines that belong to it, in one line."""
    (first,) = [i for i, line in enumerate(lines) if line.startswith("FAIL")]
    last = next(i for i in range(first + 1, len(lines)) if not lines[i].startswith("      "))
    return " ".join(" ".join(lines[first:last]).split())


def faults(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines if line.startswith(("FAIL", "      ")))


def document_of(streams: Path, name: str, window: int) -> tuple[str, Address | None]:
    row = pq.read_table(streams / f"{name}_stream/sidecar.parquet").slice(window, 1).to_pylist()[0]
    return row["doc_id"], Address.of(row) if name == "annotated" else None


def windows_of(streams: Path, name: str) -> int:
    return len(np.load(streams / f"{name}_stream/token_lengths.npy"))


@pytest.mark.parametrize("full", [False, True])
def test_streams_are_what_is_published_of_them(streams: Path, published: Path, full: bool) -> None:
    lines = verify(streams, "--against", published, *["--full"] * full)
    windows = {name: windows_of(streams, name) for name in ("annotated", "canary")}
    lengths = np.load(streams / "annotated_stream/token_lengths.npy")
    share = np.count_nonzero(lengths == lengths.max()) / len(lengths)
    for line in (
        f"ok    annotated index: {windows['annotated']:,} windows, uint16, as published",
        f"ok    annotated lengths: {windows['annotated']:,} as published; the longest has {lengths.max():,} tokens, as "
        f"have {share:.1%}",
        f"ok    canary index: {windows['canary']:,} windows, uint16, as published",
    ):
        assert line in lines
    assert [line for line in lines if line.startswith(UNSEEDED)]
    digest = sha256(streams / "annotated_stream/annotated.bin")[:16]
    assert f"ok    annotated tokens: SHA-256 {digest}{'' if full else ' in its ledger'}, as published" in lines
    (counts,) = [line for line in lines if line.startswith("ok    compact windows: ")]
    size = (streams / "compact_stream/compact.bin").stat().st_size
    assert f"{size // 2:,} tokens, uint16, as published" in counts
    assert [line for line in lines if line.startswith("--    canary lengths: not checked: ")], "they are not published"
    assert sum(" published files: " in line for line in lines) == 3 * full
    assert lines[-1] == f"all {6 + 3 * full} checks hold; 2 could not be made"


@pytest.mark.parametrize("name", ["annotated", "canary"])
def test_the_first_document_of_another_length_is_named(streams: Path, published: Path, made: Path, name: str) -> None:
    (published / "token_lengths.npy").unlink()
    for own in ("annotated", "canary"):  # each next to its index
        (published / own).mkdir()
        (published / f"{own}.idx").rename(published / own / f"{own}.idx")
        shutil.copy(made / f"{own}_stream/token_lengths.npy", published / own)
    lengths = np.load(published / name / "token_lengths.npy")
    lengths[[5, 7]] += 1
    np.save(published / name / "token_lengths.npy", lengths)
    said = failed(verify(streams, "--against", published, code=1))
    identifier, address = document_of(streams, name, 5)
    assert said.startswith(f"FAIL {name} lengths: {streams}/{name}_stream/token_lengths.npy window 5: ")
    assert f"expected token_length {lengths[5]}, found {lengths[5] - 1}" in said
    assert f"it holds {name} document {identifier!r}" + ("" if address is None else f", {address}") in said


def test_a_document_too_many_is_named(streams: Path, published: Path, made: Path) -> None:
    """Published is the stream of a corpus with one document less."""
    windows = windows_of(streams, "annotated") - 1
    np.save(published / "token_lengths.npy", np.load(published / "token_lengths.npy")[:-1])
    whole = (published / "annotated.idx").read_bytes()
    lengths, places = whole[34:][: 4 * windows], whole[34 + 4 * (windows + 1) :][: 8 * windows]
    documents = whole[34 + 12 * (windows + 1) :][: 8 * (windows + 1)]
    counts = windows.to_bytes(8, "little") + (windows + 1).to_bytes(8, "little")
    (published / "annotated.idx").write_bytes(whole[:18] + counts + lengths + places + documents)
    lines = verify(streams / "annotated_stream", "--against", published, code=1)
    identifier, address = document_of(streams, "annotated", windows)
    output = " ".join(line.strip() for line in lines)
    assert f"annotated.idx: windows: expected {windows:,}, found {windows + 1:,}" in output
    assert f"token_lengths.npy: expected {windows:,} windows, found {windows + 1:,}" in output
    assert f"it holds annotated document {identifier!r}, {address}" in output
    assert lines[-1] == "2 of 3 checks do not hold"


def test_another_token_is_found_by_the_published_sha256_alone(streams: Path, published: Path) -> None:
    path = streams / "canary_stream/canary.bin"
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    verify(streams, "--against", published)  # its ledger says what was written
    said = failed(verify(streams, "--against", published, "--full", code=1))
    assert said.startswith("FAIL canary tokens: ") and "no published file says in which window" in said
    path.with_name(LEDGER_FILE).unlink()
    lines = verify(streams, "--against", published)
    assert [line for line in lines if "canary tokens: not checked: no ledger.json says the SHA-256" in line]


def test_another_compact_stream_differs_in_windows_or_tokens(streams: Path, published: Path, tmp_path: Path) -> None:
    index = published / "compact.idx"
    content = bytearray(index.read_bytes())
    content[34] += 1  # the length of its first window
    index.write_bytes(content)
    assert "compact.idx: tokens: expected " in failed(verify(streams, "--against", published, code=1))
    content[34] -= 1
    content[17] = 4  # int32
    index.write_bytes(content)
    said = failed(verify(streams, "--against", published, code=1))
    assert "compact.idx: type: expected 'int32', found 'uint16'" in said
    assert " compact published files: " in faults(verify(streams, "--against", published, "--full", code=1))


def test_lists_of_digests_may_be_json(streams: Path, published: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (published / "SHA256SUMS").read_text().splitlines())
    (published / "SHA256SUMS").unlink()
    (published / "checksums.json").write_text(
        json.dumps({"files": {name: {"sha256": digest, "size": 1} for name, digest in sums.items()}})
    )
    assert verify(streams, "--against", published)[-1] == "all 6 checks hold; 2 could not be made"
    (published / "checksums.json").write_text(json.dumps({**sums, "annotated.bin": "0" * 64}))
    assert failed(verify(streams, "--against", published, code=1)).startswith("FAIL annotated tokens: ")
    (published / "checksums.json").write_text('{"annotated.bin"')
    assert "checksums.json is no list of digests" in faults(verify(streams, "--against", published, code=1))


@pytest.fixture
def hub(published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as hub:
        hub.dataset = DATASET
        hub.files = {f"streams/{path.name}": path.read_bytes() for path in published.iterdir()}
        hub.files["streams/notes.bin"] = b"never asked for"
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


def test_published_files_of_the_hub_are_fetched_at_their_commit(
    hub: Hub, streams: Path, published: Path, tmp_path: Path
) -> None:
    given = ("--against", f"{DATASET}@{COMMIT}", "--files", tmp_path / "fetched")
    lines = verify(streams / "annotated_stream", *given)
    assert "--    compact: not compared, as none of the paths holds this stream" in lines
    asked = {request.path.rsplit("/", 1)[-1] for request in hub.asked("resolve")}
    assert asked == {"annotated.idx", "token_lengths.npy", "SHA256SUMS"}, "nothing of other streams"
    assert verify(streams, *given)[-1] == "all 6 checks hold; 2 could not be made"
    hub.requests.clear()
    verify(streams, *given)
    assert hub.asked("resolve", "storage") == []
    lengths = np.load(published / "token_lengths.npy")
    lengths[0] += 1
    np.save(published / "token_lengths.npy", lengths)
    hub.files["streams/token_lengths.npy"] = (published / "token_lengths.npy").read_bytes()
    found = verify(streams, "--against", f"{DATASET}@{COMMIT}", "--files", tmp_path / "other", code=1)
    assert failed(found).startswith("FAIL annotated lengths: ")


def test_a_reference_that_is_not_pinned_or_no_folder_is_refused(streams: Path) -> None:
    for reference, reason in {
        DATASET: "is named with its commit, ORGANISATION/NAME@COMMIT",
        f"{DATASET}@main": "revision must be a commit of 40 lower-case hex digits",
        f"a b@{COMMIT}": "must be an id",
        str(streams / "annotated_stream/annotated.idx"): "is no folder",
    }.items():
        assert reason in " ".join(verify(streams, "--against", reference, code=1))
    assert "PATHS" in "\n".join(verify("--against", streams, code=2))


def test_a_folder_without_an_index_or_with_two_of_one_stream_is_refused(
    streams: Path, published: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("nothing")
    assert "expected NAME.idx of each stream" in " ".join(verify(streams, "--against", tmp_path / "other", code=1))
    (published / "again").mkdir()
    shutil.copy(published / "compact.idx", published / "again")
    said = " ".join(verify(streams, "--against", published, code=1))
    assert "once (compact, annotated, canary), found" in said and "again/compact.idx" in said
    shutil.rmtree(published / "again")
    said = failed(verify(tmp_path / "other", "--against", published, code=1))
    assert said.startswith(
        f"FAIL {tmp_path}/other holds none of the streams of {published}: compact, annotated, canary"
    )
