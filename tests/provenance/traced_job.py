"""A small job with texts that are hard to trace, all its streams with their indexes, and two trained checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kedro.io import MemoryDataset
from kedro.pipeline import Pipeline
from kedro.runner import SequentialRunner

from everytoken.parameters import FinetuningParameters, ProvenanceParameters, TrainingParameters
from everytoken.pipelines import (
    annotation,
    canary,
    finetuning,
    ingestion,
    packing,
    provenance,
    subsampling,
    tokenization,
    training,
)
from everytoken.provenance.lookup.dataset_locations import Places
from everytoken.provenance.lookup.document_records import DocumentRecords
from everytoken.provenance.lookup.runs import OpenRun, Run, open_run
from everytoken.tokens.order.loader import WindowStream
from everytoken.tokens.order.parameters import DataParameters
from tests.provenance.small_job import SmallJob, write_upstream

HOSTILE = "</script><script>hacked=1</script>\u202e\u0000 <|endoftext|> \u2028 ]]>"
WORDS = ["naïve", "café", "日本語", "👩‍👩‍👧", "e\u0301", "Ωmega", "the", "of", "tides", "\t", "salt", HOSTILE]
RUN = {"optimisation.steps": 7, "optimisation.batch_size": 3, "optimisation.micro_batch_size": 3}
MODELS = {"provenance": ProvenanceParameters, "training": TrainingParameters, "finetuning": FinetuningParameters}
STREAMS = {"compact": "compact_stream", "annotated": "annotated_stream", "canary": "canary_stream"}


def text_of(source: str, number: int) -> str:
    if source == "notes":
        return "\n".join(f"{'AB'[k % 2]}: {words(number, 3 + (number + k) % 19, k)}" for k in range(2 + number % 5))
    text = words(number + 100 * (source == "open"), 2 + number * 7 % 90, 0)
    return f"{source} {number}\n\n{text}" if source == "open" else text


def words(number: int, count: int, shift: int) -> str:
    """Words of many scripts; the rare characters have no token of their own, so that windows begin inside some."""
    rare = "".join(chr(0x4E00 + 97 * number + k) for k in range(9 + shift))
    said = [
        WORDS[(number * 5 + k * 3 + shift) % len(WORDS)] + (str(number) if k % 4 == 0 else "") for k in range(count)
    ]
    return " ".join([*said[: count // 2], rare, *said[count // 2 :]])


def rows_of(source: str) -> list[dict[str, Any]]:
    rows = [{"id": f"{source}-{i}", "text": text_of(source, i)} for i in range(60)]
    if source == "articles":
        rows[10]["text"] = rows[4]["text"]  # a duplicate, under another id
        rows[11]["text"] = ""  # too short
        rows[12]["id"] = rows[13]["id"] = "twice"
        rows[14]["id"] = None
    return rows


@dataclass(frozen=True)
class TracedJob:
    """What was made, and where."""

    job: SmallJob
    places: Places

    @property
    def records(self) -> DocumentRecords:
        return DocumentRecords(self.places)

    @property
    def checkpoint_folders(self) -> list[Path]:
        return [self.job.data / "06_models" / "checkpoints"]

    def digest(self, dataset: str) -> str:
        return self.places.artifacts[dataset].root_digest

    def table(self, dataset: str, columns: list[str]) -> list[dict[str, Any]]:
        return [row for part in self.job.catalog.load(dataset) for row in part.table(columns).to_pylist()]

    def run(self, streams: dict[str, str], steps: int, batch_size: int, **data: Any) -> OpenRun:
        """A run that nobody trained, of streams by name and dataset."""
        given = {
            "schedule": "integer",
            "weights": None,
            "replay": None,
            "later_epochs": "as_written",
            "seed": 3,
            "check": "sizes",
            "document_mask": False,
            **data,
        }
        pairs = tuple((name, self.digest(dataset)) for name, dataset in streams.items())
        described = Run("built", "0" * 64, pairs, DataParameters(**given), batch_size, 64, steps)
        return open_run(self.places, described, {})


def make(folder: Path, *, trained: bool = False) -> TracedJob:
    write_upstream(folder)
    for source in ("articles", "notes", "open"):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of(source))
        (folder / "upstream" / f"{source}.jsonl").write_text(lines, encoding="utf-8")
    said = {"kind": "lines", "speakers": ["A", "B"], "assistant": ["B"]}
    changes: dict[str, Any] = {
        "ingestion.dedup": {"exact": True, "near": None},
        "finetuning.chats.sources": {"notes": said, "open": {"kind": "after", "mark": "\n\n"}},
        "finetuning.chats.include_bad": True,
        "packing.shard_size_tokens": 900,
        "subsampling.target_tokens": 11_000,  # so that some documents are not drawn
        "training.optimisation.held_out": {"every_steps": 100, "documents": 1, "batch_size": 1},
        "training.optimisation.samples": {**_SAMPLES},
        "training.checkpoints.every_steps": 3,
        "training.checkpoints.milestone_steps": 3,
        "finetuning.optimisation.held_out": {"every_steps": 100, "documents": 1, "batch_size": 1},
        "finetuning.checkpoints.every_steps": 2,
        "finetuning.optimisation.steps": 12,
        **{f"training.{name}": value for name, value in RUN.items()},
    }
    job = SmallJob(folder, changes=changes)
    for name, model in MODELS.items():
        job.catalog[f"params:{name}"] = MemoryDataset(model.model_validate(job.parameters[name]))
    job.run(
        ingestion, annotation, subsampling, tokenization, provenance, canary, packing, *([training] if trained else [])
    )
    wanted = ["chat_index", *(["finetuned_checkpoint"] if trained else [])]
    SequentialRunner().run(Pipeline(finetuning.create_pipeline().to_outputs(*wanted).nodes), job.catalog)
    paths = {name: Path(job.catalog[name]._describe()["filepath"]) for name in job.catalog if _is_stored(job, name)}
    return TracedJob(job, Places(paths, "test"))


_SAMPLES = {"every_steps": 100, "prompts": ["a"], "max_new_tokens": 1, "temperature": 0.0, "top_k": None, "seed": 1}


def _is_stored(job: SmallJob, name: str) -> bool:
    return "filepath" in job.catalog[name]._describe()


def windows_of(stream: WindowStream) -> np.ndarray:
    return np.asarray(stream.tokens(np.arange(len(stream))), np.int64)


def scanned(opened: OpenRun) -> Iterator[tuple[int, str, int]]:
    """Yield (sample, stream, window) of every sample of a run, one after the other."""
    for step in range(opened.run.steps):
        streams, windows = opened.order.locate(opened.order.samples_of_step(step))
        for offset, (stream, window) in enumerate(zip(streams.tolist(), windows.tolist(), strict=True)):
            yield step * opened.run.batch_size + offset, opened.order.names[stream], window
