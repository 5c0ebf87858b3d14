"""Post-training data: prompts, their answers, and chats for finetuning."""

from everytoken.pipelines.sft.pipeline import create_pipeline

__all__ = ["create_pipeline"]
