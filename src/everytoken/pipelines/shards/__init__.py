"""Job `shards`."""

from everytoken.pipelines.shards.pipeline import create_pipeline

__all__ = ["create_pipeline"]
