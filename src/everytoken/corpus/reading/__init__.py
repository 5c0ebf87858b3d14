"""The rows of one upstream file, each read or named with the reason why not.

`rows` (the parameters), `formats` (by name), `readers` (by format), `lines` (JSON Lines, and what comes out),
`archives` (decompression), `encodings` (to UTF-8), `records` (bytes cut into rows), `parsing` (one row),
`delimited` (CSV and TSV), `tables` (parquet and arrow), `tars` and `members` (tar archives).
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.corpus.reading.archives import BLOCK_BYTES, DamagedFile, decompressed
    from everytoken.corpus.reading.delimited import delimited_rows
    from everytoken.corpus.reading.formats import FORMAT_NAMES, FileKind, Format, format_by_name, may_be_array
    from everytoken.corpus.reading.lines import Row, UnreadableRow, iterate_line_records
    from everytoken.corpus.reading.parsing import json_name, parse_record, parse_row, parse_rows, shown_name
    from everytoken.corpus.reading.readers import count_rows, format_of, iterate_rows
    from everytoken.corpus.reading.records import Oversized, iterate_runs, text_blocks
    from everytoken.corpus.reading.rows import Reading, ReadingLimits, TextEncoding

__getattr__, __dir__ = exports(__name__, __file__)
