"""The list of checks of a job before its first stage: a model of parameters is checked by its type, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from everytoken.checks import Check, Faults, Found, Mismatch, run_checks
from everytoken.contract import ContractError, contradictions, not_looked_up
from everytoken.corpus import CorpusError, LanguageParameters
from everytoken.corpus.scoring import EmbeddedScorer, HubCode, HubModel, ModelFolder, TransformersScorer
from everytoken.corpus.upstreams import HubUpstream, PathUpstream, WheelUpstream
from everytoken.locks import LocksRefused
from everytoken.parameters import (
    GivenStreamParameters,
    HubTokenizer,
    TokenizationParameters,
    TrainingParameters,
)
from everytoken.preflight import machine, upstreams
from everytoken.preflight.ahead import Ahead, BytesAhead
from everytoken.preflight.named import named_models
from everytoken.reflections import (
    EmbeddedGenerator,
    IdentityCanaries,
    OpenAiGenerator,
    PromptFiles,
    ReflectionError,
    ServerGenerator,
)
from everytoken.shards import ShardsError
from everytoken.tokens import TokensError
from everytoken.training import DistributionParameters, TrainingError
from everytoken.training.run import make_training_plan

_FAULTS = (
    ContractError,
    CorpusError,
    LocksRefused,
    ReflectionError,
    TokensError,
    TrainingError,
    Faults,
    Mismatch,
    ShardsError,
    OSError,
)
_OfModel = Callable[[Any, Ahead], Found | None]
_FOR_TYPE: dict[type[BaseModel], tuple[tuple[str, _OfModel], ...]] = {
    TokenizationParameters: (("tokenizer", upstreams.tokenizer), ("package", machine.engine)),
    HubModel: (("revision", upstreams.hub_files),),
    HubCode: (("revision", upstreams.hub_files),),
    ModelFolder: (("model files", machine.model_folder),),
    EmbeddedScorer: (("package", machine.bundled_scorer),),
    TransformersScorer: (("package", machine.classifier),),
    LanguageParameters: (("package", machine.languages),),
    OpenAiGenerator: (("package", machine.client), ("endpoint", upstreams.served_endpoint)),
    ServerGenerator: (("package", machine.client), ("program", upstreams.server_command)),
    EmbeddedGenerator: (("package", machine.embedded_generator), ("model files", upstreams.embedded_wheel)),
    PromptFiles: (("paths", machine.prompt_files),),
    IdentityCanaries: (("paths", machine.identity_facts),),
    GivenStreamParameters: (("paths", machine.given_stream),),
    DistributionParameters: (("devices", machine.devices),),
    TrainingParameters: (("plan", lambda model, ahead: _checkpoints(model, ahead)),),
}
_ON_THE_HUB = (HubUpstream, HubModel, HubCode, HubTokenizer)


def preflight_checks(ahead: Ahead) -> Iterator[Check]:
    """Check what the configuration of a job names, before anything of it is made.

    Nothing is written but lists of files and what names a tokenizer, in the folder of what is fetched.
    """
    found = list(named_models(ahead.groups))
    for covers, checks in _listed(found, ahead):
        yield from run_checks(checks, ahead, _FAULTS, covers=covers)


_Listed = tuple[str, list[tuple[str, Callable[[Ahead], Found | None]]]]


def _listed(found: list[tuple[str, BaseModel]], ahead: Ahead) -> Iterator[_Listed]:
    yield "parameters", [("looked up", _looked_up), ("consistent", _consistent)]
    folders = {"data": ahead.data, "raw": ahead.raw, "TMPDIR": Path(machine.tempfile.gettempdir())}
    for name, folder in folders.items():
        yield name, [("writable", partial(machine.writable, folder)), ("locks", partial(machine.keeps_locks, folder))]
    for folder in dict.fromkeys(cache.folder for _, cache in ahead.remote.values()):
        yield (
            f"cache {folder}",
            [("writable", partial(machine.writable, folder)), ("locks", partial(machine.keeps_locks, folder))],
        )
    for name, place in ahead.remote.items():
        yield name, [("storage", partial(upstreams.storage, place))]
    if any(isinstance(model, _ON_THE_HUB) for _, model in found):
        yield upstreams.HUB, [("account", partial(upstreams.hub_account, None))]
    for path, model in found:
        if isinstance(model, HubUpstream | PathUpstream | WheelUpstream):
            yield path, [("files", partial(upstreams.upstream_files, model, path=path))]
        elif checks := _FOR_TYPE.get(type(model)):
            yield path, [(name, partial(check, model)) for name, check in checks]
    yield "tokens", [("plan", _tokens)]
    yield "disk", [("space", partial(machine.free_space, None))]


def _looked_up(ahead: Ahead) -> str:
    if unknown := list(not_looked_up(ahead.groups)):
        raise ContractError("; ".join(unknown))
    return "no commit is ???"


def _consistent(ahead: Ahead) -> str:
    if found := list(contradictions(ahead.groups, ahead.streams)):
        raise ContractError("; ".join(found))
    return "nothing contradicts"


def _tokens(ahead: Ahead) -> str | None:
    """Add the bytes of the streams or raw shards, where the parameters say how many tokens they have."""
    subsampling, ingestion, packing = (ahead.groups.get(name) for name in ("subsampling", "ingestion", "packing"))
    # where nothing is scored, no documents are drawn and the target is not read
    target = getattr(subsampling, "target_tokens", None) if "annotation" in ahead.groups else None
    mixture = None if ingestion is None else ingestion.active_mixture
    tokens = target if target is not None else None if mixture is None else mixture.target_total_tokens
    vocab_size = getattr(ahead.groups.get("tokenization"), "known_vocab_size", None)
    if tokens is None or vocab_size is None:
        return None
    width = (2 if packing.dtype == "uint16" else 4) if packing is not None else 2 if vocab_size <= 1 << 16 else 4
    size = round(tokens) * width
    ahead.written.append(BytesAhead("tokens", ahead.data, size))
    return f"{tokens:,.0f} tokens of {width} bytes, {size:,} bytes"


def _checkpoints(training: TrainingParameters, ahead: Ahead) -> str | None:
    """Add the bytes of the checkpoints, as ``everytoken plan`` forecasts them."""
    tokenization = ahead.groups.get("tokenization")
    vocab_size = tokenization.known_vocab_size if isinstance(tokenization, TokenizationParameters) else None
    if not isinstance(tokenization, TokenizationParameters) or vocab_size is None:
        return None
    plan = make_training_plan(
        training.model,
        training.optimisation,
        training.data,
        training.checkpoints,
        training.distribution,
        vocab_size=vocab_size,
        seq_length=tokenization.seq_length,
        stream_sizes=None,
    )
    most = plan.checkpoint * plan.checkpoints
    ahead.written.append(BytesAhead("checkpoints", Path(training.checkpoints.folder), most))
    return f"{plan.checkpoints} checkpoints at once at most, {most:,} bytes"
