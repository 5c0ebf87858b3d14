from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everytoken.corpus.documents import DOCUMENTS, MAX_BATCH_BYTES, MAX_BATCH_ROWS
from everytoken.corpus.errors import RowError, SelectionError
from everytoken.corpus.ingestion import ingest
from everytoken.corpus.ingestion.ingest import check_bad_shares, read_part
from everytoken.corpus.ingestion.plan import make_shard_plan, part_values
from everytoken.corpus.ingestion.quality import QualityRules
from everytoken.corpus.ingestion.source import find_files
from everytoken.corpus.statistics import add_statistics
from everytoken.seeds import python_random
from everytoken.shards import Inline, PartsFailed, Rows, SetAside, Shards, Store, write_rows
from tests.corpus.ingestion.test_shard_plan import plan_parameters
from tests.corpus.part_tables import collect, collect_all, value_part
from tests.corpus.reading.read_rows import LIMITS
from tests.corpus.upstreams.test_source import path_source

QUALITY = QualityRules(
    drop_empty=True,
    min_characters=None,
    max_characters=None,
    min_unique_characters=None,
    max_digits=0.5,
    max_punctuation=None,
    max_whitespace=None,
)


def address(row: int, offset: int | None) -> dict[str, Any]:
    return {"source": "s", "shard_index": 0, "row": row, "offset": offset}


def values_of(root: Path, rows_per_shard: int | None = None, **changes: Any) -> list[dict[str, Any]]:
    source = path_source(root, rows_per_shard=rows_per_shard).model_copy(update=changes)
    files = {"s": find_files("s", source.upstream, root)}
    values, _ = part_values(make_shard_plan({"s": source}, files, plan_parameters(), LIMITS), {"s": source}, files)
    return values


def read_rows_of(value: dict[str, Any], **changes: Any) -> Rows:
    limits = changes.pop("limits", LIMITS).model_dump()
    parameters = {"min_chars": 0, "max_bad_share": 0.0, "keep_fetched": True, **limits, **changes}
    return read_part(value_part(value), **parameters)


