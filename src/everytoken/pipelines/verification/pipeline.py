"""Verification: streams and release -> checks, and a stop at a difference."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.verification.nodes import compare_with_release, compared_kinds, require_equal_streams


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                compare_with_release,
                ["params:replay", *(kind.input for kind in compared_kinds())],
                "verification_report",
                name="compare_with_release",
            ),
            Node(
                require_equal_streams,
                ["verification_report", "replay_metrics", "params:replay"],
                "verification_metrics",
                name="require_equal_streams",
            ),
        ],
        namespace="verification",
        prefix_datasets_with_namespace=False,
    )
