"""Chat: from upstream files to a model that answers: pretrained on all documents, finetuned on chats."""

from kedro.pipeline import Pipeline

from everytoken.pipelines import evaluation, finetuning, ingestion, provenance, splitting, tokenization, training
from everytoken.tokens.streams import window_kinds


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    compact = [kind for kind in window_kinds() if kind.split == "unannotated"]
    steps = [
        ingestion.create_pipeline(),
        splitting.create_pipeline(),
        tokenization.create_pipeline(),
        provenance.create_pipeline(),
        training.create_pipeline(compact),
        finetuning.create_pipeline(),
        evaluation.create_pipeline(compact),
    ]
    return sum(steps, Pipeline([]))
