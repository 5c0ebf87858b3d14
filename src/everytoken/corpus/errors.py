"""The one exception family of the corpus package: every message says what, where, expected, found and what to do."""

from __future__ import annotations


class CorpusError(Exception):
    """Base of every error that this package raises on purpose."""


class UpstreamError(CorpusError):
    """An upstream cannot be fetched, found or trusted."""


class PlanError(CorpusError):
    """The shard plan does not fit the upstreams, or not the plan that was written before."""


class BadRow(CorpusError):
    """A record cannot become a document; raised where its place is not known, see `RowError`."""


class RowError(CorpusError):
    """A row of an upstream file cannot become a document.

    Args:
        source: name of the source in the parameters.
        path: path of the file inside its upstream.
        row: row number in the file, or None when no row can be named (the file as a whole is bad).
        reason: what is wrong with it.
        remedy: what to do about it.
    """

    def __init__(self, source: str, path: str, row: int | None, reason: str, remedy: str) -> None:
        where = f"source {source!r}, file {path}" + ("" if row is None else f", row {row}")
        super().__init__(f"{where}: {reason}. {remedy}")
        self.source, self.path, self.row, self.reason, self.remedy = source, path, row, reason, remedy

    def __reduce__(self) -> tuple[type[RowError], tuple[str, str, int | None, str, str]]:
        # an exception is rebuilt from its message alone when it comes back from a worker process
        return RowError, (self.source, self.path, self.row, self.reason, self.remedy)


class ScoringError(CorpusError):
    """Documents cannot be scored as the parameters say."""


class SamplingError(CorpusError):
    """Scored documents cannot be divided into splits as the parameters say."""
