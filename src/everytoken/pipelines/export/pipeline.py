"""Export: annotated and unannotated documents -> split files with text. On request."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.export.nodes import export_split


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                export_split,
                [f"{split}_documents", "exclusions"],
                f"{split}_split",
                name=f"export_{split}",
            )
            for split in ("annotated", "unannotated")
        ],
        namespace="export",
        prefix_datasets_with_namespace=False,
    )
