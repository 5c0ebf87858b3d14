"""Evaluation: checkpoint and held-out documents -> bits per byte, samples."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.evaluation.nodes import generate_samples, measure_bits_per_byte, report_evaluation
from everytoken.tokens.streams import trainable_kinds


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                measure_bits_per_byte,
                [
                    "checkpoint",
                    "held_out_documents",
                    "tokenizer",
                    "params:tokenization",
                    "params:training",
                    "params:evaluation",
                    *(kind.input for kind in trainable_kinds()),
                ],
                "held_out_evaluation",
                name="measure_bits_per_byte",
            ),
            Node(
                generate_samples,
                ["checkpoint", "tokenizer", "params:tokenization", "params:evaluation"],
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
