"""Packing: flat ids in files of one size, every source in proportion in each."""

import logging

from everytoken.address import ADDRESS_COLUMNS
from everytoken.contract import data_configuration
from everytoken.parameters import IngestionParameters, PackingParameters, TokenizationParameters
from everytoken.provenance.indexes import index_raw_shards, made_stream
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.checks import require, verify
from everytoken.tokens.encoding import encode_part, estimate_errors, estimate_lines
from everytoken.tokens.streams import write_raw_shards
from everytoken.tokens.tokenizer import TokenizerIds

logger = logging.getLogger(__name__)


def encode_whole_documents(
    documents: Shards,
    exclusions: Shards,
    tokenizer: Artifact,
    certificate: Artifact,
    tokenization: TokenizationParameters,
) -> Shards:
    """Encode documents for raw shards: content and EOS, and no document is cut; excluded ones as EOS."""
    return documents.zip(exclusions).map(
        encode_part,
        **tokenization.encoding(tokenizer, certificate, documents.rows),
        max_tokens=None,
        columns=("id", *ADDRESS_COLUMNS),
        keep_lengths=False,
    )


def pack_raw_shards(
    unannotated: Shards, annotated: Shards, tokenizer: Artifact, parameters: PackingParameters
) -> Artifact:
    """Interleave the sources of both splits in proportion to their tokens, and cut shards."""
    return plan_artifact(
        write_raw_shards,
        tokens=[unannotated, annotated],
        tokenizer=tokenizer,
        shard_size_tokens=parameters.shard_size_tokens,
        dtype=parameters.dtype,
        seed=parameters.seed,
        shuffle_memory=parameters.shuffle_memory,
        names=["unannotated", "annotated"],
        **parameters.cutting,
    )


def say_raw_shards_are_made(raw_shards: Artifact) -> Artifact:
    """Let nodes that also run without raw shards wait for them in a run that makes them."""
    return raw_shards


def make_raw_shards_index(
    unannotated: Shards, annotated: Shards, raw_shards: Artifact, parameters: PackingParameters
) -> Artifact:
    """Find the order of the documents again, and keep it both ways."""
    return plan_artifact(
        index_raw_shards,
        lengths={"unannotated": unannotated, "annotated": annotated},
        order=("unannotated", "annotated"),
        stream=made_stream(raw_shards),
        seed=parameters.seed,
        shard_size_tokens=parameters.shard_size_tokens,
        memory=parameters.shuffle_memory,
        **parameters.cutting,
    )


def describe_configuration(
    raw_shards: Artifact,
    tokenizer: Artifact,
    ingestion: IngestionParameters,
    tokenization: TokenizationParameters,
    parameters: PackingParameters,
) -> dict[str, object]:
    """Return the configuration of the shards with hashes of it, for the trainers that read them."""
    ids = tokenizer.statistics_as(TokenizerIds)
    return data_configuration(ingestion, tokenization, parameters, ids, raw_shards.root_digest)


def verify_raw_shards(
    raw_shards: Artifact, unannotated: Shards, annotated: Shards, ingestion: IngestionParameters
) -> dict[str, object]:
    """Read every shard again, and stop at what differs; return counts of shards, tokens, documents, and by source.

    Where the mixture was estimated, log and return how far its tokens are from those of the documents.
    """
    folder = raw_shards.folder
    assert folder is not None, "raw shards are loaded from a store"
    checks = verify(folder, "full", with_ledger=True, covers="raw_shards")
    require(checks)
    counts = {name: figure for name, figure in raw_shards.statistics.items() if not isinstance(figure, str)}
    errors = estimate_errors([unannotated, annotated], ingestion.active_mixture)
    for line in estimate_lines(errors):
        logger.info("%s", line)
    return {**counts, "checks": len(checks), **({"mixture_estimate": errors} if errors else {})}
