"""Packing: all tokens as raw shards."""

from everytoken.pipelines.packing.pipeline import create_pipeline

__all__ = ["create_pipeline"]