def write_lines(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_addresses_count_rows_before_the_filter_and_nothing_is_lost(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"text": "é" * 3, "id": "x"}, {"text": "no"}, {"text": "€uro"})
    (value,) = values_of(tmp_path)
    table, aside, statistics = collect_all(read_rows_of(value, min_chars=3))
    assert table.schema == DOCUMENTS
    sha256 = [hashlib.sha256(text.encode()).digest() for text in ("ééé", "€uro")]
    everywhere = {"source": "s", "stratum": "all", "shard_index": 0, "assistant_spans": None}
    first = {"id": "x", "id_type": "string", "text": "ééé", "row": 0, "characters": 3, "utf8_bytes": 6}
    last = {"id": None, "id_type": None, "text": "€uro", "row": 2, "characters": 4, "utf8_bytes": 6}
    assert table.to_pylist() == [
        {**everywhere, **first, "text_sha256": sha256[0]},
        {**everywhere, **last, "text_sha256": sha256[1]},
    ]
    assert aside.to_pylist() == [
        {**address(1, None), "offset": 42, "id": None, "reason": "too_short", "detail": None, "raw": None}
    ]
    assert statistics == {
        "rows_in": 3,
        "kept": 2,
        "set_aside": {"too_short": 1},
        "by_source": {"s": {"all": {"rows": 2, "characters": 7, "utf8_bytes": 12}}},
        "length_histogram": {"01": 1, "02": 1},
    }


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=4), max_size=12), st.integers(1, 13))
def test_rows_per_shard_changes_no_document_and_no_address(tmp_path: Path, texts: list[str], size: int) -> None:
    write_lines(tmp_path / "a.jsonl", *({"text": text} for text in texts))
    write_lines(tmp_path / "b.jsonl", {"text": "of the other file"})

    def everything(rows_per_shard: int | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        made = [collect(read_rows_of(value, min_chars=2)) for value in values_of(tmp_path, rows_per_shard)]
        rows = [row for table, _ in made for row in table.to_pylist()]
        key = lambda row: (row["shard_index"], row["row"])  # noqa: E731
        return sorted(rows, key=key), add_statistics(statistics for _, statistics in made)

    assert everything(size) == everything(None)


def test_batches_are_bounded_in_rows_and_bytes(tmp_path: Path) -> None:
    big = "x" * (MAX_BATCH_BYTES // 2 - 1_000)
    write_lines(tmp_path / "a.jsonl", *[{"text": "t"}] * (MAX_BATCH_ROWS + 1), *[{"text": big}] * 3, {"text": big * 3})
    (value,) = values_of(tmp_path)
    limits = LIMITS.model_copy(update={"max_row_bytes": 8 << 20})
    batches = list(read_rows_of(value, limits=limits).batches)
    assert [batch.num_rows for batch in batches] == [MAX_BATCH_ROWS, 3, 1, 1]


BAD = {
    b'{"text": "\\ud800 lone"}': ("lone_surrogate", "the text has a lone surrogate at character 0"),
    b'{"text": "a", "id": "b\\udfff"}': ("lone_surrogate", "the id has a lone surrogate at character 1"),
    b'{"id": "a"}': ("no_text", "the row has no column 'text'; its columns are "),
    b'{"text": null}': ("text_null", "'text' is null"),
    b'{"text": ["a"]}': ("text_not_string", "'text' is list, expected str"),
    b'{"text": "a", "topic": 1}': ("cannot_render", "'topic' is int, expected str"),
    b'{"text": "caf\xe9"}': ("not_utf8", ""),
    b'{"text": "a",}': ("not_json", ""),
    b'{"text": NaN}': ("not_finite", ""),
    b'{"text": "a", "text": "b"}': ("duplicate_key", ""),
    b'["text"]': ("not_an_object", ""),
    b"": ("blank_line", ""),
}


RENDERED = ("lone_surrogate", "no_text", "text_null", "text_not_string", "cannot_render")


def test_a_bad_row_keeps_its_id_where_it_has_one(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"id": 7, "text": None}, {"text": None}, {"id": "x\ud800", "text": None})
    (value,) = values_of(tmp_path)
    _, aside, _ = collect_all(read_rows_of(value, max_bad_share=1.0))
    assert aside.column("id").to_pylist() == ["7", None, None]


@pytest.mark.parametrize("line", BAD, ids=[reason for reason, _ in BAD.values()])
def test_a_bad_row_fails_its_part_with_its_place_or_is_set_aside(tmp_path: Path, line: bytes) -> None:
    reason, detail = BAD[line]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "first"}\n' + line + b'\n{"text": "last", "id": 7}\n')
    (value,) = values_of(tmp_path)
    value["reading"]["renderer"]["stratum_column"] = "topic" if b"topic" in line else None
    with pytest.raises(RowError) as caught:
        collect(read_rows_of(value, max_bad_share=0.33))
    expected = rf"source 's', file a.jsonl: 1 of 3 rows are bad \(1 {reason}\), more than the share 0.33 allowed. "
    assert re.match(rf"{expected}row 1 at byte 18: {reason}, {re.escape(detail)}", str(caught.value))
    table, aside, statistics = collect_all(read_rows_of(value, max_bad_share=0.34))
    assert table.column("text").to_pylist() == ["first", "last"], "the rows around it are kept"
    (row,) = aside.to_pylist()
    assert row["detail"].startswith(detail)
    assert (row["raw"] is None) == (reason in RENDERED), "what could be parsed is found by its offset"
    assert row == {**row, **address(1, 18), "reason": reason}
    assert statistics["set_aside"] == {reason: 1}


def test_a_part_with_too_many_bad_rows_says_how_many_of_each_kind_and_the_first_ten(tmp_path: Path) -> None:
    rows = [{"text": "fine"}] * 5 + [{"text": None}] * 9 + [{"id": 1}] * 4
    write_lines(tmp_path / "a.jsonl", *rows)
    (value,) = values_of(tmp_path)
    with pytest.raises(RowError) as caught:
        collect(read_rows_of(value, max_bad_share=0.5))
    message = str(caught.value)
    assert "13 of 18 rows are bad (4 no_text, 9 text_null), more than the share 0.5 allowed" in message
    assert [f"row {number} at byte" in message for number in range(4, 16)] == [False, *[True] * 10, False]
    assert "or allow more by ingestion.max_bad_share" in message
    assert "renderer" not in message
    write_lines(tmp_path / "a.jsonl", *rows[5:])
    (value,) = values_of(tmp_path)
    with pytest.raises(RowError, match=r"format, records or renderer .* may not fit this file"):
        collect(read_rows_of(value, max_bad_share=0.5))


