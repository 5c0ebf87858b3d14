"""Checks of what is outside this machine: pinned files, commits of the hub, wheels, endpoints, accounts."""

from __future__ import annotations

import os
import shutil
import time

from everytoken.checks import NotMadeError
from everytoken.contract import try_given_tokenizer
from everytoken.corpus.ingestion import Upstream, find_files
from everytoken.corpus.scoring import HubCode, HubModel
from everytoken.corpus.upstreams import (
    UNKNOWN_REVISION,
    FetchError,
    HubRepository,
    HubUpstream,
    PathUpstream,
    UpstreamFile,
    WheelUpstream,
    account_name,
    find_wheel,
    listing_file,
    require_indexed,
)
from everytoken.parameters import IngestionParameters, TokenizationParameters, TrainedTokenizer
from everytoken.preflight.ahead import Ahead, BytesAhead
from everytoken.redaction import is_url
from everytoken.reflections import EmbeddedGenerator, OpenAiGenerator, ServerGenerator
from everytoken.reflections.generators import api_key, served_model
from everytoken.shards import LEDGER_FILE, value_digest
from everytoken.shards.remote import FileCache, RemoteFolder, object_name

HUB = "the hub"
_NOT_LOOKED_UP = "its revision is ???, see the parameters"


def hub_account(_: object, ahead: Ahead) -> str:
    """Ask the hub for the account of ``HF_TOKEN``; where it cannot be reached, later checks do not wait for it."""
    ahead.require_network()
    try:
        name = account_name()
    except FetchError:
        ahead.unreachable = HUB
        raise
    return "it answers; HF_TOKEN is not set, or not asked for" if name is None else f"HF_TOKEN is of the account {name}"


def storage(place: tuple[str, FileCache], ahead: Ahead) -> str:
    """Read the ledger behind a URL, and write and delete a small object there."""
    ahead.require_network()
    objects = RemoteFolder(*place).objects
    found = objects.read(LEDGER_FILE)
    name = object_name("preflight", value_digest([os.getpid(), time.time_ns()]))
    objects.replace(name, b"", None)
    objects.delete([name])
    return f"{objects.shown} can be read and written, and {'is not made yet' if found is None else 'is there'}"


def upstream_files(upstream: Upstream, ahead: Ahead, path: str) -> str:
    """List the files of an upstream at its pin; fetched ones count as bytes that are going to be written."""
    if isinstance(upstream, WheelUpstream):
        return _wheel(upstream, ahead)
    name = path.removesuffix(".upstream").rpartition(".")[2]
    files = _listed(name, upstream, ahead)
    size = sum(_bytes_of(file) for file in files)
    fetched = sum(_bytes_of(file) for file in files if file.remote is not None and not file.location.is_file())
    ingestion = ahead.groups.get("ingestion")
    if fetched and isinstance(ingestion, IngestionParameters) and path.startswith("ingestion."):
        chosen = ingestion.plan.n_shards
        share = 1.0 if chosen is None else min(1.0, chosen / len(files))
        if ingestion.keep_fetched:
            ahead.written.append(BytesAhead(f"files of {name}", ahead.raw, round(fetched * share)))
    at = f" at {upstream.revision[:12]}" if isinstance(upstream, HubUpstream) else ""
    return f"{len(files):,} files, {size:,} bytes{at}"


def _listed(name: str, upstream: PathUpstream | HubUpstream, ahead: Ahead) -> list[UpstreamFile]:
    if isinstance(upstream, HubUpstream):
        if upstream.revision == UNKNOWN_REVISION:
            raise NotMadeError(_NOT_LOOKED_UP)
        if not listing_file(upstream, ahead.raw).is_file():
            ahead.require_hub()
    elif is_url(upstream.root) and not upstream.root.startswith("file://"):
        ahead.require_network()
    return find_files(name, upstream, ahead.raw)


def _bytes_of(file: UpstreamFile) -> int:
    return file.location.stat().st_size if file.size is None and file.remote is None else file.size or 0


def _wheel(upstream: WheelUpstream, ahead: Ahead) -> str:
    if (found := find_wheel(upstream, ahead.raw / "wheels")) is not None:
        return f"{found.name} is fetched, with the pinned SHA-256"
    ahead.require_network()
    require_indexed(upstream)
    return f"the package index has {upstream.project} {upstream.version} with the pinned SHA-256"


def embedded_wheel(generator: EmbeddedGenerator, ahead: Ahead) -> str:
    """Look for the wheel of a model that runs in the process."""
    pin = {"project": generator.project, "version": generator.version, "sha256": generator.sha256.lower()}
    return _wheel(WheelUpstream.model_validate({"kind": "wheel", **pin, "member": generator.member}), ahead)


def hub_files(model: HubModel | HubCode, ahead: Ahead) -> str:
    """List the files of a model on the hub at its commit."""
    if model.revision == UNKNOWN_REVISION:
        raise NotMadeError(_NOT_LOOKED_UP)
    repository = HubRepository(model.repository, model.revision, ahead.raw)
    if not repository.is_listed:
        ahead.require_hub()
    return f"{len(repository.names):,} files at {model.revision[:12]}"


def tokenizer(parameters: TokenizationParameters, ahead: Ahead) -> str | None:
    """Take the tokenizer as the run does: its file, SHA-256, vocabulary and EOS."""
    chosen = parameters.tokenizer
    if isinstance(chosen, TrainedTokenizer):
        return None
    if getattr(chosen, "revision", "") == UNKNOWN_REVISION:
        raise NotMadeError(_NOT_LOOKED_UP)
    if chosen.kind == "hub":
        ahead.require_hub()
    elif chosen.kind == "archive":
        ahead.require_network()
    try_given_tokenizer(chosen, parameters)
    pinned = "without a pinned SHA-256" if chosen.sha256 is None else f"SHA-256 {chosen.sha256[:16]}"
    return f"{chosen.known_as or chosen.label}, {pinned}; its vocabulary has {parameters.eos_token}"


def served_endpoint(generator: OpenAiGenerator, ahead: Ahead) -> str:
    """Ask a server for its models, with the key of the environment."""
    key = api_key(generator.api_key_variable)
    ahead.require_network()
    facts = served_model(generator.endpoint, key, generator.model)
    return f"{generator.endpoint} serves {facts['model']}"


def server_command(generator: ServerGenerator, ahead: Ahead) -> str:
    """Look for the program that a rank starts."""
    program = generator.command[0]
    if (found := shutil.which(program)) is None:
        raise FetchError(
            f"there is no program {program!r} on the PATH",
            "Install it, or correct reflection.generator.command.",
        )
    return f"{program} is {found}"
