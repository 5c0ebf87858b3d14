"""Columns by path, binary texts, and ids that JSON does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everytoken.corpus.errors import BadRow, RowError
from everytoken.corpus.reading.lines import Row
from everytoken.corpus.rendering.renderers import DocumentRenderer, Identifier, render_document
from tests.corpus.reading.read_rows import file_at, jsonl, read

UUIDS = [UUID(int=number << 64 | 7) for number in range(3)]
RECORDS = [{"meta": {"id": str(n), "kind": {"name": "a"}}, "doc": {"text": f"text {n}", "unused": n}} for n in range(5)]
NESTED = DocumentRenderer(
    kind="document", text_column="doc.text", id_columns=("meta.id",), stratum_column="meta.kind.name"
)


def rendered(path: Path, renderer: DocumentRenderer) -> list[tuple[Any, str, str] | str]:
    """The documents of a file, or the reasons why a row is none."""
    found: list[tuple[Any, str, str] | str] = []
    for row in read(file_at(path), renderer=renderer):
        try:
            assert isinstance(row, Row)
            found.append(tuple(render_document(row.key, row.record, renderer))[:3])
        except BadRow as error:
            found.append(error.reason)
    return found


def test_columns_by_path_are_the_same_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(*RECORDS))
    (tmp_path / "a.json").write_text(json.dumps(RECORDS))
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "a.parquet")
    expected = [(Identifier(str(n), "string"), f"text {n}", "a") for n in range(5)]
    for name in ("a.jsonl", "a.json", "a.parquet"):
        assert rendered(tmp_path / name, NESTED) == expected


def test_a_path_that_a_row_lacks_is_no_text_and_a_name_with_dots_comes_first(tmp_path: Path) -> None:
    rows = [
        {"doc": {}},
        {"doc": None},
        {"doc": "x"},
        {},
        {"doc": {"text": None}},
        {"doc.text": "b", "doc": {"text": "c"}},
    ]
    (tmp_path / "a.jsonl").write_bytes(jsonl(*rows))
    plain = DocumentRenderer(kind="document", text_column="doc.text", id_columns=("meta.id",))
    assert rendered(tmp_path / "a.jsonl", plain) == [*["no_text"] * 4, "text_null", (None, "b", "all")]
    pq.write_table(pa.table({"other": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(RowError, match=r"no column 'doc\.text', found the columns \['other'\]"):
        read(file_at(tmp_path / "a.parquet"), renderer=plain)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_binary_texts_are_utf8_or_set_aside(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"text": pa.array(["é".encode(), b"\xff", None], kind)})
    pq.write_table(table, tmp_path / "a.parquet")
    found = rendered(tmp_path / "a.parquet", DocumentRenderer(kind="document"))
    assert found == [(None, "é", "all"), "not_utf8", "text_null"]


def test_ids_of_tables_have_a_text(tmp_path: Path) -> None:
    raw = [one.bytes for one in UUIDS]
    expected = {
        "uuid": [Identifier(str(one), "uuid") for one in UUIDS],
        "bytes": [Identifier(one.bytes.hex(), "bytes") for one in UUIDS],
    }
    columns = {
        "bytes": [pa.array(raw, pa.binary()), pa.array(raw, pa.binary(16))],
        "uuid": [pa.array(raw, pa.uuid())],
    }
    for kind, arrays in columns.items():
        for ids in arrays:
            pq.write_table(pa.table({"id": ids, "text": ["a", "b", "c"]}), tmp_path / "a.parquet")
            found = rendered(tmp_path / "a.parquet", DocumentRenderer(kind="document"))
            assert found == [(one, text, "all") for one, text in zip(expected[kind], "abc", strict=True)]
