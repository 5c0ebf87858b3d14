"""The rows of one upstream file, each read or named with the reason why not.

`rows` (what comes out, and the parameters), `readers` (by format), `archives` (decompression), `records` (bytes cut
into rows), `parsing` (one row), `tables` (parquet and arrow).
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.corpus.reading.archives import BLOCK_BYTES, DamagedFile, decompressed
    from everytoken.corpus.reading.parsing import json_name, parse_record, parse_row, parse_rows, shown_name
    from everytoken.corpus.reading.readers import (
        FORMAT_NAMES,
        count_rows,
        format_by_name,
        format_of,
        iterate_records,
        iterate_rows,
    )
    from everytoken.corpus.reading.records import Oversized, iterate_runs, text_blocks
    from everytoken.corpus.reading.rows import FileKind, Reading, ReadingLimits, Row, UnreadableRow

__getattr__, __dir__ = exports(__name__, __file__)

__all__ = [
    "BLOCK_BYTES",
    "DamagedFile",
    "FORMAT_NAMES",
    "FileKind",
    "Oversized",
    "Reading",
    "ReadingLimits",
    "Row",
    "UnreadableRow",
    "count_rows",
    "decompressed",
    "format_by_name",
    "format_of",
    "iterate_records",
    "iterate_rows",
    "iterate_runs",
    "json_name",
    "parse_record",
    "parse_row",
    "parse_rows",
    "shown_name",
    "text_blocks",
]
