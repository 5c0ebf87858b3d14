"""Split files: the documents of a split with their texts, for other programs. A manifest lists the same without texts.

One file a part, with parts and rows in the order of the manifest. The columns are those of the published split files,
then the address. A document that was taken down keeps its row, with an empty text and no id.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from everytoken.address import ADDRESS_COLUMNS, Address
from everytoken.corpus.documents import SPLIT_DOCUMENTS
from everytoken.corpus.exclusion import excluded_addresses, excluded_rows
from everytoken.shards import Part, Rows, versioned

_PUBLISHED = ("text", "id", "source", "safety_score", "has_annotation", "is_bad")
_COLUMNS = (*_PUBLISHED, *(name for name in ADDRESS_COLUMNS if name not in _PUBLISHED))
SPLIT_FILE = pa.schema([SPLIT_DOCUMENTS.field(name) for name in _COLUMNS])


class SplitFileStatistics(TypedDict):
    """Statistics of `split_file_part`."""

    rows: int
    utf8_bytes: int  # of the texts
    excluded: int


@versioned("split_file_part", 1)
def split_file_part(part: Part, exclusions: Part) -> Rows:
    """Return the documents of a part of a split with their texts, of schema `SPLIT_FILE`."""
    return Rows(SPLIT_FILE, _with_texts(part, excluded_addresses(exclusions)))


def _with_texts(part: Part, excluded: Mapping[Address, Any]) -> Generator[pa.RecordBatch, None, SplitFileStatistics]:
    counted = SplitFileStatistics(rows=0, utf8_bytes=0, excluded=0)
    for batch in part.batches(_COLUMNS):
        columns = {name: batch.column(name) for name in _COLUMNS}
        is_excluded = pa.array(excluded_rows(batch, excluded))
        columns["text"] = pc.if_else(is_excluded, pa.scalar("", pa.large_string()), columns["text"])
        columns["id"] = pc.if_else(is_excluded, pa.scalar(None, pa.large_string()), columns["id"])
        counted["rows"] += batch.num_rows
        counted["utf8_bytes"] += pc.sum(pc.binary_length(columns["text"])).as_py()
        counted["excluded"] += is_excluded.true_count
        yield pa.RecordBatch.from_arrays(list(columns.values()), schema=SPLIT_FILE)
    return counted
