"""Checks of indexes: what `everytoken verify` asks of one beyond the digests in its ledger.

An index is a function of the documents' lengths, the seeds and the counts of its stream, and its ledger says which.
In full it is made once more, in the system's temporary folder, and every byte compared: so an index that was
edited together with its ledger is found too. No token is read for it, but for an index of chats, which are encoded
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.checks import Check, Mismatch, NotMadeError, first_difference, run_checks
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import (
    DESCRIPTION_FILE,
    DOCUMENT_INDEX_FORMAT,
    index_chat_windows,
    index_compact_stream,
    index_documents,
    index_padded_stream,
    index_raw_shards,
    index_reflected_stream,
    made_stream,
    map_array,
    open_flat_index,
    open_stream_index,
    read_description,
    read_index,
)
from everytoken.provenance.verification.documents import RELEASE_FAULTS
from everytoken.shards import (
    LEDGER_FILE,
    ArtifactStore,
    Built,
    Recipe,
    artifact_ledger_text,
    digests_in,
    is_store,
    read_artifact_ledger,
    scratch_folder,
)
from everytoken.shards.remote import open_parts
from everytoken.tokens.chat import ChatParameters
from everytoken.tokens.checks import Level, whole_ledger

_DOCUMENTS = "index_documents"
_WRITERS = (
    index_documents,
    index_compact_stream,
    index_padded_stream,
    index_reflected_stream,
    index_chat_windows,
    index_raw_shards,
)
_FUNCTIONS: dict[str, Callable[..., Built]] = {function.__name__: function for function in _WRITERS}
_MEMORY = 1 << 28
_AGAIN = "run the pipeline that makes the index"
_HEADER = 128  # bytes of an array without entries, which cannot be mapped


def is_index(folder: Path) -> bool:
    """Return whether a folder holds an index, damaged or not."""
    if not (folder / DESCRIPTION_FILE).is_file():
        return False
    ledger = whole_ledger(folder)
    return ledger is None or ledger["recipe"]["function"] in _FUNCTIONS  # of a damaged one its own check says so


def stored_around(folder: Path) -> dict[str, Path]:
    """Return what the data folder (``<data>/<layer>/<dataset>``) around ``folder`` holds, by root digest."""
    folders = [path.parent for path in folder.resolve().parents[1].glob(f"*/*/{LEDGER_FILE}")]
    ledgers = {path: ledger for path in sorted(folders, reverse=True) if (ledger := whole_ledger(path)) is not None}
    return {ledger["root_digest"]: path for path, ledger in ledgers.items()}  # the first in order, where two are equal


def index_checks(folder: Path, level: Level, stored: Mapping[str, Path], covers: str = "") -> list[Check]:
    """Check an index; at ``full`` it is made again from what is ``stored`` (folders by root digest) and compared."""
    again = (("index made again", partial(_made_again, stored=stored)),) if level == "full" else ()
    return list(run_checks((("index", _opened), *again), folder, RELEASE_FAULTS, covers=covers))


def _opened(folder: Path) -> dict[str, int]:
    if read_artifact_ledger(folder / LEDGER_FILE)["recipe"]["function"] == _DOCUMENTS:
        return {"documents": len(read_index(folder, DOCUMENT_INDEX_FORMAT, "documents")[1])}
    described, numbers = read_description(folder)
    open_flat_index(folder) if described["kind"] == "flat" else open_stream_index(folder)
    return {"documents": len(numbers)}


def _made_again(folder: Path, *, stored: Mapping[str, Path]) -> dict[str, int]:
    ledger = read_artifact_ledger(folder / LEDGER_FILE)
    recipe = ledger["recipe"]
    gone = [name for name, value in recipe["parameters"].items() if not digests_in({"": value}) <= stored.keys()]
    if gone:  # as a stream before a take-down
        raise NotMadeError(f"its data folder has no {', '.join(gone)} of its digest")
    if recipe["function"] not in _FUNCTIONS:
        raise ProvenanceError(f"{folder / LEDGER_FILE}: {recipe['function']} makes no index")
    function = _FUNCTIONS[recipe["function"]]
    declared = Recipe(function, {})
    if declared.version != recipe["version"]:
        raise ProvenanceError(
            f"{folder} was made by version {recipe['version']} of {recipe['function']}, this is version "
            f"{declared.version}: run the pipeline that makes it again"
        )
    parameters = {key: _given(key, value, stored) for key, value in recipe["parameters"].items()}
    if recipe["function"] == _DOCUMENTS:  # a mapping in a recipe has no order
        splits = [split["name"] for split in ledger["statistics"]["splits"]]
        parameters["documents"] = {name: parameters["documents"][name] for name in splits}
    if "memory" in declared.unrecorded:
        parameters["memory"] = _MEMORY
    with scratch_folder("everytoken-index") as again:
        built: Built = function(again, **parameters)
        if artifact_ledger_text(dict(built.statistics)) != artifact_ledger_text(ledger["statistics"]):
            raise ProvenanceError(f"{folder / LEDGER_FILE}: made again, the index has other statistics")
        for file in sorted(ledger["files"].keys() | {path.name for path in again.iterdir()}):
            _require_same_bytes(folder / file, again / file)
    return {"files as made again": len(ledger["files"])}


def _given(name: str, value: Any, stored: Mapping[str, Path]) -> Any:
    """Return a parameter of the recipe: stored data by its digest, all else as it is."""
    if name == "chats":
        return ChatParameters.model_validate(value)
    if name == "order":
        return tuple(value)
    if not isinstance(value, dict):
        return value
    if set(value) != {"digest"}:
        return {key: _given(key, item, stored) for key, item in value.items()}
    found = stored[value["digest"]]
    if is_store(found):
        return open_parts(found).load()
    artifact = ArtifactStore(found).load()
    return made_stream(artifact) if name == "stream" else artifact


def _require_same_bytes(found: Path, expected: Path) -> None:
    if not (found.is_file() and expected.is_file()):
        raise ProvenanceError(f"{found}: made again, the index {'has' if expected.is_file() else 'lacks'} this file")
    if found.suffix != ".npy":
        if found.read_bytes() != expected.read_bytes():
            raise ProvenanceError(f"{found} is not what is made again: {_AGAIN}")
        return
    wanted = np.load(expected, mmap_mode="r" if expected.stat().st_size > _HEADER else None)
    held = map_array(found, len(wanted))
    if (at := first_difference(held, wanted)) is not None:
        raise Mismatch(f"{found} entry {at:,}", f"{int(wanted[at]):,}", f"{int(held[at]):,}", _AGAIN)
    if held.dtype != wanted.dtype:
        raise ProvenanceError(f"{found} holds {held.dtype}, expected {wanted.dtype}")
