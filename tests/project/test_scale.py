"""docs/scale.md is what benchmarks/scale.py computes from the measured rates, and a simulated ledger is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scale import ledger_seconds, measured, table

PAGE = Path(__file__).resolve().parents[2] / "docs/scale.md"


def test_the_page_has_the_table_that_the_rates_give() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    computed = list(table(64, (1, 4, 20)))
    first = lines.index(computed[0])
    assert lines[first : first + len(computed)] == computed


def test_a_figure_that_the_page_of_rates_lacks_is_an_error() -> None:
    with pytest.raises(AssertionError, match="is not in the row"):
        measured("| `select_split`", r"(\d+) parsecs")


def test_a_simulated_ledger_is_written_and_read(tmp_path: Path) -> None:
    seconds, size = ledger_seconds(2_000, tmp_path)
    assert seconds < 2 and 500_000 < size < 1_500_000
