"""Reading of files that tests write: what is kept, and what is set aside."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from backports import zstd

from everytoken.corpus.reading.lines import Row, UnreadableRow
from everytoken.corpus.reading.readers import iterate_rows
from everytoken.corpus.reading.rows import Reading, ReadingLimits
from everytoken.corpus.rendering.renderers import DocumentRenderer
from everytoken.corpus.upstreams.file import UpstreamFile

TEXT = DocumentRenderer(kind="document", text_column="text", id_columns=("id",), stratum_column=None)
LIMITS = ReadingLimits(max_row_bytes=1 << 20, zstd_window_log_max=27)
CHECKED = {zstd.CompressionParameter.checksum_flag: 1}


def file_at(path: Path, data: bytes | None = None) -> UpstreamFile:
    """Return the file at a path, with these bytes when they are given."""
    if data is not None:
        path.write_bytes(data)
    return UpstreamFile("s", path.name, path, None)


def reading(**changes: Any) -> Reading:
    return Reading.model_validate({"renderer": TEXT, "records": None, "format": None, **changes})


def read(
    file: UpstreamFile, first: int = 0, rows: int | None = None, limits: ReadingLimits = LIMITS, **changes: Any
) -> list[Row | UnreadableRow]:
    return list(iterate_rows(file, reading(**changes), limits, first, rows))


def kept(rows: list[Row | UnreadableRow]) -> list[Any]:
    """Return the records that were read."""
    return [row.record for row in rows if isinstance(row, Row)]


def set_aside(rows: list[Row | UnreadableRow]) -> list[tuple[int, int | None, str]]:
    """Return number, offset and reason of the rows that were not."""
    return [(row.number, row.offset, row.reason) for row in rows if isinstance(row, UnreadableRow)]


def jsonl(*records: Any) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def write_arrow(path: Path, table: pa.Table, *, stream: bool) -> None:
    writer = pa.ipc.new_stream if stream else pa.ipc.new_file
    with writer(path, table.schema) as sink:
        sink.write_table(table, max_chunksize=3)


def write(path: Path, records: list[dict[str, Any]]) -> UpstreamFile:
    """Write records in the format that the name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=3)
    elif path.suffix == ".arrow":
        write_arrow(path, pa.Table.from_pylist(records), stream=True)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    elif path.suffix == ".zst":
        path.write_bytes(zstd.compress(jsonl(*records), options=CHECKED))
    else:
        path.write_bytes(gzip.compress(jsonl(*records)) if path.suffix == ".gz" else jsonl(*records))
    return file_at(path)
