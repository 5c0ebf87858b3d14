"""Finetuning: documents, checkpoint -> chat windows -> finetuned checkpoint. On request: the default run pretrains."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.finetuning.nodes import (
    answer_prompts,
    compare_answers,
    describe_chat_format,
    describe_finetuning,
    finetune_model,
    make_chat_index,
    make_chat_windows,
)
from everytoken.pipelines.training.nodes import report_training


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                make_chat_windows,
                [
                    "unannotated_documents",
                    "annotated_documents",
                    "exclusions",
                    "tokenizer",
                    "params:tokenization",
                    "params:finetuning",
                ],
                "chat_windows",
                name="make_chat_windows",
            ),
            Node(
                make_chat_index,
                [
                    "unannotated_documents",
                    "annotated_documents",
                    "exclusions",
                    "chat_windows",
                    "tokenizer",
                    "params:tokenization",
                    "params:finetuning",
                ],
                "chat_index",
                name="make_chat_index",
            ),
            Node(
                finetune_model,
                [
                    "chat_windows",
                    "checkpoint",
                    "tokenizer",
                    "held_out_documents",
                    "params:tokenization",
                    "params:training",
                    "params:finetuning",
                ],
                "finetuned_checkpoint",
                name="finetune_model",
            ),
            Node(
                describe_chat_format,
                ["tokenizer", "params:ingestion", "params:tokenization", "params:finetuning"],
                "chat_format",
                name="describe_chat_format",
            ),
            Node(
                answer_prompts,
                ["checkpoint", "tokenizer", "params:tokenization", "params:finetuning"],
                "pretrained_generations",
                name="answer_before_finetuning",
            ),
            Node(
                answer_prompts,
                ["finetuned_checkpoint", "tokenizer", "params:tokenization", "params:finetuning"],
                "finetuned_generations",
                name="answer_after_finetuning",
            ),
            Node(
                compare_answers,
                ["pretrained_generations", "finetuned_generations"],
                "finetuned_samples",
                name="compare_answers",
                tags=["report"],
            ),
            Node(
                describe_finetuning,
                ["finetuned_checkpoint", "chat_windows", "chat_index", "finetuned_samples", "chat_format"],
                "finetuning_report",
                name="describe_finetuning",
                tags=["report"],
            ),
            Node(
                report_training,
                ["finetuned_checkpoint", "finetuning_report"],
                ["finetuning_metrics", "finetuning_history", "finetuning_loss_curve"],
                name="report_finetuning",
                tags=["report"],
            ),
        ],
        namespace="finetuning",
        prefix_datasets_with_namespace=False,
    )
