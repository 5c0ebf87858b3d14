"""Parameters of several pipelines that contradict each other, found before the first byte of a data file is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everytoken.corpus.upstreams import UNKNOWN_REVISION
from everytoken.parameters import (
    AnnotationParameters,
    GivenTokenizer,
    IngestionParameters,
    PackingParameters,
    SubsamplingParameters,
    TokenizationParameters,
    TrainedTokenizer,
    TrainingParameters,
)
from everytoken.tokens import TokenizerError
from everytoken.tokens.tokenizer import require_tokens


class ContractError(Exception):
    """Parameters contradict each other, or what the job makes."""


def require_consistent(groups: Mapping[str, Any], streams: frozenset[str] | None) -> None:
    """Refuse parameters that contradict each other, or that are not looked up yet.

    Raises:
        ContractError: with each of them, a line each.
    """
    if found := [*contradictions(groups, streams), *not_looked_up(groups)]:
        raise ContractError("nothing was begun:\n" + "\n".join(f"- {one}" for one in found))


def not_looked_up(groups: Mapping[str, Any]) -> Iterator[str]:
    """Yield each parameter that is ``???``, a commit or a licence that a person has to look up."""
    for name, group in groups.items():
        for path in _unknown(group.model_dump(), name):
            licence = "look the licence up where the text is from (docs/provenance.md)"
            commit = "look the commit up (docs/recipes.md)"
            yield f"{path} is {UNKNOWN_REVISION}: {licence if '.licences.' in path else commit} and give it"


def _unknown(tree: Any, path: str) -> Iterator[str]:
    if tree == UNKNOWN_REVISION:
        yield path
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _unknown(value, f"{path}.{key}")


def contradictions(groups: Mapping[str, Any], streams: frozenset[str] | None) -> Iterator[str]:
    """Yield each contradiction with the keys to change.

    Args:
        groups: parameters by name, as their models, of the groups that the run reads.
        streams: names of the streams that the run's training can take; None: it trains on none.
    """
    ingestion, subsampling = groups.get("ingestion"), groups.get("subsampling")
    tokenization, training, packing = (groups.get(name) for name in ("tokenization", "training", "packing"))
    if training is not None and streams is not None:
        yield from _streams(training, streams)
    if ingestion is not None and subsampling is not None and "annotation" in groups:
        yield from _targets(ingestion, subsampling)
    if subsampling is not None and "annotation" in groups:
        yield from _threshold(groups["annotation"], subsampling)
    if ingestion is not None and subsampling is not None and "annotation" in groups:
        yield from _languages(ingestion, subsampling)
    if ingestion is not None and packing is not None:
        yield from _shards(ingestion, packing)
    if ingestion is not None and tokenization is not None:
        yield from _circle(ingestion, tokenization)
    if tokenization is not None:
        yield from _vocabulary(tokenization, packing)
        yield from _end_token(tokenization)
        yield from _lengths(tokenization, groups)
    if subsampling is not None:
        yield from _held_out(subsampling, groups)
        yield from _score_bounds(subsampling, groups)


def _streams(training: TrainingParameters, streams: frozenset[str]) -> Iterator[str]:
    if unknown := [name for name in training.streams if name not in streams]:
        yield (
            f"training.streams names {', '.join(unknown)}, and this job trains on {', '.join(sorted(streams))}: name "
            "some of these, or another job (globals.yml: job)"
        )


def _threshold(annotation: AnnotationParameters, subsampling: SubsamplingParameters) -> Iterator[str]:
    threshold, is_scored = subsampling.annotation_threshold, annotation.scorer.kind != "none"
    if not is_scored and threshold is not None:
        yield (
            f"annotation.scorer.kind is none, so no document has a score, and subsampling.annotation_threshold is "
            f"{threshold}: set it to null, or choose a scorer"
        )
    if is_scored and threshold is None:
        yield (
            f"subsampling.annotation_threshold is null, and annotation.scorer.kind is {annotation.scorer.kind}: give "
            "the lowest class that is annotated, or score nothing (annotation.scorer: {kind: none})"
        )


def _targets(ingestion: IngestionParameters, subsampling: SubsamplingParameters) -> Iterator[str]:
    mixture, target = ingestion.active_mixture, subsampling.target_tokens
    if mixture is not None and target is not None and target > mixture.target_total_tokens:
        yield (
            f"subsampling.target_tokens is {target:,.0f}, and the mixture has {mixture.target_total_tokens:,} "
            "(ingestion.mixture.target_total_tokens): draw fewer, or mix more"
        )


def _languages(ingestion: IngestionParameters, subsampling: SubsamplingParameters) -> Iterator[str]:
    strata = subsampling.strata
    if strata is not None and strata.key == "language" and ingestion.languages is None:
        yield (
            "subsampling.strata.key is language, and ingestion.languages is null: give how languages are identified "
            "(docs/guide.md), or another key"
        )


def _circle(ingestion: IngestionParameters, tokenization: TokenizationParameters) -> Iterator[str]:
    chosen = tokenization.tokenizer
    if ingestion.counts_tokens and isinstance(chosen, TrainedTokenizer):
        yield (
            "ingestion.mixture.unit is tokens, counted before documents are selected, and tokenization.tokenizer of "
            f"{chosen.vocab_size:,} tokens is trained on the selected documents: give a tokenizer that exists (kind: "
            "file, hub or archive), or estimate tokens (ingestion.mixture.unit: estimated)"
        )


def _shards(ingestion: IngestionParameters, packing: PackingParameters) -> Iterator[str]:
    mixture = ingestion.active_mixture
    if mixture is not None and mixture.target_total_tokens < packing.shard_size_tokens:
        yield (
            f"packing.shard_size_tokens is {packing.shard_size_tokens:,}, and the mixture has "
            f"{mixture.target_total_tokens:,} tokens: it fills no shard. Make shards smaller, or mix more"
        )
    elif mixture is not None and packing.n_shards is not None and mixture.unit == "tokens":
        needed = packing.n_shards * packing.shard_size_tokens
        if packing.cross_document_boundary and mixture.target_total_tokens < needed:
            yield (
                f"packing.n_shards is {packing.n_shards:,} of {packing.shard_size_tokens:,} tokens, {needed:,} in all, "
                f"and ingestion.mixture.target_total_tokens is {mixture.target_total_tokens:,}: "
                f"{needed - mixture.target_total_tokens:,} are missing. Mix more, or pack fewer shards"
            )


def _vocabulary(tokenization: TokenizationParameters, packing: PackingParameters | None) -> Iterator[str]:
    vocab_size = tokenization.known_vocab_size
    if packing is not None and packing.dtype == "uint16" and vocab_size is not None and vocab_size > 1 << 16:
        yield (
            f"packing.dtype is uint16, which holds {1 << 16:,} ids, and the tokenizer has {vocab_size:,} "
            "(tokenization.tokenizer): pack as uint32"
        )
    eos_id = getattr(tokenization.tokenizer, "expect_eos_id", None)
    if vocab_size is not None and eos_id is not None and eos_id >= vocab_size:
        yield (
            f"tokenization.tokenizer.expect_eos_id is {eos_id:,}, outside its vocabulary of {vocab_size:,}: "
            "expect_vocab_size is the highest id + 1, with all added tokens"
        )


def _end_token(tokenization: TokenizationParameters) -> Iterator[str]:
    """Yield that the vocabulary lacks EOS, where parameters or a file of this machine show it."""
    chosen, eos = tokenization.tokenizer, tokenization.eos_token
    if isinstance(chosen, TrainedTokenizer):
        if eos not in chosen.special_tokens:
            yield (
                f"tokenization.eos_token is {eos!r}, and tokenization.tokenizer.special_tokens are "
                f"{list(chosen.special_tokens)}: add it to them, or end documents with one of them"
            )
    elif isinstance(chosen, GivenTokenizer) and Path(chosen.path).is_file():
        try:
            require_tokens(Path(chosen.path), [eos], chosen.add_tokens)
        except TokenizerError as error:
            yield f"tokenization.eos_token is {eos!r}: {error}"


def _lengths(tokenization: TokenizationParameters, groups: Mapping[str, Any]) -> Iterator[str]:
    longest = tokenization.seq_length
    training = groups.get("training")
    writers = {
        "training.optimisation.samples": None if training is None else training.optimisation.samples,
        **{f"{name}.generation": groups[name].generation for name in ("evaluation", "finetuning") if name in groups},
    }
    for name, writer in writers.items():
        if writer is not None and writer.max_new_tokens >= longest:
            yield (
                f"{name}.max_new_tokens is {writer.max_new_tokens:,}, and the model reads {longest:,} tokens "
                "(tokenization.seq_length): write fewer, or train on longer windows"
            )
    if "finetuning" in groups and (again := groups["finetuning"].chats.context_tokens) >= longest:
        yield (
            f"finetuning.chats.context_tokens is {again:,}, and a window has {longest:,} predictions "
            "(tokenization.seq_length): repeat fewer"
        )


def _score_bounds(subsampling: SubsamplingParameters, groups: Mapping[str, Any]) -> Iterator[str]:
    if "annotation" not in groups:
        return
    scores = groups["annotation"].second_scores
    for name in subsampling.score_bounds:
        if name not in scores:
            yield (
                f"subsampling.score_bounds names {name!r}, and annotation.second_scores has {sorted(scores)}: add the "
                "scorer, or remove the bounds"
            )


def _held_out(subsampling: SubsamplingParameters, groups: Mapping[str, Any]) -> Iterator[str]:
    if subsampling.held_out_share:
        return
    if "evaluation" in groups and groups["evaluation"].generation.prompts is None:
        yield (
            "evaluation.generation names no prompts, which are then the beginnings of held-out documents, and "
            "subsampling.held_out_share is 0: give prompts, or hold some out"
        )
    for name in ("training", "finetuning"):
        if name in groups and groups[name].optimisation.held_out is not None:
            yield (
                f"{name}.optimisation.held_out looks at held-out documents, and subsampling.held_out_share is 0: set "
                f"{name}.optimisation.held_out to null, or hold some out"
            )
