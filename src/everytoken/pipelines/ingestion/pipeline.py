"""Ingestion: upstream files -> shard plan -> documents as upstream has them -> documents of the corpus."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.ingestion.nodes import (
    choose_documents,
    count_evaluation_ngrams,
    find_duplicate_documents,
    find_evaluation_ngrams,
    find_upstream_files,
    index_evaluation_files,
    judge_contamination,
    list_dropped_documents,
    plan_shards,
    read_documents,
    report_contamination,
    report_ingestion,
    sketch_documents,
    take_documents,
)


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                find_upstream_files, "params:ingestion", "upstream_files", name="find_upstream_files", tags=["listing"]
            ),
            Node(
                plan_shards,
                ["upstream_files", "params:ingestion", "params:expect"],
                "shard_plan",
                name="plan_shards",
                tags=["listing"],
            ),
            Node(
                read_documents,
                ["shard_plan", "upstream_files", "params:ingestion"],
                "upstream_documents",
                name="read_documents",
            ),
            Node(
                sketch_documents,
                ["upstream_documents", "params:ingestion"],
                "document_sketches",
                name="sketch_documents",
            ),
            Node(
                find_duplicate_documents,
                ["upstream_documents", "document_sketches", "params:ingestion"],
                "duplicates",
                name="find_duplicate_documents",
            ),
            Node(index_evaluation_files, "params:ingestion", "evaluation_ngrams", name="index_evaluation_files"),
            Node(
                find_evaluation_ngrams,
                ["upstream_documents", "evaluation_ngrams", "params:ingestion"],
                "ngram_matches",
                name="find_evaluation_ngrams",
            ),
            Node(
                count_evaluation_ngrams,
                ["ngram_matches", "duplicates", "evaluation_ngrams", "params:ingestion"],
                "ngram_counts",
                name="count_evaluation_ngrams",
            ),
            Node(
                judge_contamination,
                ["ngram_matches", "ngram_counts", "duplicates", "evaluation_ngrams", "params:ingestion"],
                "contamination",
                name="judge_contamination",
            ),
            Node(
                report_contamination,
                ["contamination", "ngram_counts"],
                "contamination_report",
                name="report_contamination",
                tags=["report"],
            ),
            Node(
                choose_documents,
                ["upstream_documents", "duplicates", "contamination", "token_counts_when_made", "params:ingestion"],
                "selection",
                name="choose_documents",
            ),
            Node(
                take_documents,
                ["upstream_documents", "selection", "params:ingestion"],
                "documents",
                name="take_documents",
            ),
            Node(
                list_dropped_documents,
                ["upstream_documents", "duplicates", "contamination", "selection", "params:ingestion"],
                "dropped_documents",
                name="list_dropped_documents",
            ),
            Node(
                report_ingestion,
                ["upstream_documents", "selection", "documents", "dropped_documents", "contamination_report"],
                ["ingestion_metrics", "ingestion_report", "ingestion_figure"],
                name="report_ingestion",
                tags=["report"],
            ),
        ],
        namespace="ingestion",
        prefix_datasets_with_namespace=False,
    )
