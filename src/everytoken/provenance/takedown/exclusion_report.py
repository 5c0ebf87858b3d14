"""What a take-down changes: noted before, compared after, window by window.

Before: which windows of which stream hold each document, which steps of which trained checkpoint read them, and a
CRC-32 of every window. After: which parts were made again, which windows have other bytes, and that these are the
documents' and no others.

When documents are taken back, the same is noted and compared, the other way round.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.exposure import Held, exposures_of, windows_holding
from everytoken.provenance.indexes import (
    WINDOW_INDEXES,
    DocumentIndex,
    StreamIndex,
    index_documents,
    made_stream,
    open_document_index,
    open_stream_index,
)
from everytoken.provenance.lookup import TRAINED, OpenRun, Places, describe_run, open_run
from everytoken.provenance.releases import SPLITS, write_window_checksums
from everytoken.provenance.takedown.exclusion_request import ExcludedDocument
from everytoken.shards import LEDGER_FILE, Artifact, ArtifactStore, Ledger, Shards, plan_artifact, write_text
from everytoken.shards.remote import open_parts
from everytoken.tokens.order import WindowStream, open_window_stream
from everytoken.tokens.streams import (
    LOSS_MASK_FILE,
    SIDECAR_FILE,
    STREAM_KINDS,
    TOKEN_LENGTHS_FILE,
    StreamKind,
    WindowCounts,
    open_indexed,
    open_loss_mask,
    unpack_mask,
)

EXCLUSION_FORMAT = "everytoken-exclusion/1"
_STORES = ("held_out_documents", "annotated_tokens", "unannotated_tokens")

_SIDECAR_OF = "annotated"
_BEFORE_FILE = "before.json"
_MEMORY = 256 << 20  # for sorting an index that the environment does not have


def kinds_with_tombstones() -> dict[str, StreamKind]:
    """Return the kinds of streams whose windows keep their places in a take-down, by name."""
    return {name: kind for name, kind in STREAM_KINDS.items() if kind.exclusion == "tombstones"}


def rebuilt_kinds() -> dict[str, StreamKind]:
    """Return the kinds of streams that a take-down makes again as a whole, by dataset."""
    return {kind.dataset: kind for kind in STREAM_KINDS.values() if kind.exclusion == "rebuild"}


def splits_of(places: Places) -> dict[str, Shards]:
    """Return the three splits of an environment, by name.

    Raises:
        ProvenanceError: one has not been made.
    """
    return {split: open_parts(places.store(f"{split}_documents")).load() for split in SPLITS}


def document_index(places: Places, scratch: Path) -> DocumentIndex:
    """Return the index of the splits: the environment's, or one made now in ``scratch``."""
    splits = splits_of(places)
    if (made := places.artifacts.get("document_index")) is not None:
        try:
            return open_document_index(made, splits)
        except ProvenanceError:  # of splits that were made again since
            pass
    folder = scratch / "documents"
    folder.mkdir()
    index_documents(folder, documents=splits, memory=_MEMORY)
    return open_document_index(folder, splits)


def stream_indexes(places: Places, scratch: Path) -> dict[str, Artifact]:
    """Return the indexes of the streams that take-downs change, by name: the environment's, or made now."""
    return {name: _stream_index(places, name, scratch) for name in kinds_with_tombstones()}


def _stream_index(places: Places, name: str, scratch: Path) -> Artifact:
    stream, kind = _stream(places, name), STREAM_KINDS[name]
    if (found := places.indexes.get(stream.root_digest)) is not None:
        return found
    given = stream.ledger["recipe"]["parameters"]
    planned = plan_artifact(
        WINDOW_INDEXES[kind.layout],
        lengths=open_parts(places.store(f"{kind.split}_tokens")).load(),
        split=kind.split,
        stream=made_stream(stream),
        seq_length=given["seq_length"],
        seed=given["seed"],
    )
    return ArtifactStore(scratch / name).save(planned)


def _stream(places: Places, name: str) -> Artifact:
    dataset = STREAM_KINDS[name].dataset
    if (found := places.artifacts.get(dataset)) is None:
        raise ProvenanceError(
            f"there is no {dataset} in the environment {places.environment!r}, or it is not whole: nothing can "
            f"be excluded before it is made. Run kedro run{places.options}"
        )
    return found


@dataclass(frozen=True)
class Before:
    """What was noted before anything was changed; kept in a folder until the report is written.

    Attributes:
        folder: holds ``<stream>.npy``, a CRC-32 of each window.
        facts: plain JSON: list (its SHA-256), whether documents come back (``revoked``), documents (with windows and
            exposures), runs, streams, stores, ``sidecar`` (SHA-256 of that of the annotated stream), ``also``: what
            else is made again, as it was there.
    """

    folder: Path
    facts: Mapping[str, Any]