def test_a_part_that_was_made_under_a_larger_share_is_looked_at_again() -> None:
    counts = {"rows_in": 100, "by_source": {"s": {}}, "set_aside": {"not_json": 20, "no_text": 9, "too_short": 50}}
    check_bad_shares({"part_00000": counts}, 0.29)
    message = (
        r"1 parts have more bad rows than the share 0.28 allowed: part_00007 of source 's' \(29 of 100\)\. See what"
    )
    with pytest.raises(SelectionError, match=message):
        check_bad_shares({"part_00007": counts}, 0.28)


def test_documents_that_a_filter_leaves_out_are_no_bad_rows(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"text": "of good length"}, {"text": "no"}, {"text": "1234567890", "id": "n"})
    (value,) = values_of(tmp_path, quality=QUALITY)
    table, aside, statistics = collect_all(read_rows_of(value, min_chars=3))
    assert table.column("text").to_pylist() == ["of good length"]
    assert aside.select(["row", "id", "reason"]).to_pylist() == [
        {"row": 1, "id": None, "reason": "too_short"},
        {"row": 2, "id": "n", "reason": "digits"},
    ]
    assert statistics["set_aside"] == {"digits": 1, "too_short": 1}


IDS = [None, "7", 7, 7.5, True, "true", [1, "a"], {"b": 1}, "", "", "A", "a", "a ", "x" * 5000, "7"]


def test_ids_of_every_kind_are_kept_distinct_and_in_their_meaning(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", *({"text": "t", "id": identifier} for identifier in IDS), {"text": "no id"})
    (value,) = values_of(tmp_path)
    table, _ = collect(read_rows_of(value))
    found = list(zip(*(table.column(name).to_pylist() for name in ("id", "id_type")), strict=True))
    assert found == [
        (None, None),
        ("7", "string"),
        ("7", "integer"),
        ("7.5", "number"),
        ("true", "boolean"),
        ("true", "string"),
        ('[1,"a"]', "list"),
        ('{"b":1}', "object"),
        *[("", "string")] * 2,
        *[(text, "string") for text in ("A", "a", "a ", "x" * 5000, "7")],
        (None, None),
    ]


def test_a_source_column_that_is_null_in_one_file_and_text_in_the_next_has_one_type(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"text": "t", "source": None})
    write_lines(tmp_path / "b.jsonl", {"text": "t", "source": "web"})
    tables = [collect(read_rows_of(value))[0] for value in values_of(tmp_path)]
    assert [table.schema for table in tables] == [DOCUMENTS] * 2
    assert [table.column("source").to_pylist() for table in tables] == [["s"]] * 2, (
        "source is the name in the parameters"
    )


@pytest.mark.parametrize("min_chars", [0, 15])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.sampled_from([*BAD, b'{"text": "a good one"}']) | st.binary(max_size=6), max_size=30))
def test_rows_in_are_rows_kept_and_rows_set_aside_whatever_the_file_holds(
    tmp_path: Path, min_chars: int, lines: list[bytes]
) -> None:
    content = b"\n".join([b'{"text": "it begins as JSON"}', *lines])
    (tmp_path / "a.jsonl").write_bytes(content)
    (value,) = values_of(tmp_path)
    written = write_rows(read_rows_of(value, min_chars=min_chars, max_bad_share=1.0), tmp_path / "part.parquet")
    rows = content.count(b"\n") + (not content.endswith(b"\n"))
    aside = 0 if written.set_aside is None else written.set_aside.rows
    assert written.statistics["rows_in"] == rows == written.part.rows + aside
    assert sum(written.statistics["set_aside"].values()) == aside


