"""Pipeline `release`."""

from everytoken.pipelines.release.pipeline import create_pipeline

__all__ = ["create_pipeline"]
