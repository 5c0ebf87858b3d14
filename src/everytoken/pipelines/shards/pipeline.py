"""Shards: from upstream files to raw shards, and a model that is trained on them and evaluated. Nothing is scored."""

from kedro.pipeline import Pipeline

from everytoken.pipelines import evaluation, ingestion, packing, provenance, splitting, tokenization, training
from everytoken.tokens.streams import trainable_kinds


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    shards = [kind for kind in trainable_kinds() if kind.layout == "flat"]
    steps = [
        ingestion.create_pipeline(),
        splitting.create_pipeline(),
        tokenization.create_pipeline().to_outputs("engine_certificate"),
        packing.create_pipeline(),
        provenance.create_pipeline().to_outputs("document_index"),
        training.create_pipeline(shards),
        evaluation.create_pipeline(shards),
    ]
    return sum(steps, Pipeline([]))
