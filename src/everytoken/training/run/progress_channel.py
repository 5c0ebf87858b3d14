"""What a training process tells while it runs, to a function or through a file. Importing this loads no torch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from everytoken.training.step import (
    HeldOutRecord,
    SampleRecord,
    StepRecord,
    TaskRecord,
    TrainingRecord,
    record_values,
)

OnRecords = Callable[[Sequence[StepRecord]], None]
OnFigures = Callable[[Sequence[HeldOutRecord | TaskRecord]], None]

RECORDS_FILE = "records.jsonl"

_MOST_HELD = 1000
_KINDS: dict[str, type[TrainingRecord]] = {
    kind.__name__: kind for kind in (StepRecord, HeldOutRecord, SampleRecord, TaskRecord)
}


class Listeners:
    """Gives records on in batches, every ``seconds`` or ``_MOST_HELD`` records; ``flush`` gives what is left.

    Args:
        on_figures: gets records of held-out documents and of tasks; None: nobody wants them.
        seconds: between two calls of ``on_records``.
    """

    def __init__(self, on_records: OnRecords, on_figures: OnFigures | None = None, *, seconds: float = 2.0) -> None:
        self._on_records, self._on_figures, self._seconds = on_records, on_figures, seconds
        self._steps: list[StepRecord] = []
        self._last = time.monotonic()

    def add(self, record: StepRecord) -> None:
        """Take a record, and give on what there is when it is time."""
        self._steps.append(record)
        if time.monotonic() - self._last >= self._seconds or len(self._steps) >= _MOST_HELD:
            self.flush()

    def figures(self, records: Sequence[HeldOutRecord | TaskRecord]) -> None:
        """Give on the records of an evaluation, after those of the steps before it."""
        self.flush()
        if self._on_figures is not None:
            self._on_figures(records)

    def flush(self) -> None:
        """Give on what there is."""
        records, self._steps, self._last = self._steps, [], time.monotonic()
        if records:
            self._on_records(records)


def append_records(path: Path, records: Sequence[TrainingRecord]) -> None:
    """Append a JSON line for each record."""
    lines = [json.dumps({"kind": type(record).__name__, **record_values(record)}) + "\n" for record in records]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(lines))


class Tail:
    """Reads the records that `append_records` adds to a file, from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def new(self) -> list[TrainingRecord]:
        """Return the records of the whole lines that came since the last call; none while there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        lines, _, rest = data.rpartition(b"\n")
        self._position += len(data) - len(rest)
        return [_record(json.loads(line)) for line in lines.splitlines()]


def _record(values: dict[str, object]) -> TrainingRecord:
    return _KINDS[str(values.pop("kind"))](**values)  # type: ignore[arg-type]
