"""How the files of a source are read (`Reading`), and within which bounds (`ReadingLimits`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt

from everytoken.corpus.personal_data import PersonalDataRule
from everytoken.corpus.reading.encodings import known_encoding
from everytoken.corpus.reading.formats import FileKind
from everytoken.corpus.rendering import Renderer

TextEncoding = Annotated[str, AfterValidator(known_encoding)]


class Reading(BaseModel):
    """How the files of one source are read.

    Attributes:
        renderer: how a record becomes a document; it says which columns are wanted.
        records: for ``json``: the key whose value holds the records, or null when the whole file does. Null for every
            other format.
        format: the format of every file of the source, or null to go by the name, see `formats.FORMAT_NAMES`. A file
            of ``txt`` is one row: its ``text`` is all that it holds, its ``id`` the path. ``objects`` are JSON objects
            one after the other, on one line or many: one object a file too. ``.json.gz`` (or another compression) has
            JSON Lines, as Dolma's, or an array. A ``.tar`` has files, or with ``webdataset`` records of several
            members: see `members`.
        encoding: of the text, such as ``cp1252``; null for UTF-8. A file with a byte that it lacks is an error. Offsets
            of rows then count the bytes of the text as UTF-8.
        personal_data: what is done about e-mail addresses and the like in the documents, or null for nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    renderer: Renderer
    records: str | None
    format: FileKind | None
    encoding: TextEncoding | None = Field(default=None, exclude_if=lambda value: value is None)
    personal_data: PersonalDataRule | None = Field(default=None, exclude_if=lambda value: value is None)


class ReadingLimits(BaseModel):
    """Bounds of memory.

    Attributes:
        max_row_bytes: a row of JSON with more bytes than this is set aside as ``row_too_large``, and a row of parquet
            or arrow whose wanted strings have more (and 8 for each value in a list or struct). Reading takes up to
            seven times this for a row that is mostly text (one emoji in a long text is the worst), up to sixty times
            for one of nothing but brackets; a parquet page is held whole, however large a writer made it.
        zstd_window_log_max: frames of ``.zst`` may need ``2**zstd_window_log_max`` bytes of history; 27 is what every
            reader allows, ``zstd --long=31`` writes frames that need 31 (2 GiB). It bounds the
            dictionaries of ``.xz`` too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_row_bytes: PositiveInt
    zstd_window_log_max: int = Field(ge=10, le=31)
