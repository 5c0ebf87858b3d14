"""The one exception family of the corpus package: every message says what, where, expected, found and what to do."""

from __future__ import annotations

# Why a row is no document although its file can be read. They count against ``max_bad_share``.
BAD_ROW_REASONS = {
    "blank_line": "a line with nothing but white space",
    "not_utf8": "bytes that are not UTF-8",
    "not_json": "not valid JSON",
    "duplicate_key": "a JSON object that names a key twice",
    "not_finite": "NaN or Infinity, which are no JSON",
    "not_an_object": "JSON, but not an object",
    "wrong_columns": "a row of CSV or TSV with more or fewer fields than the header",
    "row_too_large": "more bytes than max_row_bytes",
    "no_text": "no field for the text",
    "text_null": "the text is null",
    "text_not_string": "the text is of another type than string",
    "lone_surrogate": "half of a surrogate pair, which has no UTF-8",
    "cannot_render": "not of the shape that the renderer reads",
}

# A file of an archive that is no text: it is set aside, and is not bad.
OTHER_MEMBER = "other_member"

MAX_DETAIL = 500  # characters


class CorpusError(Exception):
    """Base of every error that this package raises on purpose."""


class UpstreamError(CorpusError):
    """An upstream cannot be fetched, found or trusted."""


class NoFilesError(UpstreamError):
    """An upstream is there, and has none of the files that are wanted."""


class PlanError(CorpusError):
    """The shard plan does not fit the upstreams, or not the plan that was written before."""


class BadRow(CorpusError):
    """A record cannot become a document; raised where its place is not known.

    Args:
        reason: one of `BAD_ROW_REASONS`, or of the filters that a renderer has (`CHAT_REASONS`); counts and reports go
            by it.
        detail: what exactly is wrong with this row.
    """

    def __init__(self, reason: str, detail: str) -> None:
        if len(detail) > MAX_DETAIL:  # it may quote keys of the row, which may be of any size
            detail = f"{detail[:MAX_DETAIL]}..."
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail

    def __reduce__(self) -> tuple[type[BadRow], tuple[str, str]]:
        return BadRow, (self.reason, self.detail)


class RowError(CorpusError):
    """A row of an upstream file cannot become a document.

    Args:
        path: path of the file inside its upstream.
        row: row number in the file, or None when no row can be named (the file as a whole is bad).
    """

    def __init__(self, source: str, path: str, row: int | None, reason: str, remedy: str) -> None:
        where = f"source {source!r}, file {path}" + ("" if row is None else f", row {row}")
        super().__init__(f"{where}: {reason}. {remedy}")
        self.source, self.path, self.row, self.reason, self.remedy = source, path, row, reason, remedy

    def __reduce__(self) -> tuple[type[RowError], tuple[str, str, int | None, str, str]]:
        # an exception is rebuilt from its message alone when it comes back from a worker process
        return RowError, (self.source, self.path, self.row, self.reason, self.remedy)


class ExpectationError(CorpusError):
    """The corpus is not the one that the parameters expect."""


class SelectionError(CorpusError):
    """Documents cannot be selected as the parameters say."""


class ScoringError(CorpusError):
    """Documents cannot be scored as the parameters say."""


class LanguageError(CorpusError):
    """Languages cannot be identified as the parameters say."""


class SamplingError(CorpusError):
    """Scored documents cannot be divided into splits as the parameters say."""


class ExclusionError(CorpusError):
    """Documents cannot be taken down as the list says."""
