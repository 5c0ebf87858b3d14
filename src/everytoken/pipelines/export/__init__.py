"""Export: the splits as files with their texts."""

from everytoken.pipelines.export.pipeline import create_pipeline

__all__ = ["create_pipeline"]
