"""Packing: flat ids in files of one size, every source in proportion in each."""

from everytoken.parameters import PackingParameters
from everytoken.provenance.indexes import index_raw_shards, made_stream
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.streams import write_raw_shards


def pack_raw_shards(
    unannotated_tokens: Shards, annotated_tokens: Shards, tokenizer: Artifact, parameters: PackingParameters
) -> Artifact:
    """Interleave the sources of both splits in proportion to their tokens, and cut shards."""
    return plan_artifact(
        write_raw_shards,
        tokens=[unannotated_tokens, annotated_tokens],
        tokenizer=tokenizer,
        shard_size_tokens=parameters.shard_size_tokens,
        dtype=parameters.dtype,
        seed=parameters.seed,
        shuffle_memory=parameters.shuffle_memory,
        names=["unannotated", "annotated"],
    )


def say_raw_shards_are_made(raw_shards: Artifact) -> Artifact:
    """Let nodes that also run without raw shards wait for them in a run that makes them."""
    return raw_shards


def make_raw_shards_index(
    unannotated_tokens: Shards, annotated_tokens: Shards, raw_shards: Artifact, parameters: PackingParameters
) -> Artifact:
    """Find the order of the documents again, and keep it both ways."""
    return plan_artifact(
        index_raw_shards,
        lengths={"unannotated": unannotated_tokens, "annotated": annotated_tokens},
        order=("unannotated", "annotated"),
        stream=made_stream(raw_shards),
        seed=parameters.seed,
        shard_size_tokens=parameters.shard_size_tokens,
        memory=parameters.shuffle_memory,
    )


def report_packing(raw_shards: Artifact) -> dict[str, object]:
    """Return counts of shards, tokens and documents, by source too: metrics are numbers."""
    return {name: figure for name, figure in raw_shards.statistics.items() if not isinstance(figure, str)}
