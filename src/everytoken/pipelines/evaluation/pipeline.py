"""Evaluation: checkpoint and held-out documents -> bits per byte, samples."""

from collections.abc import Sequence

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.evaluation.nodes import generate_samples, measure_bits_per_byte, report_evaluation
from everytoken.pipelines.training.pipeline import streams_of_job
from everytoken.tokens.streams import StreamKind


def create_pipeline(kinds: Sequence[StreamKind] | None = None) -> Pipeline:
    """Return the pipeline; ``kinds`` of streams are those that the job has, by default those of ``corpus``."""
    return Pipeline(
        [
            Node(
                measure_bits_per_byte,
                {
                    "checkpoint": "checkpoint",
                    "held_out_documents": "held_out_documents",
                    "tokenizer": "tokenizer",
                    "tokenization": "params:tokenization",
                    "training": "params:training",
                    "parameters": "params:evaluation",
                    **streams_of_job(kinds),
                },
                "held_out_evaluation",
                name="measure_bits_per_byte",
            ),
            Node(
                generate_samples,
                ["checkpoint", "held_out_documents", "tokenizer", "params:tokenization", "params:evaluation"],
                "generations",
                name="generate_samples",
            ),
            Node(
                report_evaluation,
                ["held_out_evaluation", "generations"],
                ["evaluation_metrics", "bits_per_byte_by_source", "generated_samples"],
                name="report_evaluation",
                tags=["report"],
            ),
        ],
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )
