"""The report adds up: every row that was read is kept or set aside for a reason that has a column."""

from __future__ import annotations

from typing import Any

import pytest

from everytoken.corpus.selection.mixture import MixtureParameters, Used, mixture_table
from everytoken.corpus.selection.report import read_counts, selection_table
from everytoken.reports import ingestion_figure


def part(source: str, rows_in: int, **set_aside: int) -> dict[str, Any]:
    kept = rows_in - sum(set_aside.values())
    return {"rows_in": rows_in, "kept": kept, "set_aside": set_aside, "by_source": {source: {}}}


READ = [part("web", 10, too_short=2), part("books", 4), part("web", 6, too_short=1, not_json=1), part("empty", 0)]
SELECTED = {
    "web": {"rows_in": 12, "kept": 9, "set_aside": {"duplicate": 3}, "characters": 90, "utf8_bytes": 95},
    "books": {"rows_in": 4, "kept": 4, "set_aside": {}, "characters": 44, "utf8_bytes": 44},
}


def test_counts_of_reading_are_by_source() -> None:
    assert read_counts(READ) == {
        "books": {"rows_in": 4, "kept": 4, "set_aside": {}},
        "empty": {"rows_in": 0, "kept": 0, "set_aside": {}},
        "web": {"rows_in": 16, "kept": 12, "set_aside": {"too_short": 3, "not_json": 1}},
    }


def test_the_table_has_every_reason_and_every_row_adds_up() -> None:
    table = selection_table(read_counts(READ), SELECTED, None)
    assert [row["source"] for row in table] == ["books", "empty", "web", "all sources"]
    assert table[2] == {
        "source": "web",
        "rows_read": 16,
        "kept": 9,
        "keep_rate": 9 / 16,
        "characters": 90,
        "utf8_bytes": 95,
        "duplicate": 3,
        "not_json": 1,
        "too_short": 3,
    }
    assert table[3]["kept"] == 13
    for row in table:
        assert row["rows_read"] == row["kept"] + sum(row[reason] for reason in ("duplicate", "not_json", "too_short"))


def test_the_figure_shows_intended_beside_realised() -> None:
    parameters = MixtureParameters(
        weights={"a": 0.75, "b": 0.25},
        target_total_tokens=100,
        chars_per_token=1.0,
        allow_repeat={},
        tolerance=0.01,
        documents_per_part=1,
    )
    table = mixture_table(parameters, {"a": Used(1, 1, 75), "b": Used(1, 2, 25)})
    counts = {"kept": 1, "set_aside": {}, "characters": 75, "utf8_bytes": 75}
    report = selection_table(read_counts([part("a", 1), part("b", 1)]), {"a": counts, "b": counts}, table)
    assert [row.get("relative_difference") for row in report] == [pytest.approx(0), pytest.approx(0), None]
    assert report[1]["uses"] == 2
    by_source = {"a": {"characters": 75}, "b": {"characters": 25}}
    lengths, intended, realised = ingestion_figure({"06": 1, "04": 1}, by_source, table).data
    assert list(lengths.y) == [1, 1]
    assert (intended.name, realised.name) == ("intended share of tokens", "realised")
    assert list(intended.y) == pytest.approx(list(realised.y))
    _, shares = ingestion_figure({"06": 1, "04": 1}, by_source, None).data
    assert list(shares.y) == [0.75, 0.25]