def noted_before(folder: Path) -> Before | None:
    """Return what was noted before a run that was stopped; None where none was."""
    path = folder / _BEFORE_FILE
    return Before(folder, json.loads(path.read_bytes())) if path.is_file() else None


def note_before(
    folder: Path,
    places: Places,
    documents: Sequence[ExcludedDocument],
    indexes: Mapping[str, Artifact],
    checkpoint_folders: Sequence[Path],
    sha256: str,
    *,
    revoked: bool = False,
) -> Before:
    """Note what will change.

    Args:
        documents: that will be excluded, or come back.
        sha256: of the list that will be in force.
        revoked: whether they come back; what was trained on the streams before is not asked for then.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    streams = {}
    for name in kinds_with_tombstones():
        stream = _stream(places, name)
        write_window_checksums(stream.path(f"{name}.bin"), _window_bytes(stream, name), folder / f"{name}.npy")
        streams[name] = {"before": stream.root_digest, "windows": stream.statistics_as(WindowCounts)["windows"]}
    runs, notes = ([], []) if revoked else _runs(places, checkpoint_folders)
    windows = {name: open_window_stream(_stream(places, name), "sizes") for name in kinds_with_tombstones()}
    opened = {name: open_stream_index(index) for name, index in indexes.items()}
    facts = {
        "list": sha256,
        "revoked": revoked,
        "documents": [_described(places, document, windows, opened, runs) for document in documents],
        "runs": [{"name": one.run.name, "digest": one.run.digest, "steps": one.run.steps} for one in runs],
        "notes": notes,
        "streams": streams,
        "stores": {name: _parts(places, name) for name in _STORES},
        "sidecar": _stream(places, _SIDECAR_OF).ledger["files"][SIDECAR_FILE]["sha256"],
        "also": [name for name in rebuilt_kinds() if places.has(name)],
    }
    write_text(folder / _BEFORE_FILE, json.dumps(facts, ensure_ascii=False))
    return Before(folder, facts)


def _window_bytes(stream: Artifact, name: str) -> int:
    windows = open_indexed(stream.path(f"{name}.bin").with_suffix("")).windows()
    return int(windows.shape[1]) * windows.dtype.itemsize


def _parts(places: Places, name: str) -> dict[str, list[str]]:
    """Return fingerprint, content digest and SHA-256 of the file of every part of a store."""
    ledger = Ledger.read(places.store(name) / LEDGER_FILE)
    return {part.name: [part.fingerprint, part.content_digest, part.sha256] for part in ledger.parts}


def _runs(places: Places, checkpoint_folders: Sequence[Path]) -> tuple[list[OpenRun], list[str]]:
    """Return the trainings of the environment that can be opened, and of the others why not."""
    opened, notes = [], []
    for name, artifact in places.artifacts.items():
        if artifact.ledger["recipe"]["function"] != TRAINED:
            continue
        try:
            opened.append(open_run(places, describe_run(name, artifact, checkpoint_folders), {}))
        except ProvenanceError as error:
            notes.append(f"which steps of {name} read the documents is not known: {error}")
    return opened, notes


def _described(
    places: Places,
    document: ExcludedDocument,
    streams: Mapping[str, WindowStream],
    indexes: Mapping[str, StreamIndex],
    runs: Sequence[OpenRun],
) -> dict[str, object]:
    windows = {
        name: [_held_json(held) for held in windows_holding(streams[name], name, index, document.place)]
        for name, index in indexes.items()
    }
    seen = [exposure for opened in runs for exposure in _seen(places, opened, document, indexes)]
    return {
        **document.to_json(),
        "windows": {name: held for name, held in windows.items() if held},
        "exposures": seen,
    }


def _held_json(held: Held) -> dict[str, object]:
    return {"window": held.window, "positions": [held.at, held.until], "counted": held.counted}


def _seen(
    places: Places, opened: OpenRun, document: ExcludedDocument, indexes: Mapping[str, StreamIndex]
) -> Iterator[dict[str, object]]:
    digests = dict(opened.run.streams)
    for stream in opened.windows.streams:
        index = indexes.get(stream.name)
        if index is None or index.stream != digests[stream.name]:
            found = places.indexes.get(digests[stream.name])
            index = None if found is None else open_stream_index(found, opened.run.seq_length)
        if index is None:
            continue
        for held in windows_holding(stream, stream.name, index, document.place):
            for one in exposures_of(opened, held):
                yield {
                    "run": one.run,
                    "step": one.step,
                    "sequence": one.sequence,
                    "stream": stream.name,
                    "window": held.window,
                    "tokens": one.tokens,
                }


def compare_after(before: Before, places: Places, faults: Iterable[str] = ()) -> dict[str, object]:
    """Return the report: what was noted before, and what is now. Nothing is raised: see ``faults`` in it.

    Args:
        faults: that were found elsewhere; they come first.
    """
    facts, faults = before.facts, list(faults)
    streams, stores = {}, {}
    for name in kinds_with_tombstones():
        expected = _expected(facts, name)
        found, wrong = _compare_windows(before, places, name, expected)
        streams[name] = {**facts["streams"][name], **found}
        faults += wrong
    for name in _STORES:
        old, new = facts["stores"][name], _parts(places, name)
        if set(old) != set(new):
            faults.append(f"{name} had {len(old):,} parts and has {len(new):,}: it was made from another plan")
        both = sorted(set(old) & set(new))
        stores[name] = {
            "parts": len(new),
            "kept": sum(old[part] == new[part] for part in both),
            "made_again": [part for part in both if old[part][0] != new[part][0]],
            "changed": [part for part in both if old[part][1] != new[part][1]],
        }
    told = {name: facts[name] for name in ("list", "revoked", "documents", "runs", "notes")}
    return {"format": EXCLUSION_FORMAT, **told, "streams": streams, "stores": stores, "faults": faults}


def _expected(facts: Mapping[str, Any], name: str) -> dict[int, list[list[int]]]:
    """Return the positions of the documents, by window: of excluded ones all must be EOS now."""
    expected: dict[int, list[list[int]]] = {}
    for document in facts["documents"]:
        for held in document["windows"].get(name, []):
            expected.setdefault(held["window"], []).append(held["positions"])
    return expected


def _compare_windows(
    before: Before, places: Places, name: str, expected: Mapping[int, list[list[int]]]
) -> tuple[dict[str, object], list[str]]:
    stream, dataset = _stream(places, name), STREAM_KINDS[name].dataset
    after = before.folder / f"{name}_after.npy"
    write_window_checksums(stream.path(f"{name}.bin"), _window_bytes(stream, name), after)
    old, new = (np.load(path, mmap_mode="r") for path in (before.folder / f"{name}.npy", after))
    if old.shape != new.shape:
        fault = f"{dataset} had {len(old):,} windows and has {len(new):,}: it was made with other parameters"
        return {"after": stream.root_digest, "changed_windows": None}, [fault]
    changed = np.flatnonzero(old != new).tolist()
    faults = []
    if others := sorted(set(changed) - set(expected)):
        faults.append(
            f"{dataset}: {len(others):,} windows changed that hold none of the documents (the first is "
            f"{others[0]:,}). The stream was made with other parameters than before: give the same --params and "
            "--env as to the run that made it"
        )
    if not before.facts["revoked"]:
        faults += _not_gone(stream, name, expected)
    return {"after": stream.root_digest, "changed_windows": changed}, faults


def _not_gone(stream: Artifact, name: str, expected: Mapping[int, list[list[int]]]) -> Iterator[str]:
    """Yield where a token of an excluded document is not EOS, or a prediction of one counts."""
    kind, windows = STREAM_KINDS[name], open_indexed(stream.path(f"{name}.bin").with_suffix("")).windows()
    eos = stream.statistics_as(WindowCounts)["tokenizer"]["eos_id"]
    mask_path = stream.path(f"{name}.bin").with_name(LOSS_MASK_FILE)
    masks = open_loss_mask(mask_path, len(windows), windows.shape[1] - 1) if mask_path.is_file() else None
    lengths = np.load(stream.path(TOKEN_LENGTHS_FILE), mmap_mode="r") if kind.layout == "padded" else None
    for window, positions in sorted(expected.items()):
        for first, end in positions:
            if (windows[window, first:end] != eos).any():
                yield f"{kind.dataset} window {window:,}: positions {first:,} to {end:,} are not all EOS {eos}"
            counted = None if masks is None else unpack_mask(masks[window : window + 1], windows.shape[1] - 1)[0]
            counts = (
                bool(lengths[window])
                if lengths is not None
                else (counted is None or bool(counted[max(first - 1, 0) : end - 1].any()))
            )
            if counts:
                yield f"{kind.dataset} window {window:,}: predictions of an excluded document count in the loss"


def finish(before: Before, report: Mapping[str, Any], path: Path) -> None:
    """Write the report, with those before it in ``earlier``, and remove what was noted before."""
    earlier = []
    if path.is_file():
        last = json.loads(path.read_bytes())
        earlier = [*last.pop("earlier", []), last]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({**report, "earlier": earlier}, ensure_ascii=False, indent=1) + "\n")
    shutil.rmtree(before.folder)
