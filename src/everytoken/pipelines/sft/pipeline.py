"""Post-training data: files of prompts -> a mix -> answers of a generator -> chats. On request.

The generator, its constitution and its facts are those of ``reflection``; no document and no stream is needed.
"""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.sft.nodes import ask_for_answers, find_pools, make_chats, make_prompts, report_chats


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(find_pools, "params:sft", "sft_files", name="find_pools", tags=["listing"]),
            Node(make_prompts, ["sft_files", "params:sft", "params:ingestion"], "sft_prompts", name="make_prompts"),
            Node(
                ask_for_answers, ["sft_prompts", "params:sft", "params:reflection"], "sft_replies", name="ask_prompts"
            ),
            Node(
                make_chats,
                ["sft_replies", "sft_prompts", "params:sft", "params:reflection"],
                "sft_chats",
                name="make_chats",
            ),
            Node(report_chats, "sft_chats", "sft_metrics", name="report_chats", tags=["report"]),
        ],
        namespace="sft",
        prefix_datasets_with_namespace=False,
    )
