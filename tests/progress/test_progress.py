"""Progress of long work: lines of the log, a line on the terminal, and nothing that changes what is made."""

from __future__ import annotations

import io
import itertools
import logging
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from everytoken import progress as shown
from everytoken.progress import LogLines, progress, working
from everytoken.shards import Inline, Rows, Shards, Store, WorkerProcesses, versioned


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 3 seconds pass between two looks at the clock."""
    ticks = itertools.count(0, 3)
    monkeypatch.setattr(shown, "clock", lambda: float(next(ticks)))


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.usefixtures("hurried")
def test_a_line_every_5_seconds_has_what_is_done_rate_and_time_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert list(progress(range(4), 4, "documents")) == [0, 1, 2, 3]
    assert _lines(caplog)[0] == "documents: 2 of 4 parts, 0.2/s, 12 s left"
    assert all("\r" not in line for line in _lines(caplog))


@pytest.mark.usefixtures("hurried")
def test_what_is_read_again_is_told_as_another_reading(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with working("index", 10, "row", reads=True) as work:
        for _ in range(3):
            shown.count_read(5)
        work.show()
    assert "index: 5 of 10 rows, reading 2, " in _lines(caplog)[-1]


@pytest.mark.usefixtures("hurried")
def test_steps_that_were_done_before_have_no_rate(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with working("training", 100, "step", 90) as work:
        work.done += 1
        work.show()
    assert _lines(caplog)[-1] == "training: 91 of 100 steps, 0.2/s, 54 s left"


@pytest.mark.usefixtures("hurried")
def test_units_have_their_plural(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for unit, several in (("batch", "batches"), ("row", "rows")):
        assert list(progress(range(2), 2, "looked at", unit)) == [0, 1]
        assert f"looked at: 2 of 2 {several}, " in _lines(caplog)[-1]


def test_work_that_counts_nothing_is_shown_all_the_same(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(shown, "SECONDS", 0.05)
    seen, lines = threading.Event(), []

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            seen.set()

    handler = Seen()
    logging.getLogger("everytoken.progress").addHandler(handler)
    try:
        with working("merging", 5):
            assert seen.wait(10), "the thread has shown it"
    finally:
        logging.getLogger("everytoken.progress").removeHandler(handler)
    assert lines[0] == "merging: 0 of 5 parts, 1 s so far"


@pytest.mark.usefixtures("hurried")
def test_on_a_terminal_it_is_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    list(progress(range(3), 3, "documents"))
    assert "documents: 2 of 3 parts" in terminal.getvalue() and "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.usefixtures("hurried")
def test_nothing_that_goes_wrong_in_it_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> int:
        raise OSError("no counts")

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with working("documents", 3, found=failing, note=lambda: str(1 // 0)) as work:
        for _ in range(3):
            work.add()
    terminal.close()
    assert list(progress(range(3), 3, "documents")) == [0, 1, 2]


@versioned("test_progress.copied", 1)
def copied(part):
    """Return the rows of a part."""
    return Rows(part.schema, iter_batches(part))


def iter_batches(part):
    yield from part.batches()
    return {}


@versioned("test_progress.numbers", 1)
def numbers(part):
    """Return 20,000 rows."""
    schema = pa.schema([("n", pa.int64())])

    def batches():
        yield pa.record_batch([pa.array(range(20_000))], schema=schema)
        return {}

    return Rows(schema, batches())


@pytest.mark.parametrize("engine", [Inline(), WorkerProcesses(2)])
def test_rows_of_parts_that_are_being_made_are_counted_and_change_no_digest(
    tmp_path: Path, engine: Inline | WorkerProcesses, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Store(tmp_path / "given")
    values = Shards.from_values([0, 1], ["part_00000", "part_00001"])
    given.save(values.map(numbers), Inline())
    quiet = Store(tmp_path / "quiet")
    quiet.save(given.load().map(copied), Inline())
    ticks = itertools.count(0, 3)
    monkeypatch.setattr(shown, "clock", lambda: float(next(ticks)))
    caplog.set_level(logging.INFO)
    caplog.clear()
    watched = Store(tmp_path / "watched")
    watched.save(given.load().map(copied), engine)
    assert watched.ledger() == quiet.ledger()
    assert "of 40,000 rows, " in _lines(caplog)[1]
    if engine == Inline():
        assert any(line.startswith("watched: 20,000 of 40,000 rows, ") and " left" in line for line in _lines(caplog))
    assert not (tmp_path / "watched" / ".making").exists()


def test_a_long_line_of_the_log_goes_on_below_its_text() -> None:
    lines = LogLines(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    told = lines.format(logging.LogRecord("x", logging.INFO, "", 0, "many words " * 30, (), None)).split("\n")
    assert len(told) == 3 and all(len(line) <= 120 for line in told)
    assert all(line.startswith(" " * 9) for line in told[1:])