def test_a_full_disk_fails_the_part_and_leaves_nothing_half(tmp_path: Path, small_disk: Path) -> None:
    letters = python_random(5, "full disk")
    texts = ["".join(letters.choices("abcdefgh", k=4_000)) for _ in range(1_500)]
    write_lines(tmp_path / "a.jsonl", *({"text": text} for text in texts))
    write_lines(tmp_path / "b.jsonl", {"text": "a small one"})
    values = values_of(tmp_path)
    planned = Shards.from_values(values, [str(value["files"][0]["shard"]["path"]) for value in values]).map(
        read_part, min_chars=0, max_bad_share=0.0, keep_fetched=True, **LIMITS.model_dump()
    )
    with pytest.raises(PartsFailed, match="No space left on device"):
        Store(small_disk / "s").save(planned, Inline())
    assert [path.name for path in (small_disk / "s").glob("*.parquet")] == [
        f"part_{index:05d}.parquet"
        for index, value in enumerate(values)
        if value["files"][0]["shard"]["path"] == "b.jsonl"
    ], "the part that fits is made"
    assert not list((small_disk / "s").glob(".*.tmp"))
    Store(tmp_path / "s").save(planned, Inline())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_file_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"text": "planned"})
    (value,) = values_of(tmp_path)
    write_lines(tmp_path / "a.jsonl", {"text": "changed since"})
    with pytest.raises(RowError, match=r"changed since the shard plan: expected SHA-256 .* pipeline ingestion again"):
        collect(read_rows_of(value))


@pytest.mark.parametrize("cut", [0, 50])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.jsonl"
    write_lines(path, *[{"text": "before " * 20}] * (MAX_BATCH_ROWS + 500))
    os.utime(path, (1, 1))
    (value,) = values_of(tmp_path)
    batches = read_rows_of(value).batches
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
    batches = read_rows_of(value).batches
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
        collect(read_rows_of(value))


def test_a_share_is_the_decimal_that_is_written(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", *[{"text": "t"}] * 71, *[{"text": None}] * 29)
    (value,) = values_of(tmp_path)
    collect(read_rows_of(value, max_bad_share=0.29))  # in floats 0.29 * 100 is less than 29
    with pytest.raises(RowError, match="29 of 100 rows are bad"):
        collect(read_rows_of(value, max_bad_share=0.28))


def test_long_ids_and_labels_count_for_the_bound_of_a_batch(tmp_path: Path) -> None:
    names = [{"text": "t", "id": f"{number}" * (1 << 19)} for number in range(9)]
    write_lines(tmp_path / "a.jsonl", *names, {"text": None, **{f"{k}" * (1 << 17): k for k in range(3)}})
    (value,) = values_of(tmp_path, rows_per_shard=None)
    batches = list(read_rows_of(value, max_bad_share=1.0).batches)
    assert max(batch.nbytes for batch in batches if isinstance(batch, pa.RecordBatch)) <= MAX_BATCH_BYTES
    (aside,) = [batch.batch for batch in batches if isinstance(batch, SetAside)]
    assert aside.nbytes < 10_000, "a reason quotes no whole key"


def test_a_stratum_is_a_label(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"text": "t", "topic": "x" * 1_001}, {"text": "t", "topic": "x" * 1_000})
    (value,) = values_of(tmp_path)
    value["reading"]["renderer"]["stratum_column"] = "topic"
    _, aside, statistics = collect_all(read_rows_of(value, max_bad_share=1.0))
    assert aside.column("detail").to_pylist() == ["the stratum has 1,001 characters, a label at most 1,000"]
    assert statistics["kept"] == 1


DAY = datetime.date(2026, 1, 1)


@pytest.mark.parametrize("identifier", [DAY, [DAY], {"a": b"b"}, [Decimal("1.5")]], ids=str)
def test_an_id_that_is_no_json_value_is_a_bad_row(tmp_path: Path, identifier: Any) -> None:
    pq.write_table(pa.table({"text": ["t"], "id": [identifier]}), tmp_path / "a.parquet")
    source = path_source(tmp_path, "*.parquet")
    files = {"s": find_files("s", source.upstream, tmp_path)}
    plan = make_shard_plan({"s": source}, files, plan_parameters(), LIMITS)
    (value,), _ = part_values(plan, {"s": source}, files)
    _, aside, _ = collect_all(read_rows_of(value, max_bad_share=1.0))
    assert aside.column("reason").to_pylist() == ["cannot_render"]


def test_too_many_strata_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "MAX_STRATA", 2)
    write_lines(tmp_path / "a.jsonl", *({"text": "t", "topic": str(number)} for number in range(3)))
    (value,) = values_of(tmp_path)
    value["reading"]["renderer"]["stratum_column"] = "topic"
    with pytest.raises(RowError, match="row 2: the shard has over 2 strata"):
        collect(read_rows_of(value))


def test_an_error_keeps_its_place_on_the_way_from_a_worker() -> None:
    import pickle

    error = RowError("s", "a.jsonl", 7, "blank", "Fix it.")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
