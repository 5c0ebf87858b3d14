"""Memorisation: what the model kept of the canary stream, against triggers and texts that it never saw."""

from everytoken.pipelines.memorisation.pipeline import create_pipeline

__all__ = ["create_pipeline"]
