"""Tokenization: a tokenizer, the ids of every document, and the two streams of windows."""

from typing import Any

from everytoken.corpus.statistics import add_statistics
from everytoken.parameters import GivenTokenizer, TokenizationParameters
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.encode import encode_part
from everytoken.tokens.streams import write_annotated_stream, write_compact_stream
from everytoken.tokens.vocabulary import load_tokenizer_file, train_tokenizer


def make_tokenizer(annotated: Shards, unannotated: Shards, parameters: TokenizationParameters) -> Artifact:
    """Train a byte-level BPE tokenizer on the documents that will be trained on, or take a given one."""
    chosen = parameters.tokenizer
    if isinstance(chosen, GivenTokenizer):
        return plan_artifact(
            load_tokenizer_file, path=chosen.path, sha256=chosen.sha256, eos_token=parameters.eos_token
        )
    return plan_artifact(
        train_tokenizer,
        texts=[annotated, unannotated],
        vocab_size=chosen.vocab_size,
        min_frequency=chosen.min_frequency,
        special_tokens=chosen.special_tokens,
        eos_token=parameters.eos_token,
    )


def encode_unannotated(unannotated: Shards, tokenizer: Artifact, parameters: TokenizationParameters) -> Shards:
    """Encode documents of the compact stream: content and EOS, at most seq_length tokens."""
    return _encode(unannotated, tokenizer, parameters, parameters.seq_length)


def encode_annotated(annotated: Shards, tokenizer: Artifact, parameters: TokenizationParameters) -> Shards:
    """Encode documents of the annotated stream: the reflection budget stays free."""
    return _encode(annotated, tokenizer, parameters, parameters.max_annotated_tokens)


def pack_compact_stream(unannotated_tokens: Shards, parameters: TokenizationParameters) -> Artifact:
    """Concatenate shuffled documents, cut windows of seq_length + 1, shuffle the windows."""
    return plan_artifact(
        write_compact_stream,
        tokens=unannotated_tokens,
        seq_length=parameters.seq_length,
        seed=parameters.seed,
        shuffle_block=parameters.shuffle_block,
        shuffle_memory=parameters.shuffle_memory,
    )


def pad_annotated_stream(annotated_tokens: Shards, parameters: TokenizationParameters) -> Artifact:
    """Put one document into each window, in seeded order, with a sidecar row for each."""
    return plan_artifact(
        write_annotated_stream,
        tokens=annotated_tokens,
        seq_length=parameters.seq_length,
        seed=parameters.seed,
        shuffle_memory=parameters.shuffle_memory,
    )


def report_tokenization(
    tokenizer: Artifact,
    unannotated_tokens: Shards,
    annotated_tokens: Shards,
    compact_stream: Artifact,
    annotated_stream: Artifact,
) -> dict[str, Any]:
    """Return counts of documents, tokens, windows, what was cut, and what was lost."""
    return {
        "vocab_size": tokenizer.statistics["vocab_size"],
        "unannotated": _counts(unannotated_tokens),
        "annotated": _counts(annotated_tokens),
        "compact_stream": dict(compact_stream.statistics),
        # a stream without windows has no EOS either
        "annotated_stream": {k: v for k, v in annotated_stream.statistics.items() if v is not None},
    }


def _encode(documents: Shards, tokenizer: Artifact, parameters: TokenizationParameters, max_tokens: int) -> Shards:
    return documents.map(
        encode_part,
        tokenizer=tokenizer,
        eos_token=parameters.eos_token,
        max_tokens=max_tokens,
        max_lossy_share=parameters.max_lossy_share,
    )


def _counts(tokens: Shards) -> dict[str, Any]:
    total = add_statistics(tokens.statistics)
    total.pop("by_source")
    return total
