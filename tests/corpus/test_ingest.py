from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everytoken.corpus import ingest
from everytoken.corpus.documents import DOCUMENTS, MAX_BATCH_BYTES, MAX_BATCH_ROWS
from everytoken.corpus.errors import RowError
from everytoken.corpus.ingest import read_part
from everytoken.corpus.plan import make_plan, part_values
from everytoken.corpus.statistics import add_statistics
from everytoken.corpus.upstreams import find_files
from tests.corpus.part_tables import collect, value_part
from tests.corpus.test_shard_plan import plan_parameters
from tests.corpus.test_upstreams import path_source


def values_of(root: Path, rows_per_shard: int | None = None) -> list[dict[str, Any]]:
    source = path_source(root, rows_per_shard=rows_per_shard)
    files = {"s": find_files("s", source, root)}
    values, _ = part_values(make_plan({"s": source}, files, plan_parameters()), {"s": source}, files)
    return values


def write_lines(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_addresses_count_rows_before_the_filter_and_nothing_is_lost(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"text": "é" * 3, "id": "x"}, {"text": "no"}, {"text": "€uro"})
    (value,) = values_of(tmp_path)
    table, statistics = collect(read_part(value_part(value), min_chars=3))
    assert table.schema == DOCUMENTS
    assert table.select(["id", "text", "row", "shard_index"]).to_pylist() == [
        {"id": "x", "text": "ééé", "row": 0, "shard_index": 0},
        {"id": None, "text": "€uro", "row": 2, "shard_index": 0},
    ]
    assert statistics == {
        "rows_in": 3,
        "kept": 2,
        "too_short": 1,
        "by_source": {"s": {"all": {"rows": 2, "characters": 7, "utf8_bytes": 12}}},
        "length_histogram": {"01": 1, "02": 1},
    }


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=4), max_size=12), st.integers(1, 13))
def test_rows_per_shard_changes_no_document_and_no_address(tmp_path: Path, texts: list[str], size: int) -> None:
    write_lines(tmp_path / "a.jsonl", *({"text": text} for text in texts))
    write_lines(tmp_path / "b.jsonl", {"text": "of the other file"})

    def everything(rows_per_shard: int | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        made = [collect(read_part(value_part(value), min_chars=2)) for value in values_of(tmp_path, rows_per_shard)]
        rows = [row for table, _ in made for row in table.to_pylist()]
        key = lambda row: (row["shard_index"], row["row"])  # noqa: E731
        return sorted(rows, key=key), add_statistics(statistics for _, statistics in made)

    assert everything(size) == everything(None)


def test_batches_are_bounded_in_rows_and_bytes(tmp_path: Path) -> None:
    big = "x" * (MAX_BATCH_BYTES // 2)
    write_lines(tmp_path / "a.jsonl", *[{"text": "t"}] * (MAX_BATCH_ROWS + 1), *[{"text": big}] * 3, {"text": big * 3})
    (value,) = values_of(tmp_path)
    batches = list(read_part(value_part(value), min_chars=0).batches)
    assert [batch.num_rows for batch in batches] == [MAX_BATCH_ROWS, 2, 2, 1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "\\ud800 lone"}', "the text has a lone surrogate at character 0"),
        ('{"text": "a", "id": "b\\udfff"}', "the id has a lone surrogate at character 1"),
        ('{"id": "a"}', "the row has no column 'text'"),
        ('{"text": ["a"]}', "'text' is list, expected str"),
    ],
)
def test_a_row_that_cannot_be_a_document_fails_with_its_place(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "first"}\n' + line + "\n")
    (value,) = values_of(tmp_path)
    with pytest.raises(RowError, match=f"source 's', file a.jsonl, row 1: {reason}"):
        collect(read_part(value_part(value), min_chars=0))


def test_a_file_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"text": "planned"})
    (value,) = values_of(tmp_path)
    write_lines(tmp_path / "a.jsonl", {"text": "changed since"})
    with pytest.raises(RowError, match="changed since the shard plan: expected SHA-256"):
        collect(read_part(value_part(value), min_chars=0))


@pytest.mark.parametrize("cut", [0, 50])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.jsonl"
    write_lines(path, *[{"text": "before " * 20}] * (MAX_BATCH_ROWS + 500))
    os.utime(path, (1, 1))
    (value,) = values_of(tmp_path)
    batches = read_part(value_part(value), min_chars=0).batches
    next(batches)
    content = path.read_bytes().replace(b"before", b"after!")
    with path.open("r+b") as file:  # in place, of the same size; the reader holds it open
        file.write(content[: len(content) - cut] + b"\n" * cut)
    with pytest.raises(RowError, match=r"source 's', file a.jsonl: it changed while it was read: .*put the planned"):
        list(batches)


def test_another_file_in_the_place_of_one_that_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_lines(path, *[{"text": "t"}] * (MAX_BATCH_ROWS + 1))
    (value,) = values_of(tmp_path)
    batches = read_part(value_part(value), min_chars=0).batches
    next(batches)
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    (tmp_path / "new").write_bytes(path.read_bytes())
    os.utime(tmp_path / "new", ns=times)
    (tmp_path / "new").replace(path)
    with pytest.raises(RowError, match="changed while it was read"):
        list(batches)


def test_a_file_that_is_gone_since_the_plan_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"text": "planned"})
    (value,) = values_of(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(RowError, match=r"source 's', file a.jsonl: it cannot be opened .*Put the file back"):
        collect(read_part(value_part(value), min_chars=0))


def test_too_many_strata_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "MAX_STRATA", 2)
    write_lines(tmp_path / "a.jsonl", *({"text": "t", "topic": str(number)} for number in range(3)))
    (value,) = values_of(tmp_path)
    value["reading"]["renderer"]["stratum_column"] = "topic"
    with pytest.raises(RowError, match="row 2: the file has over 2 strata"):
        collect(read_part(value_part(value), min_chars=0))


def test_an_error_keeps_its_place_on_the_way_from_a_worker() -> None:
    import pickle

    error = RowError("s", "a.jsonl", 7, "blank", "Fix it.")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
