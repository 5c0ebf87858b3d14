"""What tokenization did, as a table, as numbers, and as a figure: all from the ledgers, no token is read again.

Counts are those of `everytoken.tokens.encoding.encoded_parts`. *Full tokens* are content tokens before the cut, without
EOS. Where a ratio has nothing to divide by it is missing, not 0.

``chars_per_token`` is characters by full tokens over all documents that were drawn, which is what the parameter
``subsampling.chars_per_token`` estimates: the next draw of this corpus with this tokenizer can be told it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from everytoken.corpus import add_statistics
from everytoken.shards import Shards
from everytoken.tokens.encoding.language_bands import BANDS
from everytoken.tokens.encoding.tombstones import TOMBSTONES, EncodedStatistics
from everytoken.tokens.errors import StreamError

BOTH = "both"
"""Name of the lines that are of all splits together."""

_COUNTS = (
    *("documents", "characters", "utf8_bytes", "full_tokens", "tokens", "eos", "at_cap_documents"),
    *("truncated_documents", "cut_tokens"),
    *("empty_documents", "lossy_documents", "lossy_bytes", "normalized_documents", "special_documents", "special_ids"),
)
_MUCH_CUT = 0.1
_GROUPS = {"source": "by_source", "band": "by_band"}
_HISTOGRAM = "length_histogram"


class StreamTokens(TypedDict):
    """What the statistics of a stream of windows say of its documents."""

    documents: int
    tokens: int
    remainder_tokens: int


class PaddedTokens(StreamTokens):
    """Those of one with a document a window."""

    padding_tokens: int


def tokenization_table(tokens: Mapping[str, Shards]) -> pd.DataFrame:
    """Return counts and ratios of each split and of `BOTH`: lines of each source and language band, and one of all.

    Args:
        tokens: the encoded documents of each split.

    Returns:
        Columns: ``split``, ``group`` (source, band or all: what the line is of), ``source``, ``band`` (empty where its
        group has none), the counts, and

        * ``tokens_per_byte``: full tokens by UTF-8 bytes
        * ``chars_per_token``: characters by full tokens
        * ``share_at_cap``: documents that are as long as the cap allows, by documents
        * ``lossy_share``, ``special_share``: documents that lost bytes, or spell a special token, by documents

    Raises:
        StreamError: the lines of a split do not add up to its documents.
    """
    sums = {split: _sums(split, encoded) for split, encoded in tokens.items()}
    sums[BOTH] = add_statistics(sums.values())
    return pd.DataFrame(line for split, of in sums.items() for line in _lines(split, of))


def tokenization_summary(
    tokens: Mapping[str, Shards],
    *,
    compact_stream: StreamTokens,
    annotated_stream: PaddedTokens,
    chars_per_token: float,
    estimated_tokens: Mapping[str, float],
) -> dict[str, object]:
    """Return figures as nested numbers: what was estimated before the draw beside what was measured.

    Args:
        tokens: the encoded documents of the splits ``annotated`` and ``unannotated``.
        compact_stream: statistics of the stream of ``unannotated``.
        annotated_stream: statistics of the stream of ``annotated``.
        estimated_tokens: of each split, as the subsampling estimated them (with its own cap).

    Returns:
        By split the counts, ratios (see `tokenization_table`) and estimated tokens; ``chars_per_token``: estimated,
        measured, and measured by split and by source; ``compact_stream`` with ``remainder_share`` (tokens that are in
        no window because they fill none); ``annotated_stream`` with ``padding_share`` (of all tokens in windows).

    Raises:
        StreamError: the streams do not hold these documents, or counts do not add up.
    """
    sums = {split: _sums(split, encoded) for split, encoded in tokens.items()}
    both = add_statistics(sums.values())
    _require_streams(sums, compact_stream, annotated_stream)
    in_windows = annotated_stream["tokens"] + annotated_stream["documents"] + annotated_stream["padding_tokens"]
    to_windows = compact_stream["tokens"] + compact_stream["remainder_tokens"]
    measured = {
        "estimated": chars_per_token,
        "measured": _ratios(both)["chars_per_token"],
        "by_split": {split: _ratios(of)["chars_per_token"] for split, of in sums.items()},
        "by_source": {source: _ratios(of)["chars_per_token"] for source, of in both["by_source"].items()},
    }
    summary: dict[str, object] = {
        split: {
            **_figures(of),
            **_ratios(of),
            "estimated_tokens": estimated_tokens[split],
        }
        for split, of in sums.items()
    }
    summary |= {
        "chars_per_token": measured,
        "compact_stream": {
            **_figures(compact_stream),
            "remainder_share": _ratio(compact_stream["remainder_tokens"], to_windows),
        },
        "annotated_stream": {
            **_figures(annotated_stream),
            "padding_share": _ratio(annotated_stream["padding_tokens"], in_windows),
        },
    }
    return _without_missing(summary)


def _figures(statistics: Mapping[str, object]) -> dict[str, object]:
    """Return what is no mapping: counts, and no groups of them and no tokenizer."""
    return {name: value for name, value in statistics.items() if not isinstance(value, Mapping)}


def length_histograms(tokens: Mapping[str, Shards]) -> dict[str, list[int]]:
    """Return documents by length for each split: entry k are those with 2**k to 2**(k+1) - 1 full tokens."""
    of_parts = {
        split: [part["length_histogram"] for part in encoded.statistics_as(EncodedStatistics)]
        for split, encoded in tokens.items()
    }
    return {
        split: np.sum(histograms, axis=0, dtype=np.int64).reshape(-1).tolist() for split, histograms in of_parts.items()
    }


def share_at_cap(table: pd.DataFrame, split: str) -> float | None:
    """Return the share of a split's documents that are as long as the cap allows; None where it has none.

    Args:
        table: of `tokenization_table`.
    """
    (line,) = table[(table["split"] == split) & (table["group"] == "all")].to_dict("records")
    return float(line["share_at_cap"]) if line["documents"] else None


def cut_lines(table: pd.DataFrame) -> list[str]:
    """Return a line for each split of which more than `_MUCH_CUT` of the tokens were cut.

    Args:
        table: of `tokenization_table`.
    """
    whole = table[(table["group"] == "all") & (table["split"] != BOTH)].to_dict("records")
    shares = {line["split"]: _ratio(line["cut_tokens"], line["full_tokens"]) for line in whole}
    remedies = {"unannotated": "tokenization.long_documents: split keeps them all"}
    return [
        f"{share:.0%} of the tokens of {split} documents are beyond seq_length and cut: no window has them; "
        + remedies.get(split, "a larger tokenization.seq_length keeps more")
        for split, share in shares.items()
        if share > _MUCH_CUT
    ]


def _sums(split: str, encoded: Shards) -> dict[str, Any]:
    """Return the counts of a split, in all and by source and band, as far as they are counts and add up."""
    no_counts = (_HISTOGRAM, TOMBSTONES)
    parts = [{key: value for key, value in part.items() if key not in no_counts} for part in encoded.statistics]
    total = add_statistics([{"documents": 0, **{key: {} for key in _GROUPS.values()}}, *parts])
    if total["documents"] != encoded.rows:
        raise StreamError(
            f"the {split} documents have {encoded.rows:,} rows, their ledger counts {total['documents']:,}. {_REMEDY}"
        )
    for group, key in _GROUPS.items():
        added = add_statistics(total[key].values())
        for name, count in added.items():
            if count != total[name]:
                raise StreamError(
                    f"the {split} documents have {total[name]:,} {name}, those of each {group} add up to {count:,}. "
                    f"{_REMEDY}"
                )
        if not added and encoded.rows:
            raise StreamError(f"the {split} documents have no counts by {group}. {_REMEDY}")
    return total


_REMEDY = "The store is of another version, or was edited: remove it and encode the documents again."


def _require_streams(sums: Mapping[str, Any], compact: StreamTokens, annotated: StreamTokens) -> None:
    of, packed = sums["unannotated"], compact["tokens"] + compact["remainder_tokens"]
    padded = sums["annotated"]
    for stream, what, expected, found in (
        ("compact", "documents", of.get("documents", 0), compact["documents"]),
        ("compact", "tokens with EOS", of.get("tokens", 0) + of.get("eos", 0), packed),
        ("annotated", "documents", padded.get("documents", 0), annotated["documents"]),
        ("annotated", "tokens", padded.get("tokens", 0), annotated["tokens"]),
    ):
        if expected != found:
            raise StreamError(
                f"the {stream} stream is of {found:,} {what}, its documents have {expected:,}. It was not made of "
                f"them: run the tokenization pipeline again."
            )


def _lines(split: str, of: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    names = {"split": split, "group": "all", "source": "", "band": ""}
    bands = sorted(of["by_band"].items(), key=lambda line: BANDS.index(line[0]))
    for group, members in (("source", of["by_source"].items()), ("band", bands)):
        for name, counts in members:
            yield {**names, "group": group, group: name, **_counts(counts), **_ratios(counts)}
    yield {**names, **_counts(of), **_ratios(of)}


def _counts(of: Mapping[str, Any]) -> dict[str, int]:
    return {name: of.get(name, 0) for name in _COUNTS}


def _ratios(of: Mapping[str, Any]) -> dict[str, float]:
    documents, full_tokens = of.get("documents", 0), of.get("full_tokens", 0)
    return {
        "tokens_per_byte": _ratio(full_tokens, of.get("utf8_bytes", 0)),
        "chars_per_token": _ratio(of.get("characters", 0), full_tokens),
        "share_at_cap": _ratio(of.get("at_cap_documents", 0), documents),
        "lossy_share": _ratio(of.get("lossy_documents", 0), documents),
        "special_share": _ratio(of.get("special_documents", 0), documents),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def _at(histogram: Sequence[int], k: int) -> int:
    return histogram[k] if k < len(histogram) else 0


def _without_missing(tree: Mapping[str, Any]) -> dict[str, object]:
    """Return a tree of numbers without those that are None or not a number, and without branches that had no other."""
    kept = {key: _without_missing(value) if isinstance(value, Mapping) else value for key, value in tree.items()}
    return {key: value for key, value in kept.items() if value is not None and value == value and value != {}}
