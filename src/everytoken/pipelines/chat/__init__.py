"""Job `chat`."""

from everytoken.pipelines.chat.pipeline import create_pipeline

__all__ = ["create_pipeline"]
