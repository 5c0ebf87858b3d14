"""Documents become ids: the encoder, the part function, what is counted, the report."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.encoding.counts import COUNTED, EncodedCounts, counts_in, document_counts, sum_counts
    from everytoken.tokens.encoding.encoded_parts import encode_part
    from everytoken.tokens.encoding.encoder import DocumentEncoder, Encoded, SpelledSpecialToken, open_encoder
    from everytoken.tokens.encoding.estimate_error import EstimateError, estimate_errors, estimate_lines
    from everytoken.tokens.encoding.language_bands import BANDS
    from everytoken.tokens.encoding.recheck import EngineDiffers, Recheck, Rechecker
    from everytoken.tokens.encoding.report import (
        BOTH,
        cut_lines,
        length_histograms,
        share_at_cap,
        tokenization_summary,
        tokenization_table,
    )
    from everytoken.tokens.encoding.spans import TokenSpan, TokenSpans, open_spans
    from everytoken.tokens.encoding.token_counts import (
        TOKEN_COUNTS,
        CountedTokens,
        count_part_tokens,
    )
    from everytoken.tokens.encoding.tombstones import TOMBSTONES, EncodedStatistics, tombstones_of

__getattr__, __dir__ = exports(__name__, __file__)
