"""Progress of long work: one mechanism for every stage, one line every 5 seconds with rate and time left.

Whoever does the work opens it with `working`, or iterates with `progress`, and counts. The innermost work is shown:
when it counts and a line is due, and by a thread when nothing was counted for so long. On a terminal the line is
rewritten in place; elsewhere each is a line of the log.

Progress is for the eye alone. It is in no result, and nothing that goes wrong in showing it ends the work.

>>> in_words(0.4), in_words(35), in_words(600), in_words(9000)
('1 s', '35 s', '10 min', '2.5 h')
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_Item = TypeVar("_Item")

SECONDS = 5.0
"""Between two lines of one work."""

_REDRAWN_SECONDS = 0.2  # on a terminal
_CLEAR = "\r\x1b[K"

logger = logging.getLogger(__name__)

clock = time.monotonic


class CountedWork:
    """CountedWork that is counted.

    Args:
        total: how much there is to do, in ``unit``; None: nobody knows.
        unit: what is counted, in the singular.
        done: how much of it was done before, for which no time is counted.
        reads: whether rows that are read from stored parts are counted (`count_read`), once for each time that all
            of them are read.
        found: a function that gives what is done; None: it is counted here.
        note: a function that gives the end of the line.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        unit: str,
        done: int = 0,
        *,
        reads: bool = False,
        found: Callable[[], int] | None = None,
        note: Callable[[], str] | None = None,
    ) -> None:
        self.label, self.total, self.unit, self.done, self.reads = label, total, unit, done, reads
        self._before, self._found, self._note = done, found, note
        self._begin = self._last = clock()

    def add(self, count: int = 1) -> None:
        """Count what was done, and show it when it is time."""
        self.done += count
        self.tick()

    def tick(self) -> None:
        """Show the line when it is time."""
        if clock() - self._last >= (_REDRAWN_SECONDS if _on_terminal() else SECONDS):
            self.show()

    def show(self) -> None:
        """Show the line now."""
        with contextlib.suppress(Exception):  # no terminal, no disk, no count: the work goes on
            self._last = clock()
            _write(self._line())

    def _line(self) -> str:
        if self._found is not None:
            self.done = max(self.done, self._found())
        seconds = clock() - self._begin
        return f"{self.label}: {self._counted(seconds)}{self._note() if self._note is not None else ''}"

    def _counted(self, seconds: float) -> str:
        done, total, unit = self.done, self.total, self.unit
        pace = (done - self._before) / seconds if seconds > 0 else 0.0
        if not pace:
            what = "" if total is None else f"{done:,} of {total:,} {_several(unit)}, "
            return f"{what}{in_words(seconds)} so far"
        if not total:
            return f"{done:,} {_several(unit)}, {_rate(pace, unit)}, {in_words(seconds)} so far"
        again = ""
        if self.reads and done > total:
            passes, done = divmod(done - 1, total)
            again, done = f", reading {passes + 1}", done + 1
        if done >= total:
            return f"{total:,} of {total:,} {_several(unit)}{again}, {_rate(pace, unit)}, {in_words(seconds)} so far"
        left = in_words((total - done) / pace)
        return f"{done:,} of {total:,} {_several(unit)}{again}, {_rate(pace, unit)}, {left} left"


def in_words(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds < 120:
        return f"{max(1, math.ceil(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _several(unit: str) -> str:
    return f"{unit}es" if unit.endswith(("ch", "x")) else f"{unit}s"


def _rate(pace: float, unit: str) -> str:
    if pace < 0.1:
        return f"{in_words(1 / pace)} a {unit}"
    return f"{pace:,.0f}/s" if pace >= 10 else f"{pace:.1f}/s"


_open: list[CountedWork] = []
_drawn = False


@contextmanager
def working(
    label: str,
    total: int | None = None,
    unit: str = "part",
    done: int = 0,
    *,
    reads: bool = False,
    found: Callable[[], int] | None = None,
    note: Callable[[], str] | None = None,
) -> Iterator[CountedWork]:
    """Open work for the block, without a label under that of the work around it; see `CountedWork`."""
    label = label or (_open[-1].label if _open else "working")
    work = CountedWork(label, total, unit, done, reads=reads, found=found, note=note)
    _open.append(work)
    watch = _Watch() if len(_open) == 1 else None
    try:
        yield work
    finally:
        _open.remove(work)
        _erase()
        if watch is not None:
            watch.end()


def progress(items: Iterable[_Item], total: int, label: str, unit: str = "part") -> Iterator[_Item]:
    """Yield ``items`` and show how many of ``total`` are done."""
    with working(label, total, unit) as work:
        for item in items:
            yield item
            work.add()


def count_read(rows: int) -> None:
    """Count rows that were read from a stored part, where the innermost work counts these."""
    if _open and _open[-1].reads:
        _open[-1].add(rows)


def tick() -> None:
    """Show the innermost work when it is time: what it does was counted elsewhere."""
    if _open:
        _open[-1].tick()


class _Watch:
    """A thread that shows the innermost work when the work itself has not for a while."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        with contextlib.suppress(RuntimeError):  # no thread can be started: lines come when work is counted
            threading.Thread(target=self._watch, name="progress", daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(SECONDS / 5):
            with contextlib.suppress(IndexError):  # it has just ended
                _open[-1].tick()

    def end(self) -> None:
        self._ended.set()


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it was closed
        return False


def _write(line: str) -> None:
    global _drawn
    if not _on_terminal():
        logger.info("%s", line)
        return
    columns = shutil.get_terminal_size().columns
    sys.stderr.write(_CLEAR + line[: columns - 1])
    sys.stderr.flush()
    _drawn = True


def _erase() -> None:
    """Take the line off the terminal; the next one is drawn where it was."""
    global _drawn
    if _drawn:
        _drawn = False
        with contextlib.suppress(Exception):
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()


class LogLines(logging.Formatter):
    """Lines of at most 120 columns: a longer one goes on in the next one, below the begin of its text.

    A word that is longer, such as a path, stays whole. A line of progress on the terminal is taken away first.
    """

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        _erase()
        text = self._lines.format(record)
        return text if record.exc_info else "\n".join(map(_folded, text.split("\n")))


def fold_log_lines() -> None:
    """Let the log of this process have lines of at most 120 columns."""
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.StreamHandler and not isinstance(handler.formatter, LogLines):
            handler.setFormatter(LogLines(handler.formatter or logging.Formatter()))


def _folded(line: str) -> str:
    if len(line) <= _COLUMNS:
        return line
    import textwrap

    below = " " * len("23:59:59 ")
    return textwrap.fill(line, _COLUMNS, subsequent_indent=below, break_long_words=False, break_on_hyphens=False)


_COLUMNS = 120


def steps_done(step: int) -> str:
    """Return how many optimiser steps are done after the one with number ``step``, which is counted from 0.

    >>> steps_done(1_099)
    '1,100 steps'
    """
    return f"{step + 1:,} step{'' if step == 0 else 's'}"
