"""Splitting: documents -> unannotated and held-out documents, in jobs that score nothing."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.splitting.nodes import (
    hold_out_unscored,
    report_splitting,
    take_annotated,
    take_unannotated,
)
from everytoken.pipelines.subsampling.nodes import find_exclusions


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(take_annotated, ["documents", "params:subsampling"], "annotated_documents", name="take_annotated"),
            Node(
                take_unannotated, ["documents", "params:subsampling"], "unannotated_documents", name="take_unannotated"
            ),
            Node(find_exclusions, ["documents", "params:subsampling"], "exclusions", name="find_exclusions"),
            Node(
                hold_out_unscored,
                ["documents", "exclusions", "params:subsampling"],
                "held_out_documents",
                name="hold_out_documents",
            ),
            Node(
                report_splitting,
                ["documents", "annotated_documents", "unannotated_documents", "held_out_documents", "exclusions"],
                "splitting_metrics",
                name="report_splitting",
                tags=["report"],
            ),
        ],
        namespace="splitting",
        prefix_datasets_with_namespace=False,
    )
