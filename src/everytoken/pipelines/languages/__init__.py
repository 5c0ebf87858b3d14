"""Languages: the language of each document."""

from everytoken.pipelines.languages.pipeline import create_pipeline

__all__ = ["create_pipeline"]
