"""The configuration that raw shards were made with, in the form in which trainers of raw shards keep it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from everytoken.parameters import IngestionParameters, PackingParameters, TokenizationParameters, TrainedTokenizer
from everytoken.shards import recipe_value, value_digest
from everytoken.tokens.tokenizer import TokenizerIds


def data_configuration(
    ingestion: IngestionParameters,
    tokenization: TokenizationParameters,
    packing: PackingParameters,
    tokenizer: TokenizerIds,
    shards_digest: str,
) -> dict[str, Any]:
    """Return the configuration with its provenance.

    Keys that begin with ``_`` say where it is from: ``_generator``, ``_tokenizer_family``, the SHA-256 of the mixture
    (``_mixture_hash``: sources and weights, as canonical JSON) and of everything under ``pipeline``
    (``_config_hash``), and the root digest of the shards.
    """
    chosen, mixture = tokenization.tokenizer, ingestion.active_mixture
    sources = {name: source.model_dump(mode="json") for name, source in ingestion.active_sources.items()}
    mixed = {"sources": sources, "mixture": None if mixture is None else recipe_value(mixture, "mixture")}
    family = "everytoken-bpe" if isinstance(chosen, TrainedTokenizer) else chosen.known_as or chosen.label
    pipeline = {
        "tokenizer": {
            "name": family,
            "sha256": tokenizer["sha256"],
            "vocab_size": tokenizer["vocab_size"],
            "eos_token_id": tokenizer["eos_id"],
            "pad_token_id": tokenizer["eos_id"],
            "add_eos": True,
        },
        "sharding": {
            "shard_size_tokens": packing.shard_size_tokens,
            "dtype": packing.dtype,
            "target_total_tokens": None if mixture is None else mixture.target_total_tokens,
            **({} if packing.cross_document_boundary else {"cross_document_boundary_ok": False}),
            **({} if packing.n_shards is None else {"n_shards": packing.n_shards}),
        },
        "dedup": ingestion.dedup.model_dump(mode="json"),
        "seed": packing.seed,
        "verify_after_pack": True,
    }
    return {
        "_generator": f"everytoken {version('everytoken')}",
        "_tokenizer_family": family,
        "_mixture_hash": value_digest(mixed),
        "_config_hash": value_digest(pipeline),
        "_raw_shards": shards_digest,
        "pipeline": pipeline,
        **mixed,
    }
