"""Ingestion: rows of public files become documents with an address."""

from everytoken.pipelines.ingestion.pipeline import create_pipeline

__all__ = ["create_pipeline"]
