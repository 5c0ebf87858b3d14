"""Keys of chats that are not in their documents are counted by part, and summed in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everytoken.corpus.ingestion.ingest import MAX_UNREAD_KEYS, OTHER_KEYS
from everytoken.corpus.selection.report import read_counts, selection_table, unread_by_source, unread_line
from tests.corpus.ingestion.test_ingest import read_rows_of, values_of, write_lines
from tests.corpus.part_tables import collect_all
from tests.corpus.rendering.test_chat_keys import ANSWER, USER, renderer

ROWS: list[dict[str, Any]] = [
    {"messages": [{**USER, "name": "Ann"}, ANSWER], "id": "1", "note": "x", "images": ["1.jpg"]},
    {"messages": [USER, ANSWER], "id": "2", "note": "y", "images": None},
    {"messages": [USER, {**ANSWER, "weight": 0.5}], "id": "3", "note": "z", "images": None},
]
UNREAD = {"ignored": {"images": 1}, "passed_over": {"id": 2, "message.name": 1}, "unknown": {"note": 2}}


def statistics_of(folder: Path, kind: str = "jsonl", **changes: Any) -> dict[str, Any]:
    (value,) = values_of(folder, renderer=renderer("messages", **changes), format=kind)
    _, _, statistics = collect_all(read_rows_of(value))
    return statistics


def test_rows_that_become_documents_count_what_is_not_in_them(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", *ROWS)
    statistics = statistics_of(tmp_path, ignore=["images"])
    assert statistics["set_aside"] == {"chat_not_honoured": 1}, "its row is what is counted of it"
    assert statistics["unread_keys"] == UNREAD
    assert statistics_of(tmp_path)["set_aside"] == {"chat_not_honoured": 2}


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_of_tables_that_carry_meaning_are_read_and_others_count(tmp_path: Path, kind: str) -> None:
    table = pa.Table.from_pylist(ROWS)
    if kind == "parquet":
        pq.write_table(table, tmp_path / "a.jsonl")
    else:
        with pa.ipc.new_stream(str(tmp_path / "a.jsonl"), table.schema) as writer:
            writer.write_table(table)
    assert statistics_of(tmp_path, kind)["set_aside"] == {"chat_not_honoured": 2}
    ignoring = statistics_of(tmp_path, kind, ignore=["images"])
    assert ignoring["set_aside"] == {"chat_not_honoured": 1}
    assert ignoring["unread_keys"] == {**UNREAD, "ignored": {"images": 2}}, "a column counts in every row"


def test_names_that_never_end_have_one_count_together(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"messages": [USER, ANSWER], **{f"k{n}": n for n in range(MAX_UNREAD_KEYS + 5)}})
    unknown = statistics_of(tmp_path)["unread_keys"]["unknown"]
    assert (len(unknown), unknown[OTHER_KEYS]) == (MAX_UNREAD_KEYS + 1, 5)


def test_other_documents_have_no_such_count(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x", "note": "y"}) + "\n")
    (value,) = values_of(tmp_path)
    assert "unread_keys" not in collect_all(read_rows_of(value))[2]


def test_the_report_sums_them_by_source(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", *ROWS)
    chats = statistics_of(tmp_path, ignore=["images"])
    texts = {"rows_in": 1, "kept": 1, "set_aside": {}, "by_source": {"t": {}}, "length_histogram": {}}
    unread = unread_by_source([chats, texts, chats])
    assert unread["s"]["unknown"] == {"note": 4}
    assert unread_line(unread["s"]) == "ignored images 2; passed over id 4, message.name 2; unknown note 4"
    table = selection_table(read_counts([chats, texts, chats]), {}, None, unread)
    names = ("source", "keys_passed_over", "keys_unknown", "keys_ignored")
    found = [tuple(row[name] for name in names) for row in table]
    assert found == [("s", 6, 4, 2), ("t", 0, 0, 0), ("all sources", 6, 4, 2)]
    assert "keys_ignored" not in selection_table(read_counts([texts]), {}, None, {})[0]
