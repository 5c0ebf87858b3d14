"""Ingestion: upstream files -> shard plan -> documents."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.ingestion.nodes import find_upstream_files, plan_shards, read_documents, report_ingestion


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(find_upstream_files, "params:ingestion", "upstream_files", name="find_upstream_files"),
            Node(plan_shards, ["upstream_files", "params:ingestion"], "shard_plan", name="plan_shards"),
            Node(
                read_documents,
                ["shard_plan", "upstream_files", "params:ingestion"],
                "documents",
                name="read_documents",
            ),
            Node(
                report_ingestion,
                "documents",
                ["ingestion_metrics", "document_lengths"],
                name="report_ingestion",
                tags=["report"],
            ),
        ],
        namespace="ingestion",
        prefix_datasets_with_namespace=False,
    )
