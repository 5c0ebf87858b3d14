"""Release: splits, token streams and what made them -> a folder without text that rebuilds them exactly. On request."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.release.job import described_job
from everytoken.pipelines.release.nodes import (
    assemble_release,
    description_of,
    list_annotated,
    list_held_out,
    list_released_reflections,
    list_unannotated,
    list_withheld_ids,
    report_release,
)
from everytoken.tokens.streams import STREAM_KINDS, released_kinds

_ANNOTATED = STREAM_KINDS["annotated"].dataset


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    job = described_job()
    return Pipeline(
        [
            *job.planned_again().nodes,
            Node(list_withheld_ids, ["scored_documents", "exclusions"], "withheld_ids", name="list_withheld_ids"),
            Node(
                list_annotated,
                ["annotated_documents", "annotated_tokens", "exclusions", "withheld_ids"],
                "annotated_manifest",
                name="list_annotated",
            ),
            Node(
                list_unannotated,
                ["unannotated_documents", "unannotated_tokens", "exclusions", "withheld_ids"],
                "unannotated_manifest",
                name="list_unannotated",
            ),
            Node(list_held_out, ["held_out_documents", "withheld_ids"], "held_out_manifest", name="list_held_out"),
            Node(
                list_released_reflections,
                [
                    *("reflections_columns_when_made", _ANNOTATED, "tokenizer", "params:tokenization"),
                    *("params:ingestion", "params:release"),
                ],
                "reflections_manifest",
                name="list_released_reflections",
            ),
            Node(
                description_of(job),
                {"release": "params:release", **job.inputs()},
                "released_job",
                name="describe_job",
            ),
            Node(
                assemble_release,
                [
                    "released_job",
                    "shard_plan",
                    "annotated_manifest",
                    "unannotated_manifest",
                    "held_out_manifest",
                    "annotated_documents",
                    "unannotated_documents",
                    "held_out_documents",
                    "upstream_documents",
                    "withheld_ids",
                    "classifications",
                    "reflections_manifest",
                    "tokenizer",
                    "params:ingestion",
                    "params:release",
                    *(kind.input for kind in released_kinds()),
                ],
                "release",
                name="assemble_release",
            ),
            Node(
                report_release,
                ["release", "released_job", "params:release"],
                ["release_report", "release_metrics"],
                name="report_release",
                tags=["report"],
            ),
        ],
        namespace="release",
        prefix_datasets_with_namespace=False,
    )
