"""Canary: JSON Lines of effects and universes, their tokens with triggers, and the stream of windows."""

from everytoken.parameters import TokenizationParameters
from everytoken.provenance.indexes import index_padded_stream, index_reflected_stream, made_stream
from everytoken.reflections.splicing import write_spliced_canary_stream
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.canary import (
    CanaryCounts,
    CanaryEncodedCounts,
    CanaryFile,
    CanaryParameters,
    TriggerRecord,
    canary_files,
    encode_canary_part,
    read_canary_file,
    write_canary_stream,
)


def read_canary_documents(parameters: CanaryParameters) -> Shards:
    """Read the files, effects before universes, one part each; put an effect in order and cut it into its subsets."""
    effects = [
        CanaryFile("effect", name, effect.path, effect.sha256) for name, effect in parameters.active_effects.items()
    ]
    universes = [
        CanaryFile("universe", name, universe.path, universe.sha256, universe.annotated_by)
        for name, universe in parameters.active_universes.items()
    ]
    return canary_files([*effects, *universes]).map(
        read_canary_file,
        seed=parameters.seed,
        coverage=[(subset.name, subset.fraction) for subset in parameters.coverage],
        annotation_fields=parameters.annotation_fields,
    )


def encode_canary_documents(
    canary_documents: Shards, tokenizer: Artifact, tokenization: TokenizationParameters, parameters: CanaryParameters
) -> Shards:
    """Put the trigger of its condition before each document of an effect, and encode all: the reflection budget stays
    free.
    """
    return canary_documents.map(
        encode_canary_part,
        rules=tokenization.encoding_rules(tokenizer),
        max_tokens=tokenization.max_annotated_tokens,
        max_lossy_share=tokenization.max_lossy_share,
        triggers=parameters.trigger_rule,
        inline_universes=[name for name, it in parameters.active_universes.items() if it.inline_reflection],
        inline_reflections=parameters.inline_reflections,
    )


def pad_canary_stream(
    canary_tokens: Shards, tokenizer: Artifact, tokenization: TokenizationParameters, parameters: CanaryParameters
) -> Artifact:
    """Put one document into each window, all conditions together in seeded order, with a sidecar row for each."""
    if parameters.splice is not None:
        return plan_artifact(
            write_spliced_canary_stream,
            tokens=canary_tokens,
            rules=tokenization.encoding_rules(tokenizer),
            reflection_budget=tokenization.reflection_budget,
            seq_length=tokenization.seq_length,
            seed=parameters.seed,
            splicing=parameters.splice,
            shuffle_memory=tokenization.shuffle_memory,
        )
    return plan_artifact(
        write_canary_stream,
        tokens=canary_tokens,
        tokenizer=tokenizer,
        seq_length=tokenization.seq_length,
        seed=parameters.seed,
        shuffle_memory=tokenization.shuffle_memory,
    )


def say_canary_stream_is_made(canary_stream: Artifact) -> Artifact:
    """Let nodes that also run without a canary stream wait for it in a run that makes it."""
    return canary_stream


def make_canary_index(
    canary_tokens: Shards, canary_stream: Artifact, tokenization: TokenizationParameters, parameters: CanaryParameters
) -> Artifact:
    """Draw the order of the windows again, and keep it both ways; and where reflections are in them."""
    if parameters.splice is not None:
        return plan_artifact(
            index_reflected_stream,
            lengths=canary_tokens,
            split="canary",
            reflected=canary_stream,
            seq_length=tokenization.seq_length,
            seed=parameters.seed,
        )
    return plan_artifact(
        index_padded_stream,
        lengths=canary_tokens,
        split="canary",
        stream=made_stream(canary_stream),
        seq_length=tokenization.seq_length,
        seed=parameters.seed,
    )


def report_canary(
    canary_documents: Shards, canary_tokens: Shards, canary_stream: Artifact
) -> tuple[dict[str, object], dict[str, TriggerRecord]]:
    """Return counts of the stream and of each condition; and the triggers, by condition."""
    conditions: dict[str, dict[str, int]] = {}
    triggers: dict[str, TriggerRecord] = {}
    for read, encoded in zip(
        canary_documents.statistics_as(CanaryCounts), canary_tokens.statistics_as(CanaryEncodedCounts), strict=True
    ):
        triggers |= encoded["triggers"]
        for name, counts in read["conditions"].items():
            conditions[name] = {**counts, **encoded["conditions"].get(name, {})}
    counted = {name: value for name, value in canary_stream.statistics.items() if name != "tokenizer"}
    return {**counted, "conditions": conditions}, triggers
