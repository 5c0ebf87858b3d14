"""Whether a reflected stream is what its annotated stream and the columns of its run make."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from everytoken.checks import Check, NotMadeError, run_checks
from everytoken.provenance.verification.documents import RELEASE_FAULTS
from everytoken.reflections import ReflectionError
from everytoken.reflections.splicing import compare_reflected_stream
from everytoken.shards import ArtifactStore
from everytoken.shards.remote import open_parts
from everytoken.tokens.checks import Level, whole_ledger
from everytoken.tokens.streams import written_by

_MADE_FROM = ("annotated", "columns", "tokenizer")


def is_reflected(folder: Path) -> bool:
    """Return whether a folder holds a stream with reflections in the windows of another one."""
    ledger = whole_ledger(folder) if folder.is_dir() else None
    return ledger is not None and any(kind.base is not None for kind in written_by(ledger["recipe"]["function"]))


def splice_checks(folder: Path, level: Level, stored: Mapping[str, Path], covers: str = "") -> list[Check]:
    """At ``full``, splice every window again from what is ``stored`` (folders by root digest), and compare it."""
    checks = (("spliced again", partial(_spliced_again, stored=stored)),) if level == "full" else ()
    return list(run_checks(checks, folder, (*RELEASE_FAULTS, ReflectionError), covers=covers))


def _spliced_again(folder: Path, *, stored: Mapping[str, Path]) -> dict[str, int]:
    stream = ArtifactStore(folder).load()
    given = stream.ledger["recipe"]["parameters"]
    if gone := [name for name in _MADE_FROM if given[name]["digest"] not in stored]:
        raise NotMadeError(f"its data folder has no {', '.join(gone)} of its digest")
    annotated, columns, tokenizer = (stored[given[name]["digest"]] for name in _MADE_FROM)
    said = compare_reflected_stream(
        stream, ArtifactStore(annotated).load(), open_parts(columns).load(), ArtifactStore(tokenizer).load()
    )
    voices = {f"tokens of {voice}": count for voice, count in said["reflection_tokens"].items()}
    return {"windows": said["windows"], "reflections": said["reflected_windows"], **voices}
