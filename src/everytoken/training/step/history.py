"""What a run has done, as rows: every optimiser step, every look at the held-out documents, every text it wrote.

The rows of a run lie in its checkpoints, so a run that was cut and continued ends with the rows of one that was not.
Seconds are measurements: a record carries them to whoever watches, the files do not. Further terms of a family's loss
are further columns of the steps. Importing this loads no torch.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.training.errors import CheckpointError

HISTORY_FILE = "history.parquet"
HELD_OUT_FILE = "held_out.parquet"
SAMPLES_FILE = "samples.parquet"


def _schema(**types: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


HISTORY = _schema(
    step=pa.int64(),
    tokens=pa.int64(),
    loss_tokens=pa.int64(),
    loss=pa.float64(),
    lr=pa.float64(),
    grad_norm=pa.float64(),
    skipped=pa.bool_(),
)
HELD_OUT = _schema(step=pa.int64(), source=pa.string(), bits_per_byte=pa.float64(), nats=pa.float64(), bytes=pa.int64())
_ARRAY_TYPES = {pa.int64(): "q", pa.float64(): "d", pa.bool_(): "b"}
SAMPLES = _schema(step=pa.int64(), prompt=pa.string(), text=pa.string())


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one optimiser step did; all but ``seconds`` is deterministic.

    Of a skipped step loss or norm is infinite or not a number, and nothing was updated. Of padding alone, both are not.
    """

    step: int  # 0-based
    tokens: int  # predictions read up to and with this step: (step + 1) * batch_size * seq_length
    loss_tokens: int  # predictions of this step that count in the loss
    loss: float  # nats per counted prediction, before the update
    lr: float
    grad_norm: float  # before clipping
    skipped: bool
    seconds: float = 0.0
    # further terms of the loss by name, as the loss nats per counted prediction with their weight, not part of ``loss``
    terms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeldOutRecord:
    """The loss on the held-out documents of one source after an optimiser step (0-based)."""

    step: int
    source: str
    bits_per_byte: float
    nats: float  # sum over the documents' predictions
    bytes: int  # UTF-8 bytes of the documents


def total_bits_per_byte(records: Sequence[HeldOutRecord]) -> float:
    """Return the bits per byte of the documents of all records together, of one step."""
    return sum(record.nats for record in records) / math.log(2) / sum(record.bytes for record in records)


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """What the model wrote after a prompt, after an optimiser step (0-based)."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """The figures of a task after an optimiser step (0-based), and what tells the task from others of its name."""

    step: int
    task: str
    metrics: dict[str, float]
    version: int | float | str | None
    sha256: str  # of its configuration
    examples: int | None
    lm_eval: str


TrainingRecord = StepRecord | HeldOutRecord | SampleRecord | TaskRecord
_R = TypeVar("_R", StepRecord, HeldOutRecord, SampleRecord)


class StepHistory:
    """What the steps of a run did, without their seconds: columns of numbers, 49 bytes of memory a step.

    ``terms``: names of the further terms of the loss; each is a column more, of 8 bytes a step.
    """

    def __init__(self, terms: Sequence[str] = ()) -> None:
        self._schema = _with_terms(terms)
        self._columns = {column.name: array(_ARRAY_TYPES[column.type]) for column in self._schema}

    @classmethod
    def read(cls, path: Path) -> StepHistory:
        """Return what `write` wrote; raise ``CheckpointError`` for another file."""
        table = _open_table(path)
        history = cls(term_names(table.column_names))
        _check_columns(path, table, history._schema)
        for name, column in history._columns.items():
            for chunk in table[name].chunks:
                column.frombytes(chunk.to_numpy(zero_copy_only=False).tobytes())
        return history

    def write(self, path: Path) -> None:
        """Write it as `write_records` would write the records."""
        pq.write_table(pa.table({name: self.column(name) for name in self._columns}, schema=self._schema), path)
        pa.default_memory_pool().release_unused()  # it would keep several times the history

    def append(self, record: StepRecord) -> None:
        """Add the record of the next step; raise ``CheckpointError`` for one of other terms than those before."""
        if [*record.terms] != (known := term_names(self._columns)):
            raise CheckpointError(
                f"step {record.step} has the further losses {[*record.terms]}, the history of the run has {known}: the "
                "steps before it were done by another version of the model. Train with that version, or anew"
            )
        values: dict[str, Any] = {**record_values(record), **record.terms}
        for name, column in self._columns.items():
            column.append(values[name])

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self._columns["step"])

    def column(self, name: str) -> np.ndarray:
        """Return a view of a column, (steps,); while it exists nothing can be appended."""
        column = self._columns[name]
        return np.frombuffer(column, bool if self._schema.field(name).type == pa.bool_() else column.typecode)

    @property
    def last(self) -> StepRecord:
        """The record of the last step."""
        values = {name: self.column(name)[-1].item() for name in self._columns}
        terms = {name: values.pop(name) for name in term_names(self._columns)}
        return StepRecord(**values, terms=terms)

    @property
    def skipped_in_a_row(self) -> int:
        """Skipped steps at the end, without those of padding alone."""
        done = np.flatnonzero(~self.column("skipped"))
        after = int(done[-1]) + 1 if len(done) else 0
        return int((self.column("loss_tokens")[after:] > 0).sum())


def write_records(path: Path, records: Iterable[_R], schema: pa.Schema) -> None:
    """Write records as parquet; equal records give equal bytes."""
    rows = list(records)
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    pq.write_table(pa.table(columns, schema=schema), path)


def read_records(path: Path, kind: type[_R], schema: pa.Schema) -> list[_R]:
    """Return what `write_records` wrote; raise ``CheckpointError`` for another file."""
    table = _read_table(path, schema)
    return [kind(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def term_names(columns: Iterable[str]) -> list[str]:
    """Return the further terms of the loss among the columns of a history."""
    return [name for name in columns if name not in HISTORY.names]


def _with_terms(terms: Sequence[str]) -> pa.Schema:
    return pa.schema([*HISTORY, *_schema(**dict.fromkeys(terms, pa.float64()))])


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    table = _open_table(path)
    _check_columns(path, table, schema)
    return table


def _open_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(f"{path} is missing or damaged: {error}") from error


def _check_columns(path: Path, table: pa.Table, schema: pa.Schema) -> None:
    if not table.schema.equals(schema):
        raise CheckpointError(f"{path} has the columns {table.schema.names}, expected {schema.names}")


def record_values(record: TrainingRecord) -> dict[str, object]:
    """Return name and value of each field."""
    return {field.name: getattr(record, field.name) for field in fields(record)}
