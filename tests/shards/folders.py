"""Folders as values, to compare them, and as earlier versions wrote them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from everytoken.shards import LEDGER_FILE, Ledger, Part, PartRecord, Rows, Store, write_rows


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below ``folder``, hidden ones too, and b"" for every empty folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file():
            found[name] = path.read_bytes()
        elif not any(path.iterdir()):
            found[f"{name}/"] = b""
    return found


def copy_columns(root: Path) -> None:
    """Write the parts of a store as version 0.1.0 did, which copied the columns of the parts that they extend."""
    store = Store(root)
    ledger, shards = store.ledger(), store.load()
    records = tuple(_copied(root, part, record) for part, record in zip(shards, ledger.parts, strict=True))
    Ledger(ledger.holds, ledger.recipe, records).write(root / LEDGER_FILE)


def _copied(root: Path, part: Part, record: PartRecord) -> PartRecord:
    def batches() -> Generator[pa.RecordBatch, None, Any]:
        yield from part.batches()
        return record.statistics

    path = root / f"{part.name}.parquet"
    written = write_rows(Rows(part.schema, batches()), path).part
    assert written.content_digest == record.content_digest
    return replace(record, bytes=written.bytes, sha256=written.sha256, extended=None)
