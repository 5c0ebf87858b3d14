"""Tokenization: a tokenizer, an engine proven equal, the ids of every document, and the two streams of windows."""

import logging

import pandas as pd
from plotly.graph_objects import Figure

from everytoken.address import ADDRESS_COLUMNS
from everytoken.contract import plan_given_tokenizer
from everytoken.corpus import NOTHING_EXPECTED, ExpectParameters, add_statistics
from everytoken.corpus.sampling import EstimatedTokens, SubsamplingParameters
from everytoken.parameters import IngestionParameters, TokenizationParameters, TrainedTokenizer
from everytoken.pipelines.tokenization.plans import check_claims, plan_certificate
from everytoken.reports import tokenization_figure
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.encoding import (
    cut_lines,
    encode_part,
    estimate_errors,
    estimate_lines,
    length_histograms,
    share_at_cap,
    tokenization_summary,
    tokenization_table,
    tombstones_of,
)
from everytoken.tokens.streams import (
    SIDECAR,
    CompactStatistics,
    PaddedStatistics,
    longest_document,
    write_annotated_stream,
    write_compact_stream,
)
from everytoken.tokens.tokenizer import TokenizerIds, train_tokenizer

logger = logging.getLogger(__name__)

COMPACT_COLUMNS = ("id", *ADDRESS_COLUMNS)
SIDECAR_COLUMNS = tuple("id" if name == "doc_id" else name for name in SIDECAR.names if name != "token_length")


def make_tokenizer(annotated: Shards, unannotated: Shards, parameters: TokenizationParameters) -> Artifact:
    """Train a byte-level BPE tokenizer on the documents that will be trained on, or take one that exists."""
    chosen = parameters.tokenizer
    if not isinstance(chosen, TrainedTokenizer):
        return plan_given_tokenizer(chosen, parameters)
    return plan_artifact(
        train_tokenizer,
        texts=[annotated, unannotated],
        vocab_size=chosen.vocab_size,
        min_frequency=chosen.min_frequency,
        special_tokens=chosen.special_tokens,
        eos_token=parameters.eos_token,
    )


def prove_engines(
    tokenizer: Artifact,
    annotated: Shards,
    unannotated: Shards,
    parameters: TokenizationParameters,
    expect: ExpectParameters = NOTHING_EXPECTED,
) -> Artifact:
    """Check that the tokenizer is the expected one; compare the fast engines that are installed with the reference.

    For the fastest one of a small corpus nothing is compared: that would cost more than it saves.
    """
    expect.check(tokenizer_sha256=tokenizer.statistics_as(TokenizerIds)["sha256"])
    check_claims(tokenizer, parameters)
    return plan_certificate(parameters.encoding_rules(tokenizer), [annotated, unannotated], parameters)


def encode_unannotated(
    unannotated: Shards,
    exclusions: Shards,
    tokenizer: Artifact,
    certificate: Artifact,
    parameters: TokenizationParameters,
) -> Shards:
    """Encode documents of the compact stream, whole or cut to seq_length, and an EOS; excluded ones as EOS alone."""
    return unannotated.zip(exclusions).map(
        encode_part,
        **parameters.encoding(tokenizer, certificate, unannotated.rows),
        max_tokens=parameters.max_compact_tokens,
        columns=COMPACT_COLUMNS,
        keep_lengths=True,
    )


def encode_annotated(
    annotated: Shards,
    exclusions: Shards,
    tokenizer: Artifact,
    certificate: Artifact,
    parameters: TokenizationParameters,
) -> Shards:
    """Encode documents of the annotated stream: the reflection budget stays free; the sidecar needs their texts."""
    return annotated.zip(exclusions).map(
        encode_part,
        **parameters.encoding(tokenizer, certificate, annotated.rows),
        max_tokens=parameters.max_annotated_tokens,
        columns=SIDECAR_COLUMNS,
        keep_lengths=False,
    )


def pack_compact_stream(
    unannotated_tokens: Shards, tokenizer: Artifact, parameters: TokenizationParameters
) -> Artifact:
    """Concatenate shuffled documents, cut windows of seq_length + 1, shuffle the windows."""
    tombstones = tombstones_of(unannotated_tokens)
    return plan_artifact(
        write_compact_stream,
        tokens=unannotated_tokens,
        tokenizer=tokenizer,
        seq_length=parameters.seq_length,
        seed=parameters.seed,
        shuffle_block=parameters.shuffle_block,
        shuffle_memory=parameters.shuffle_memory,
        **({"tombstones": tombstones} if tombstones else {}),
    )


def pad_annotated_stream(annotated_tokens: Shards, tokenizer: Artifact, parameters: TokenizationParameters) -> Artifact:
    """Put one document into each window, in seeded order, with a sidecar row for each."""
    return plan_artifact(
        write_annotated_stream,
        tokens=annotated_tokens,
        tokenizer=tokenizer,
        seq_length=parameters.seq_length,
        seed=parameters.seed,
        shuffle_memory=parameters.shuffle_memory,
    )


def report_tokenization(
    tokenizer: Artifact,
    annotated: Shards,
    unannotated: Shards,
    annotated_tokens: Shards,
    unannotated_tokens: Shards,
    annotated_stream: Artifact,
    compact_stream: Artifact,
    subsampling: SubsamplingParameters,
    ingestion: IngestionParameters,
    expect: ExpectParameters = NOTHING_EXPECTED,
) -> tuple[dict[str, object], pd.DataFrame, Figure]:
    """Check that no document was lost and that lengths are as expected; return counts beside what was estimated, the
    table of them, and the figure.
    """
    tokens = {"annotated": annotated_tokens, "unannotated": unannotated_tokens}
    drawn = {"annotated": annotated, "unannotated": unannotated}
    summary = tokenization_summary(
        tokens,
        compact_stream=compact_stream.statistics_as(CompactStatistics),
        annotated_stream=annotated_stream.statistics_as(PaddedStatistics),
        chars_per_token=subsampling.chars_per_token,
        estimated_tokens={
            split: add_statistics(documents.statistics_as(EstimatedTokens)).get("estimated_tokens", 0.0)
            for split, documents in drawn.items()
        },
    )
    if errors := estimate_errors(tokens.values(), ingestion.active_mixture):
        summary["mixture_estimate"] = errors
        for line in estimate_lines(errors):
            logger.info("%s", line)
    table = tokenization_table(tokens)
    if expect.expects("longest_document"):  # for which all lengths are read
        expect.check(longest_document=longest_document(annotated_stream))
    expect.check(share_at_cap=share_at_cap(table, "annotated"))
    for line in cut_lines(table):
        logger.warning("%s", line)
    figure = tokenization_figure(table, length_histograms(tokens))
    return {"vocab_size": tokenizer.statistics_as(TokenizerIds)["vocab_size"], **summary}, table, figure
