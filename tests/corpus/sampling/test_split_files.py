"""Split files: the documents of a split with their texts, without what was taken down."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.corpus.documents import SPLIT_DOCUMENTS
from everytoken.corpus.sampling import SPLIT_FILE, split_file_part
from everytoken.shards import StoredPart, ValuePart, write_rows
from tests.corpus.part_tables import documents


def split_part(folder: Path, texts: list[str]) -> StoredPart:
    """Return a stored part of a split with these texts."""
    table = documents(texts, source="web")
    rows = len(texts)
    more = {
        "safety_score": [3] * rows,
        "safety_probs": [None] * rows,
        "has_annotation": [True] * rows,
        "is_bad": [number % 2 == 0 for number in range(rows)],
    }
    columns = {**{name: table[name] for name in table.schema.names}, **more}
    path = folder / "part_00000.parquet"
    pq.write_table(pa.table(columns, schema=SPLIT_DOCUMENTS), path)
    return StoredPart.at(path)


def exclusions(*addresses: list[object]) -> ValuePart:
    return ValuePart("part_00000", 0, {"addresses": list(addresses)}, "")


def test_texts_and_flags_are_those_of_the_split_in_its_order(tmp_path: Path) -> None:
    part = split_part(tmp_path, ["one", "", "thr\u00e9e"])
    written = write_rows(split_file_part(part, exclusions()), tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.schema == SPLIT_FILE and found == part.table(SPLIT_FILE.names)
    assert written.statistics == {"rows": 3, "utf8_bytes": 3 + 6, "excluded": 0}


def test_a_document_that_was_taken_down_keeps_its_row_without_text_and_id(tmp_path: Path) -> None:
    part = split_part(tmp_path, ["one", "two", "three"])
    source, shard_index, row = (part.table([name])[name][1].as_py() for name in ("source", "shard_index", "row"))
    rows = split_file_part(part, exclusions([source, shard_index, row, "asked for"]))
    written = write_rows(rows, tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found["text"].to_pylist() == ["one", "", "three"]
    assert found["id"].to_pylist() == [
        None if i == 1 else name for i, name in enumerate(part.table(["id"])["id"].to_pylist())
    ]
    assert found.drop(["text", "id"]) == part.table(SPLIT_FILE.names).drop(["text", "id"])
    assert written.statistics == {"rows": 3, "utf8_bytes": 8, "excluded": 1}
