"""How far the estimated tokens of a mixture are from those that the tokenizer of the job gave, by source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypedDict

from everytoken.corpus import add_statistics
from everytoken.corpus.selection import MixtureParameters
from everytoken.shards import Shards
from everytoken.tokens.encoding.counts import EncodedCounts
from everytoken.tokens.encoding.tombstones import EncodedStatistics


class EstimateError(TypedDict):
    """Of the documents of a source: tokens by characters, tokens with EOS that were counted, and the first over the
    second - 1.
    """

    estimated_tokens: float
    tokens: int
    relative_error: float


def estimate_errors(tokens: Iterable[Shards], mixture: MixtureParameters | None) -> dict[str, EstimateError]:
    """Return the error of the estimate by source; nothing without a mixture, or where it counts tokens.

    Args:
        tokens: stored parts of `everytoken.tokens.encoding.encoded_parts.encode_part`. Their documents are compared,
            whole: what a cap cuts off counts, and of a document that was taken down only its EOS.
        mixture: that their documents were selected by.
    """
    if mixture is None or mixture.unit == "tokens":
        return {}
    encoded = (part for shards in tokens for part in shards.statistics_as(EncodedStatistics))
    by_source: Mapping[str, EncodedCounts] = add_statistics(part["by_source"] for part in encoded)
    return {source: _error(counts, source, mixture) for source, counts in sorted(by_source.items())}


def _error(counts: EncodedCounts, source: str, mixture: MixtureParameters) -> EstimateError:
    tokens = counts["full_tokens"] + counts["documents"]
    estimated = counts["characters"] / mixture.exact_chars_per_token(source)
    error = float(estimated / tokens - 1)
    return EstimateError(estimated_tokens=float(estimated), tokens=tokens, relative_error=error)


def estimate_lines(errors: Mapping[str, EstimateError]) -> Iterator[str]:
    """Yield a line for each source."""
    for source, error in errors.items():
        yield (
            f"source {source!r}: {error['estimated_tokens']:,.0f} estimated tokens of its documents, "
            f"{error['tokens']:,} by the tokenizer ({error['relative_error']:+.1%})"
        )
