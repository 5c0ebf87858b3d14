"""What the summary says of documents and tokens that are in no later stage."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from everytoken.cli.summary import _set_aside
from everytoken.shards import Part, Rows, Shards, Store, make_engine, versioned

SCHEMA = pa.schema([("text", pa.string())])


@versioned("drawn", 1)
def drawn(part: Part) -> Rows:
    """A part of which as many documents were not drawn as its value says."""

    def batches():  # type: ignore[no-untyped-def]
        yield from ()
        return {"not_drawn": part.value}

    return Rows(SCHEMA, batches())


@pytest.mark.parametrize(
    ("not_drawn", "lines"),
    [
        ([3, 4], ["             7 documents that were not drawn (strata_report.csv tells which kinds)"]),
        ([0, 0], []),
    ],
)
def test_the_summary_counts_what_was_not_drawn_whatever_the_reason_and_prints_no_zero(
    tmp_path: Path, not_drawn: list[int], lines: list[str]
) -> None:
    parts = Shards.from_values(not_drawn, [f"{i:064x}" for i in range(2)])
    Store(tmp_path).save(parts.map(drawn), make_engine("inline"))
    told = list(_set_aside({"annotated_documents": Store(tmp_path).load()}))
    assert told == (["", "set aside", *lines] if lines else [])
