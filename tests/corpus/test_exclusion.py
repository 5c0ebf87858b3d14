"""A list names documents by id or address; each is found where it is, and what is not named stays as it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everytoken.corpus.documents import SCORED_DOCUMENTS
from everytoken.corpus.errors import ExclusionError
from everytoken.corpus.exclusion import (
    ExcludedAddress,
    ExcludedId,
    excluded_addresses,
    find_excluded,
    read_list,
    write_list,
)
from everytoken.corpus.sampling.report import amounts_by_score, check_draw_conservation
from everytoken.corpus.sampling.splits import select_held_out
from everytoken.shards import Inline, Part, Rows, Shards, Store, versioned
from everytoken.shards.recipe import recipe_value
from tests.corpus.part_tables import TablePart, collect, documents, value_part
from tests.corpus.sampling.test_sampling import subsampling

ENTRIES = [
    ExcludedAddress("s", 0, 5, "court order"),
    ExcludedId("7", "integer", "asked"),
    ExcludedId("twice", "string", "asked"),
]


def listed(folder: Path, *entries: Any) -> dict[str, str]:
    path = folder / "list.jsonl"
    return {"path": str(path), "sha256": write_list(entries, path)}


def part_of(ids: list[Any], batch_rows: int = 7) -> TablePart:
    table = documents([f"text {i}" for i in range(len(ids))], [None if one is None else str(one) for one in ids])
    types = ["integer" if isinstance(one, int) else "string" if one is not None else None for one in ids]
    return TablePart(table.set_column(1, "id_type", pa.array(types, pa.string())), batch_rows)


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
def test_every_document_with_a_listed_id_or_address_is_found_in_row_order(tmp_path: Path, batch_rows: int) -> None:
    part = part_of(["twice", "7", 7, None, "twice", "other", "Twice", None], batch_rows)
    found = find_excluded(part, **listed(tmp_path, *ENTRIES))
    assert found == {
        "addresses": [["s", 0, 0, "asked"], ["s", 0, 2, "asked"], ["s", 0, 4, "asked"], ["s", 0, 5, "court order"]]
    }


def test_an_address_is_exact(tmp_path: Path) -> None:
    near = [("s ", 0, 1), ("s", 1, 1), ("s", 0, 11), ("s\x000", 1, 1), ("S", 0, 1)]
    found = find_excluded(part_of([None] * 3), **listed(tmp_path, *(ExcludedAddress(*one, "x") for one in near)))
    assert found == {"addresses": []}


def test_without_a_list_nothing_is_read_and_nothing_found() -> None:
    assert find_excluded(value_part("no rows"), path=None, sha256=None) == {"addresses": []}
    assert excluded_addresses(None) == {}


def test_a_list_has_one_form_whatever_order_it_came_in(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b" / "b.jsonl"
    assert write_list(ENTRIES, first) == write_list([*reversed(ENTRIES), ENTRIES[1]], second)
    assert first.read_bytes() == second.read_bytes()
    assert set(read_list(first)) == set(ENTRIES)
    assert hashlib.sha256(first.read_bytes()).hexdigest() == write_list(read_list(first), second)


@pytest.mark.parametrize(
    "line",
    [
        "an id",
        "[]",
        '{"id": 7, "id_type": "integer", "reason": "x"}',
        '{"id": "7", "reason": "x"}',
        '{"source": "s", "shard_index": -1, "row": 0, "reason": "x"}',
        '{"source": "s", "shard_index": true, "row": 0, "reason": "x"}',
        '{"source": "s", "shard_index": 0, "row": 0, "reason": "x", "id": "y"}',
    ],
)
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text(f"{json.dumps({'id': 'a', 'id_type': 'string', 'reason': 'x'})}\n{line}\n")
    with pytest.raises(ExclusionError, match=r"list\.jsonl line 2 is no entry"):
        list(read_list(path))


def test_another_list_and_none_are_refused(tmp_path: Path) -> None:
    given = listed(tmp_path, *ENTRIES)
    with pytest.raises(ExclusionError, match=r"expected 0000.*subsampling\.exclude\.sha256"):
        find_excluded(part_of(["a"]), path=given["path"], sha256="0" * 64)
    with pytest.raises(ExclusionError, match="there is no list"):
        find_excluded(part_of(["a"]), path=str(tmp_path / "none"), sha256="1" * 64)


def test_the_list_is_in_no_recipe_of_the_draw(tmp_path: Path) -> None:
    """So no draw is made again for it: the parameters of the draw are recorded without it."""
    with_list = subsampling(exclude=listed(tmp_path, *ENTRIES))
    assert recipe_value(with_list, "p") == recipe_value(subsampling(), "p")
    assert "exclude" not in recipe_value(with_list, "p")


def held_out_of(part: TablePart, exclusions: Any) -> tuple[pa.Table, dict[str, Any]]:
    return collect(select_held_out(part, exclusions, parameters=subsampling(held_out_share=0.4).held_out))


@pytest.mark.parametrize("batch_rows", [7, 1000])
def test_an_excluded_held_out_document_is_removed_and_counted(batch_rows: int) -> None:
    part = TablePart(_scored(40), batch_rows)
    old, before = held_out_of(part, None)
    rows = old["row"].to_pylist()
    gone = [
        ["s", 0, rows[0], "x"],
        ["s", 0, rows[3], "x"],
        ["s", 0, min(set(range(40)) - set(rows)), "x"],
    ]
    new, after = held_out_of(part, value_part({"addresses": gone}))
    assert new["row"].to_pylist() == [row for row in rows if row not in (rows[0], rows[3])]
    assert new.equals(old.filter(pa.array([row not in (rows[0], rows[3]) for row in rows])))
    assert (after["excluded"], after["rows"], after["rows_in"]) == (2, before["rows"] - 2, before["rows_in"])
    assert "excluded" not in before
    nothing = {"annotated": {}, "unannotated": {}}
    amounts = amounts_by_score({**nothing, "held_out": after})
    assert amounts == amounts_by_score({**nothing, "held_out": before})
    scored = {key: int(of["rows"]) for key, of in amounts["held_out"].items()}
    check_draw_conservation(scored, amounts)


def _scored(rows: int) -> pa.Table:
    table = documents([f"text {i}" for i in range(rows)])
    table = table.append_column("safety_score", pa.array([i % 6 for i in range(rows)], pa.int8()))
    return table.append_column("safety_probs", pa.nulls(rows, pa.list_(pa.float32()))).cast(SCORED_DOCUMENTS)


@versioned("scored_part", 1)
def scored_part(part: Part) -> Rows:
    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        yield from table.to_batches()
        return {}

    table = _scored(20).set_column(5, "shard_index", pa.array([part.value] * 20, pa.int32())).cast(SCORED_DOCUMENTS)
    return Rows(table.schema, batches())


def test_parts_without_an_excluded_document_are_not_made_again(tmp_path: Path) -> None:
    given = Shards.from_values([0, 1], ["0" * 64, "1" * 64]).map(scored_part)
    Store(tmp_path / "scored").save(given, Inline())
    scored, made = Store(tmp_path / "scored").load(), {}
    address = scored.parts[1].table(["source", "shard_index", "row"]).slice(3, 1).to_pylist()[0]
    for name, entries in (("none", []), ("one", [ExcludedAddress(**address, reason="x")]), ("again", [])):
        listing = listed(tmp_path, *entries) if entries else {"path": None, "sha256": None}
        Store(tmp_path / "exclusions").save(scored.reduce(find_excluded, **listing), Inline())
        exclusions = Store(tmp_path / "exclusions").load()
        parameters = subsampling(held_out_share=0.9).held_out
        Store(tmp_path / "held").save(scored.zip(exclusions).map(select_held_out, parameters=parameters), Inline())
        files = sorted((tmp_path / "held").glob("*.parquet"))
        made[name] = [(file.stat().st_ino, file.read_bytes()) for file in files]
    assert made["one"][0] == made["none"][0] == made["again"][0]
    assert made["one"][1][1] != made["none"][1][1] == made["again"][1][1]
