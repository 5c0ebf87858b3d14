"""Provenance: where every token of the streams came from."""

from everytoken.pipelines.provenance.pipeline import create_pipeline

__all__ = ["create_pipeline"]
