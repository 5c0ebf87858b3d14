"""A small job with the reflections of a run, written by hand, in a stream of their own, and a model of it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from kedro.io import MemoryDataset
from kedro.pipeline import Pipeline
from kedro.runner import SequentialRunner

from everytoken.parameters import (
    EvaluationParameters,
    ProvenanceParameters,
    ReflectionParameters,
    TrainingParameters,
)
from everytoken.pipelines import annotation, evaluation, ingestion, provenance, subsampling, tokenization, training
from everytoken.pipelines.reflection.splicing import splicing_pipeline
from everytoken.provenance.lookup import Places
from everytoken.reflections import find_generation_run
from everytoken.shards import Part, Rows, Shards, value_digest, versioned
from tests.provenance.small_job import SmallJob, write_upstream

RUN = "reflections"
STREAMS = ("compact", "reflected")
BUDGET = 12
MODELS = {
    "provenance": ProvenanceParameters,
    "training": TrainingParameters,
    "evaluation": EvaluationParameters,
    "reflection": ReflectionParameters,
}
CHANGES: dict[str, Any] = {
    "tokenization.reflection_budget": BUDGET,
    "training.streams": list(STREAMS),
    "training.data.schedule": "spp",
    "training.optimisation.steps": 12,
    "training.optimisation.batch_size": 4,
    "training.optimisation.micro_batch_size": 4,
    "training.optimisation.held_out": {"every_steps": 100, "documents": 1, "batch_size": 1},
    "training.optimisation.samples.every_steps": 100,
}


class HasData(Protocol):
    """A job with a data folder."""

    data: Path


@versioned("test_columns_of_run", 1)
def columns_part(part: Part, *, run: str) -> Rows:
    """The rows that the value has."""
    schema = pa.schema([("row", pa.int64()), ("doc_id", pa.large_string()), ("status", pa.string())])
    schema = pa.schema([*schema, *find_generation_run(run)[0].schema()])

    def batches() -> Generator[pa.RecordBatch, None, dict[str, int]]:
        yield from pa.Table.from_pylist(part.value, schema).to_batches(7)
        return {"rows": len(part.value)}

    return Rows(schema, batches())


def said_of(row: int) -> str:
    return f"I read «{row}» and" + " wonder — é" * (row % 4)


def rows_of(job: HasData) -> list[dict[str, Any]]:
    """What the run has for each row: some failed, some have a canary, some come at the end of the content."""
    sidecar = pq.read_table(job.data / "05_model_input/annotated_stream/sidecar.parquet").to_pylist()
    found = []
    for row, told in enumerate(sidecar):
        length, values = told["token_length"], find_generation_run(RUN)[0].defaults()
        values |= {"row": row, "doc_id": told["doc_id"], "status": "failed" if row % 6 == 5 else "ok"}
        values |= {"reflection_1p": said_of(row), "reflection_3p": f"The model {row}"}
        values["reflection_token_index"] = length if row % 5 == 4 else max(1, length * 2 // 3) if length else 0
        values["canary_type"] = "Q7" if row % 7 == 0 else None
        found.append(values)
    return found


def columns_of(rows: list[dict[str, Any]]) -> Shards:
    """The rows as a run of two ranks has them."""
    values = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return Shards.from_values(values, list(map(value_digest, values))).map(columns_part, run=RUN)


def make(folder: Path, *, trained: bool = True, **splice: Any) -> SmallJob:
    write_upstream(folder)
    job = SmallJob(folder, changes=CHANGES)
    job.parameters["reflection"]["splice"] |= splice
    for name, model in MODELS.items():
        job.catalog[f"params:{name}"] = MemoryDataset(model.model_validate(job.parameters[name]))
    job.run(ingestion, annotation, subsampling, tokenization, provenance)
    job.catalog.save(f"{RUN}_columns", columns_of(rows_of(job)))
    spliced = splicing_pipeline(find_generation_run(RUN)[0])
    SequentialRunner().run(Pipeline(spliced.nodes), job.catalog)
    if trained:
        job.run(training, evaluation)
    return job


def places_of(job: SmallJob) -> Places:
    described = {name: job.catalog[name]._describe() for name in job.catalog}
    paths = {name: Path(one["filepath"]) for name, one in described.items() if "filepath" in one}
    return Places({name: path for name, path in paths.items() if not name.endswith("_when_made")}, "test")
