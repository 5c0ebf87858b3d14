"""What a user's comparisons of engines with the reference found: kept in the user's cache, for all projects and runs.

A verdict is of one engine and version on the generated texts of one tokenizer. It is an artifact: it appears whole, and
its digests are checked when it is read. A damaged one is made again, with a warning.

The cache is ``$EVERYTOKEN_CACHE``, else ``$XDG_CACHE_HOME/everytoken``, else ``~/.cache/everytoken``. It may be
removed at any time. Where it cannot be read or written, one warning says so, and each run compares the engines again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

from everytoken.locks import locked
from everytoken.shards import Artifact, ArtifactStore, Built, DamagedStore, plan_artifact, versioned
from everytoken.tokens.engines import registry
from everytoken.tokens.engines.registry import REFERENCE
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer import SpecialTokens

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "EVERYTOKEN_CACHE"
FASTEST = "fastest"
_CORPUS_BYTES_A_CASE = 100  # that the reference encodes in the time in which an engine is compared on a case


class EngineVerdict(TypedDict):
    """Whether an engine gives the ids of the reference, and the first difference."""

    version: str
    equal: bool
    difference: str | None


def certificates_folder() -> Path:
    """Return the folder of this user's verdicts."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own).absolute() / "certificates"
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(shared) if shared.startswith("/") else Path.home() / ".cache") / "everytoken" / "certificates"


def corpus_bytes_of_proof(cases: int, engines: int) -> int:
    """Return the bytes of text that the reference encodes in the CPU time that a proof takes, as measured.

    For a smaller corpus the proof costs more than the fast engine saves.
    """
    return _CORPUS_BYTES_A_CASE * cases * engines


@dataclass(frozen=True)
class ComparedOn:
    """What engines are compared on, by which their verdicts are kept."""

    tokenizer_sha256: str
    eos_token: str
    special_tokens_in_text: SpecialTokens
    reference: str
    cases: int
    seed: int


@versioned("keep_verdict", 1, unrecorded=["verdict", "speed"])
def keep_verdict(
    folder: Path, *, compared_on: ComparedOn, engine: str, version: str, verdict: EngineVerdict, speed: float | None
) -> Built:
    """Keep the verdict on an engine; all of it is in the ledger."""
    return Built(verdict, {"megabytes_per_second": speed})


@dataclass(frozen=True)
class KeptVerdicts:
    """The verdicts on engines for one tokenizer."""

    folder: Path
    compared_on: ComparedOn

    @contextmanager
    def being_completed(self) -> Iterator[bool]:
        """Hold the lock of this tokenizer's verdicts: of two runs the second one waits, and finds what is made.

        The block gets whether the lock is held: without it, nothing may be kept.
        """
        lock = self.folder / f".{self.compared_on.tokenizer_sha256[:16]}.lock"
        with ExitStack() as held:
            try:
                lock.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(lock))
                can_keep = True
            except OSError as error:
                _warn_once(self.folder, error.strerror)
                can_keep = False
            yield can_keep

    def find(self, engines: Mapping[str, str]) -> dict[str, tuple[EngineVerdict, float | None]]:
        """Return verdict and MB/s by engine, of those that are kept; ``engines`` has their versions."""
        found = {}
        for name, version in engines.items():
            kept = self._read(name, version)
            if kept is not None:
                found[name] = kept.statistics_as(EngineVerdict), kept.measured["megabytes_per_second"]
        return found

    def keep(self, engine: str, verdict: EngineVerdict, speed: float | None) -> None:
        """Keep the verdict on an engine; one that is kept already stays."""
        planned, store = self._planned(engine, verdict, speed)
        try:
            store.save(planned)
        except OSError as error:
            _warn_once(self.folder, error.strerror)

    def _read(self, engine: str, version: str) -> Artifact | None:
        _, store = self._planned(engine, {"version": version, "equal": False, "difference": None}, None)
        try:
            return store.load() if store.exists() else None
        except DamagedStore as error:
            logger.warning("%s; the engine is compared again", error)
        except OSError as error:
            _warn_once(self.folder, error.strerror)
        return None

    def _planned(self, engine: str, verdict: EngineVerdict, speed: float | None) -> tuple[Artifact, ArtifactStore]:
        """Return the verdict, and where it is kept: the name of the folder is the fingerprint of its key."""
        key = {"compared_on": self.compared_on, "engine": engine, "version": verdict["version"]}
        planned = plan_artifact(keep_verdict, **key, verdict=verdict, speed=speed)
        assert planned.recipe is not None
        sha256, fingerprint = self.compared_on.tokenizer_sha256, planned.recipe.fingerprint([])
        return planned, ArtifactStore(self.folder / f"{sha256[:16]}_{engine}-{verdict['version']}_{fingerprint[:32]}")


@cache
def _warn_once(folder: Path, reason: str | None) -> None:
    logger.warning(
        "the verdicts on engines cannot be kept in %s (%s), so each run compares the engines again. Set %s to a folder "
        "that you can write",
        folder,
        reason,
        CACHE_VARIABLE,
    )


def fastest_of(verdicts: Mapping[str, tuple[EngineVerdict, float | None]], otherwise: str) -> str:
    """Return the engine that was the fastest of those that are equal; ``otherwise`` when none is."""
    speeds = {name: speed or 0.0 for name, (verdict, speed) in verdicts.items() if verdict["equal"]}
    return max(speeds, key=speeds.__getitem__, default=otherwise)


def proven_engine(verdicts: Mapping[str, EngineVerdict], name: str, reference: str, where: str, again: str) -> str:
    """Return the name of an engine if it is the reference, or proven equal and installed as it was then.

    Args:
        verdicts: on the engines, by name.
        reference: the version that they were compared with.
        where: the verdicts are kept, for messages.
        again: how to make another one, for messages.

    Raises:
        TokenizerError: it is neither.
    """
    if name == REFERENCE:
        return name
    if name not in verdicts:
        raise TokenizerError(
            f"there is no proof for the engine {name!r}, only for {sorted(verdicts)}. Install it (pip install "
            f"'.[fast]' has those that are supported) and run again, or set engine to {FASTEST!r} or {REFERENCE!r}"
        )
    engine = verdicts[name]
    if not engine["equal"]:
        raise TokenizerError(
            f"the engine {name} {engine['version']} does not give the ids of {REFERENCE} "
            f"{reference} with this tokenizer: {engine['difference']}. Set engine to {FASTEST!r} "
            f"(of those that are equal) or {REFERENCE!r}"
        )
    for library, said, now in (
        (name, engine["version"], registry.installed_engines().get(name)),
        (REFERENCE, reference, registry.reference_version()),
    ):
        if said != now:
            raise TokenizerError(
                f"{where} is for {library} {said}, installed is {now or 'none'}. {again}, or install {library}=={said}"
            )
    return name
