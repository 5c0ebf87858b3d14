"""Splitting: documents without scores, held out or trained on."""

from everytoken.pipelines.splitting.pipeline import create_pipeline

__all__ = ["create_pipeline"]
