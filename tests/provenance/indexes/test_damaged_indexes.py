"""An index that was changed, by a bit or together with its ledger, never gives another answer without an error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everytoken.address import Address
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.exposure.questions import Questions
from everytoken.provenance.lookup.dataset_locations import Places
from everytoken.provenance.lookup.document_records import DocumentRecords
from everytoken.provenance.lookup.stream_documents import documents_of
from everytoken.provenance.trace.windows import trace_windows
from everytoken.provenance.verification.indexes import index_checks, is_index, stored_around
from everytoken.shards import (
    DamagedStore,
    artifact_checksum,
    artifact_ledger_text,
    artifact_root_digest,
    file_sha256,
)
from everytoken.tokens.checks.integrity import verify
from everytoken.tokens.order import open_one_stream
from tests.provenance.traced_job import TracedJob, make

pytestmark = pytest.mark.slow

SEQ = 64
STREAM_OF = {
    "compact_index": ("compact", "compact_stream"),
    "annotated_index": ("annotated", "annotated_stream"),
    "chat_index": ("chats", "chat_windows"),
    "raw_shards_index": ("raw", "raw_shards"),
}
FILES = {
    "compact_index": ["cuts", "first_rows", "places", "rows", "sizes", "starts", "windows"],
    "annotated_index": ["first_rows", "lengths", "order", "windows"],
    "chat_index": ["cuts", "documents", "ends", "first_rows", "firsts", "windows"],
    "raw_shards_index": ["first_rows", "order", "places", "sizes", "starts"],
    "document_index": ["addresses_documents", "addresses_hashes", "first_rows", "ids_documents", "ids_hashes"],
}
ARRAYS = [(index, f"{name}.npy") for index, names in FILES.items() for name in names]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TracedJob:
    return make(tmp_path_factory.mktemp("damaged") / "job")


@pytest.fixture(scope="module")
def intact(made: TracedJob) -> dict[str, Any]:
    return {index: answers(made, index, made.places) for index in FILES}


@pytest.fixture
def copy(made: TracedJob, request: pytest.FixtureRequest) -> Any:
    """A copy of an index next to it, in an environment that is else the same."""

    def copied(index: str) -> tuple[Path, Places]:
        folder = made.places.paths[index].with_name("copied_index")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made.places.paths[index], folder)
        request.addfinalizer(lambda: shutil.rmtree(folder))
        return folder, replace(made.places, paths={**made.places.paths, index: folder})

    return copied


def answers(made: TracedJob, index: str, places: Places) -> Any:
    """Every answer that an index gives: of each window, of each document, and of ids and addresses."""
    records = DocumentRecords(places)
    streams = {"compact": "compact_stream"} if index == "document_index" else dict([STREAM_OF[index]])
    asked = Questions(records, made.run(streams, 20, 3).run)
    if index == "document_index":
        rows = [row for split in ("annotated", "unannotated") for row in made.table(f"{split}_documents", list(ID))]
        return [
            [asked.with_id(row["id"], most=3).to_json() for row in rows if row["id"] is not None],
            [asked.at_address(Address.of(row), most=3).to_json() for row in rows],
        ]
    name, dataset = STREAM_OF[index]
    stream, known = (
        open_one_stream(name, places.paths[dataset], "sizes", SEQ),
        documents_of(places, name, places.paths[dataset], SEQ),
    )
    windows = trace_windows(stream, known, records, range(len(stream)))
    assert known.index is not None
    splits = known.index.splits
    rows = [row for split in splits for row in made.table(f"{split}_documents", list(ID))]
    return [
        [window.to_json() for window in windows],
        [asked.at_address(Address.of(row), most=1).to_json() for row in rows],
    ]


ID = ("id", "source", "shard_index", "row")


def record(folder: Path, file: str) -> None:
    """Write the digest of a file, the root digest and the checksum of an artifact again."""
    ledger = json.loads((folder / "ledger.json").read_text())
    ledger["files"][file] |= {"sha256": file_sha256(folder / file), "bytes": (folder / file).stat().st_size}
    ledger["root_digest"] = artifact_root_digest(ledger["files"], ledger["statistics"])
    ledger["checksum"] = artifact_checksum(ledger)
    (folder / "ledger.json").write_text(artifact_ledger_text(ledger))


def faults(made: TracedJob, folder: Path) -> list[str]:
    assert is_index(folder)
    around = stored_around(made.places.paths["compact_index"])
    found = [*verify(folder, "full"), *index_checks(folder, "full", around)]
    assert all(check.outcome != "not made" for check in found), found
    return [check.fault for check in found if not check.ok]


def require_no_other_answer(made: TracedJob, index: str, places: Places, intact: dict[str, Any]) -> None:
    try:
        found = answers(made, index, places)
    except (ProvenanceError, DamagedStore) as error:
        assert len(str(error)) > 40
    else:
        assert found == intact[index]


@pytest.mark.parametrize("index", FILES)
def test_whole_indexes_hold_and_every_array_is_in_this_test(made: TracedJob, index: str) -> None:
    folder = made.places.paths[index]
    assert faults(made, folder) == []
    assert sorted(path.name for path in folder.glob("*.npy")) == [f"{name}.npy" for name in FILES[index]]


def test_an_index_whose_data_is_gone_is_said_not_to_be_made_again(made: TracedJob) -> None:
    opened, again = index_checks(made.places.paths["compact_index"], "full", {})
    assert opened.outcome == "passed" and again.outcome == "not made"
    assert again.text == "not checked: its data folder has no lengths, stream of its digest"


@pytest.mark.parametrize(("index", "file"), ARRAYS)
def test_a_flipped_bit_is_found_and_changes_no_answer(
    made: TracedJob, intact: dict[str, Any], copy: Any, index: str, file: str
) -> None:
    folder, places = copy(index)
    content = bytearray((folder / file).read_bytes())
    content[128 + (len(content) - 128) // 2] ^= 1
    (folder / file).write_bytes(content)
    assert any(file in fault and "SHA-256" in fault for fault in faults(made, folder))
    require_no_other_answer(made, index, places, intact)


@pytest.mark.parametrize(("index", "file"), ARRAYS)
@pytest.mark.parametrize("change", [1, -1], ids=["more", "less"])
def test_an_entry_changed_with_its_ledger_is_found_and_changes_no_answer(
    made: TracedJob, intact: dict[str, Any], copy: Any, index: str, file: str, change: int
) -> None:
    folder, places = copy(index)
    array = np.load(folder / file)
    array[len(array) // 2] += np.array(change).astype(array.dtype)
    np.save(folder / file, array)
    record(folder, file)
    assert any(file in fault for fault in faults(made, folder))
    require_no_other_answer(made, index, places, intact)


@pytest.mark.parametrize("index", FILES)
@pytest.mark.parametrize("at", [0, 1, -2, -1])
def test_no_edge_of_the_numbers_of_documents_shifts_them(
    made: TracedJob, intact: dict[str, Any], copy: Any, index: str, at: int
) -> None:
    """A first entry of 1 shifted numbers in later parts, while all texts, and so all ids, were the right ones."""
    folder, places = copy(index)
    array = np.load(folder / "first_rows.npy")
    array[at] += np.uint64(1)
    np.save(folder / "first_rows.npy", array)
    record(folder, "first_rows.npy")
    assert any("first_rows.npy" in fault for fault in faults(made, folder))
    with pytest.raises(ProvenanceError, match=r"first_rows\.npy"):
        answers(made, index, places)


SLOW = {"chat_index", "raw_shards_index"}


@pytest.mark.parametrize("index", [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in FILES])
def test_every_key_of_a_description_is_missed_by_name(
    made: TracedJob, intact: dict[str, Any], copy: Any, index: str
) -> None:
    folder, places = copy(index)
    path = folder / "index.json"
    described = json.loads(path.read_text())
    for edit in edits_of(described):
        changed = json.loads(json.dumps(described))
        edit(changed)
        path.write_text(json.dumps(changed))
        record(folder, "index.json")
        assert any("index" in fault for fault in faults(made, folder)), changed
        require_no_other_answer(made, index, places, intact)


def edits_of(described: dict[str, Any]) -> list[Callable[[dict[str, Any]], object]]:
    """Lose each key, and change each number."""
    found: list[Callable[[dict[str, Any]], object]] = []
    for key, value in described.items():
        found.append(lambda data, key=key: data.pop(key))
        if isinstance(value, int):
            found.append(lambda data, key=key: data.__setitem__(key, data[key] + 1))
    for key, value in described["splits"][0].items():
        found.append(lambda data, key=key: data["splits"][0].pop(key))
        if isinstance(value, int):
            found.append(lambda data, key=key: data["splits"][0].__setitem__(key, data["splits"][0][key] + 1))
    return found


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\x93NUMPY\x01\x00\x76\x00{'descr': '<u", b"[" * 100_000])
@pytest.mark.parametrize("file", ["index.json", "first_rows.npy", "windows.npy"])
def test_what_is_no_such_file_is_an_error_with_a_name(
    made: TracedJob, intact: dict[str, Any], copy: Any, file: str, content: bytes
) -> None:
    folder, places = copy("annotated_index")
    (folder / file).write_bytes(content)
    record(folder, file)
    assert faults(made, folder)
    with pytest.raises(ProvenanceError, match=r"index|first_rows|windows"):
        answers(made, "annotated_index", places)
