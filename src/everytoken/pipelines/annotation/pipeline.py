"""Annotation: documents -> scored documents, and the table of their scores."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.annotation.nodes import (
    classify_documents,
    find_score_files,
    plot_scores,
    prepare_scorer,
    report_scores,
    score_documents,
)


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(find_score_files, "params:annotation", "score_files", name="find_score_files", tags=["listing"]),
            Node(prepare_scorer, ["documents", "score_files", "params:annotation"], "scorer", name="prepare_scorer"),
            Node(
                score_documents,
                ["documents", "scorer", "params:annotation"],
                "scored_documents",
                name="score_documents",
            ),
            Node(
                classify_documents,
                ["scored_documents", "params:annotation"],
                "classifications",
                name="classify_documents",
            ),
            Node(
                report_scores,
                [
                    "scored_documents",
                    "scorer",
                    "classifications",
                    "params:annotation",
                    "params:subsampling",
                    "params:expect",
                ],
                ["annotation_metrics", "scorer_metadata", "score_report"],
                name="report_scores",
                tags=["report"],
            ),
            Node(plot_scores, "score_report", "score_distribution", name="plot_scores", tags=["report"]),
        ],
        namespace="annotation",
        prefix_datasets_with_namespace=False,
    )
