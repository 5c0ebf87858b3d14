"""Documents are found by id and by address, all of them and no others, whatever ids are and however many."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.address import Address
from everytoken.outofcore.external_sort import ExternalSort
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import hashes
from everytoken.provenance.indexes.document_index import DocumentPlace, index_documents, open_document_index
from everytoken.seeds import numpy_generator
from everytoken.shards import Shards
from tests.tokens.corpora import file_bytes, stored

SCHEMA = pa.schema(
    [
        ("id", pa.large_string()),
        ("id_type", pa.string()),
        ("source", pa.string()),
        ("shard_index", pa.int32()),
        ("row", pa.int64()),
        ("safety_score", pa.int8()),
    ]
)
IDS = st.sampled_from([(None, None), ("1", "number"), ("1", "string"), ("a", "string"), ("é\n", "string")])
ADDRESSES = st.tuples(st.sampled_from(["web", "code"]), st.integers(0, 1), st.integers(0, 3))
DOCUMENTS = st.lists(st.tuples(IDS, ADDRESSES), max_size=8)
SPLITS = ("annotated", "unannotated", "held_out")


def table(rows: Sequence[Any]) -> pa.Table:
    records = [
        {"id": id, "id_type": kind, "source": source, "shard_index": shard, "row": row, "safety_score": i % 6}
        for i, ((id, kind), (source, shard, row)) in enumerate(rows)
    ]
    return pa.Table.from_pylist(records, schema=SCHEMA)


def splits_of(folder: Path, parts: Sequence[Sequence[Sequence[Any]]], batch_rows: int = 3) -> dict[str, Shards]:
    return {
        name: stored(folder / name, [table(rows) for rows in of], batch_rows)
        for name, of in zip(SPLITS, parts, strict=True)
    }


def index_of(folder: Path, documents: Mapping[str, Shards], memory: int) -> dict[str, bytes]:
    folder.mkdir()
    index_documents(folder, documents=documents, memory=memory)
    return file_bytes(folder)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.lists(DOCUMENTS, min_size=1, max_size=2), min_size=3, max_size=3))
def test_every_document_is_found_by_id_and_by_address_and_no_other(parts: list[list[list[Any]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        documents = splits_of(Path(name), parts)
        assert index_of(Path(name) / "index", documents, 1 << 20) == index_of(Path(name) / "small", documents, 500)
        index = open_document_index(Path(name) / "index", documents)
        by_id: dict[Any, list[DocumentPlace]] = {}
        by_address: dict[Any, list[DocumentPlace]] = {}
        for split, of in zip(SPLITS, parts, strict=True):
            number = 0
            for part, rows in enumerate(of):
                for row, (id, address) in enumerate(rows):
                    place = DocumentPlace(split, number)
                    by_id.setdefault(id, []).append(place)
                    by_address.setdefault(address, []).append(place)
                    assert index.number(split, part, row) == number
                    assert index.record(split, number, ("row", "id")) == {"row": address[2], "id": id[0]}
                    number += 1
        by_id.pop((None, None), None)
        for (id, kind), places in by_id.items():
            assert index.find_id(id, kind) == places
        for id in {id for id, _ in by_id}:
            both = [place for key, places in by_id.items() if key[0] == id for place in places]
            assert sorted(index.find_id(id), key=str) == sorted(both, key=str)
        for address, places in by_address.items():
            assert index.find_address(Address(*address)) == places
        assert (
            index.find_id("none")
            == index.find_id("\udcff")
            == index.find_address(Address("none", 0, 0))
            == index.find_address(Address("web", -1, 0))
            == []
        )


def test_answers_are_exact_when_all_hashes_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [((f"{i % 7}", "number" if i % 2 else "string"), ("web", i % 3, i)) for i in range(60)]
    documents = splits_of(tmp_path, [[rows[:40], rows[40:]], [[]], [rows[5:9]]], 7)
    monkeypatch.setattr("everytoken.shards.parts.BATCH_ROWS", 4)
    monkeypatch.setattr(hashes, "mixed", lambda keys: keys & np.uint64(0))
    index_of(tmp_path / "index", documents, 1 << 20)
    index = open_document_index(tmp_path / "index", documents)
    expected = [("annotated", i) for i in range(60) if i % 7 == 6] + [("held_out", 1)]
    assert [(place.split, place.number) for place in index.find_id("6")] == expected
    assert index.find_id("6", "string") == [
        p for p in index.find_id("6") if (p.number + 5 * (p.split != "annotated")) % 2 == 0
    ]
    assert index.find_address(Address("web", 2, 50)) == [DocumentPlace("annotated", 50)]
    assert index.find_address(Address("web", 2, 51)) == []


def test_an_index_of_other_documents_is_refused(tmp_path: Path) -> None:
    rows = [(("a", "string"), ("web", 0, i)) for i in range(4)]
    documents = splits_of(tmp_path / "one", [[rows], [rows[:2]], [rows[2:]]])
    index_of(tmp_path / "index", documents, 1 << 20)
    others = splits_of(tmp_path / "two", [[rows], [rows[:1]], [rows[2:]]])
    with pytest.raises(ProvenanceError, match="is the index of unannotated documents"):
        open_document_index(tmp_path / "index", others)
    with pytest.raises(ProvenanceError, match="given are none"):
        open_document_index(tmp_path / "index", {})
    with pytest.raises(ProvenanceError, match="is no index of documents"):
        open_document_index(tmp_path / "one", documents)
    index = open_document_index(tmp_path / "index", documents)
    with pytest.raises(ProvenanceError, match="held_out has 2 documents, asked for number 2"):
        index.record("held_out", 2, ("row",))
    with pytest.raises(ProvenanceError, match="part 0 of held_out has 2 rows, asked for row 2"):
        index.number("held_out", 0, 2)


@pytest.mark.parametrize("most", [1 << 8, 1 << 40, 1 << 63])
@pytest.mark.parametrize("memory", [60, 3000, 1 << 20])
def test_records_are_sorted_by_both_keys_in_any_memory(tmp_path: Path, most: int, memory: int) -> None:
    kind = np.dtype([("key", "<u8"), ("tie", "<u8"), ("value", "<u2")])
    records = np.empty(500, kind)
    records["key"] = numpy_generator(1).integers(0, most, 500, np.uint64)
    records["tie"] = numpy_generator(2).permutation(500)
    records["value"] = np.arange(500)
    sort = ExternalSort(kind, memory, tmp_path)
    for start in range(0, 500, 130):
        sort.add(records[start : start + 130])
    blocks = list(sort.sorted())
    assert np.array_equal(np.concatenate(blocks), np.sort(records, order=["key", "tie"]))
    assert not list(tmp_path.iterdir()) and max(map(len, blocks)) <= max(1, memory // 60)
