"""Corpus: the whole job, from upstream files to an evaluated model. Other pipelines run on request."""

from kedro.pipeline import Pipeline

from everytoken.pipelines import (
    annotation,
    evaluation,
    ingestion,
    provenance,
    subsampling,
    tokenization,
    training,
)


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    steps = (ingestion, annotation, subsampling, tokenization, provenance, training, evaluation)
    return sum((step.create_pipeline() for step in steps), Pipeline([]))
