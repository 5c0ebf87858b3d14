"""Tokenization: documents become windows of tokens."""

from everytoken.pipelines.tokenization.pipeline import create_pipeline

__all__ = ["create_pipeline"]
