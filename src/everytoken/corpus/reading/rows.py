"""How the files of a source are read (`Reading`), and within which bounds (`ReadingLimits`)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from everytoken.corpus.reading.formats import FileKind
from everytoken.corpus.rendering import Renderer


class Reading(BaseModel):
    """How the files of one source are read.

    Attributes:
        renderer: how a record becomes a document; it says which columns are wanted.
        records: for ``json``: the key whose value holds the records, or null when the whole file does. Null for every
            other format.
        format: the format of every file of the source, or null to go by the name: ``.jsonl``, ``.json``, ``.txt``,
            ``.parquet``, ``.arrow``; ``.gz`` and ``.zst`` after the first three. A file of ``txt`` is one row, whose
            ``text`` is all that it holds. ``.json.gz`` and ``.json.zst`` are JSON Lines, as
            Dolma's are: give ``json`` for an array in such a file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    renderer: Renderer
    records: str | None
    format: FileKind | None


class ReadingLimits(BaseModel):
    """Bounds of memory.

    Attributes:
        max_row_bytes: a row of JSON with more bytes than this is set aside as ``row_too_large``, and a row of parquet
            or arrow whose wanted strings have more (and 8 for each value in a list or struct). Reading takes up to
            seven times this for a row that is mostly text (one emoji in a long text is the worst), up to sixty times
            for one of nothing but brackets; a parquet page is held whole, however large a writer made it.
        zstd_window_log_max: frames of ``.zst`` may need ``2**zstd_window_log_max`` bytes of history; 27 is what every
            reader allows, ``zstd --long=31`` writes frames that need 31 (2 GiB).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_row_bytes: PositiveInt
    zstd_window_log_max: int = Field(ge=10, le=31)
