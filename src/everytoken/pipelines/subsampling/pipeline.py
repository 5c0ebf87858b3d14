"""Subsampling: scored documents -> annotated, unannotated and held-out documents."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.subsampling.nodes import (
    draw_annotated,
    draw_unannotated,
    estimate_tokens,
    find_exclusions,
    hold_out_documents,
    plot_mixture,
    report_subsampling,
)

_DRAW = ["scored_documents", "token_estimates", "params:subsampling", "languages_when_made"]


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                estimate_tokens,
                ["scored_documents", "params:subsampling", "languages_when_made"],
                "token_estimates",
                name="estimate_tokens",
            ),
            Node(draw_annotated, _DRAW, "annotated_documents", name="draw_annotated"),
            Node(draw_unannotated, _DRAW, "unannotated_documents", name="draw_unannotated"),
            Node(find_exclusions, ["scored_documents", "params:subsampling"], "exclusions", name="find_exclusions"),
            Node(
                hold_out_documents,
                ["scored_documents", "exclusions", "params:subsampling"],
                "held_out_documents",
                name="hold_out_documents",
            ),
            Node(
                report_subsampling,
                [
                    "scored_documents",
                    "token_estimates",
                    "annotated_documents",
                    "unannotated_documents",
                    "held_out_documents",
                    "exclusions",
                    "params:subsampling",
                    "params:expect",
                ],
                ["subsampling_metrics", "subsampling_metadata", "strata_report"],
                name="report_subsampling",
                tags=["report"],
            ),
            Node(plot_mixture, "strata_report", "mixture_by_source", name="plot_mixture", tags=["report"]),
        ],
        namespace="subsampling",
        prefix_datasets_with_namespace=False,
    )
