"""Replay: the job that rebuilds the streams of a release and compares them with it.

Its own nodes make the documents of the splits from manifest and upstream; tokenization takes these as those of a first
build. Raw shards are rebuilt by ``packing``, which runs too where the release has them.
"""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines import provenance, tokenization, verification
from everytoken.pipelines.replay.nodes import (
    check_contradictions,
    find_upstreams,
    list_tombstones,
    locate_documents,
    match_documents,
    read_released_documents,
    report_replay,
    restore_splits,
    take_plan,
)
from everytoken.provenance.releases import SPLITS

_PARAMETERS = ["params:replay", "params:ingestion"]


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    steps = (tokenization, provenance, verification)
    return sum((step.create_pipeline() for step in steps), restore_pipeline())


def restore_pipeline() -> Pipeline:
    """Return the nodes that restore the documents of the splits."""
    return Pipeline(
        [
            Node(find_upstreams, _PARAMETERS, "upstream_files", name="find_upstreams"),
            Node(
                check_contradictions,
                [*_PARAMETERS, "params:subsampling", "params:expect"],
                "manifest_contradictions",
                name="check_manifest",
            ),
            Node(
                take_plan,
                ["upstream_files", *_PARAMETERS, "params:expect"],
                ["shard_plan", "upstream_changes"],
                name="take_plan",
            ),
            Node(
                read_released_documents,
                ["shard_plan", "upstream_files", "upstream_changes", "manifest_contradictions", *_PARAMETERS],
                "upstream_documents",
                name="read_released_documents",
            ),
            Node(
                locate_documents,
                ["upstream_documents", "shard_plan", "params:replay"],
                "located_documents",
                name="locate_documents",
            ),
            Node(
                match_documents,
                ["located_documents", "upstream_documents", "params:replay"],
                "document_matches",
                name="match_documents",
            ),
            Node(
                report_replay,
                [
                    *("located_documents", "document_matches", "upstream_changes", "manifest_contradictions"),
                    "params:replay",
                ],
                ["replay_metrics", "replay_report"],
                name="report_replay",
            ),
            Node(
                restore_splits,
                [
                    *("located_documents", "upstream_documents", "document_matches", "replay_report"),
                    *("params:replay", "params:subsampling"),
                ],
                [f"{split}_documents" for split in SPLITS],
                name="restore_splits",
            ),
            Node(list_tombstones, ["located_documents", "document_matches"], "exclusions", name="find_exclusions"),
        ],
        namespace="replay",
        prefix_datasets_with_namespace=False,
    )
