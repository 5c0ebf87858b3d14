"""The reflections of documents that are taken down: they leave result files, columns and streams."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from everytoken.provenance.lookup import Places
from everytoken.provenance.takedown.exclusion_report import Before
from everytoken.reflections import GENERATION_RUNS
from everytoken.reflections.development import forget_trials
from everytoken.reflections.ranks import RUN_CONFIG, ForgottenRows, follow_sidecar, forget_rows
from everytoken.shards import Artifact
from everytoken.tokens.streams import (
    REFLECTION_LENGTHS_FILE,
    SIDECAR_FILE,
    STREAM_KINDS,
    TOKEN_LENGTHS_FILE,
    WindowCounts,
    dataset_of_stream,
    open_indexed,
)

_REFLECTED = {name: kind for name, kind in STREAM_KINDS.items() if kind.base is not None}
_BASE = "annotated"


def reflection_folders(places: Places) -> list[Path]:
    """Return the folders of the generation runs of an environment, in alphabetical order."""
    found = {path.parent for name, path in places.paths.items() if name.endswith("_replies")}
    return sorted(path.parent for folder in found for path in folder.glob(f"*/{RUN_CONFIG}"))


def forget_reflections(places: Places, before: Before) -> list[ForgottenRows]:
    """Remove what was generated about the documents from the files of all runs and of their prompts; rows are windows.

    Rows of documents that come back are asked again in a run; the trials of prompts draw them again.
    """
    rows = _rows_of(before)
    folders = reflection_folders(places) if rows else []
    found = [forget_rows(folder, rows, come_back=before.facts["revoked"]) for folder in folders]
    tried = [one for data in _data_folders(places) for one in forget_trials(data, rows)]
    return [one for one in found if one.rows or one.ended] + [
        ForgottenRows(f"{run} (versions of its prompt)", count, ()) for run, count in tried
    ]


def _data_folders(places: Places) -> list[Path]:
    """Return the folders of all data that runs have their replies in."""
    return sorted({path.parents[2] for name, path in places.paths.items() if name.endswith("_replies")})


def follow_take_down(places: Places, before: Before) -> None:
    """Let runs over the annotated stream go on over the one that the take-down made."""
    stream = places.artifacts[dataset_of_stream(_BASE)]
    now = stream.ledger["files"][SIDECAR_FILE]["sha256"]
    for folder in reflection_folders(places):
        follow_sidecar(folder, before.facts.get("sidecar", ""), stream.path(SIDECAR_FILE), now)


def runs_to_merge_again(places: Places) -> dict[str, str]:
    """Return the pipeline of each run that has been merged, by the dataset that the merge reads."""
    merged = [run for run in GENERATION_RUNS.values() if places.has(f"{run.name}_columns")]
    return {
        f"{run.name}_replies": run.name if run.stream is None else STREAM_KINDS[run.stream].pipeline for run in merged
    }


def reflected_faults(places: Places, before: Before) -> Iterator[str]:
    """Yield where a reflected stream still has a token of a document that was taken down, or its reflection."""
    if before.facts["revoked"]:
        return
    rows = sorted(_rows_of(before))
    for name, kind in _REFLECTED.items():
        if (stream := places.artifacts.get(kind.dataset)) is not None:
            yield from _faults(stream, name, rows)


def _faults(stream: Artifact, name: str, rows: Collection[int]) -> Iterator[str]:
    windows = open_indexed(stream.path(f"{name}.bin").with_suffix("")).windows()
    eos = stream.statistics_as(WindowCounts)["tokenizer"]["eos_id"]
    lengths, sizes = (
        np.load(stream.path(file), mmap_mode="r") for file in (TOKEN_LENGTHS_FILE, REFLECTION_LENGTHS_FILE)
    )
    for row in rows:
        if (windows[row] != eos).any() or lengths[row] or sizes[row]:
            yield f"{STREAM_KINDS[name].dataset} window {row:,}: it is not EOS alone, and its document is excluded"


def _rows_of(before: Before) -> set[int]:
    documents = before.facts["documents"]
    return {held["window"] for document in documents for held in document["windows"].get(_BASE, [])}
