"""Verification: rebuilt streams are those of the release, byte for byte."""

from everytoken.pipelines.verification.pipeline import create_pipeline

__all__ = ["create_pipeline"]
