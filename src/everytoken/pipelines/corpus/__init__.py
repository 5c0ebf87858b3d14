"""Corpus: the job that turns public text into documents, streams and a model."""

from everytoken.pipelines.corpus.pipeline import create_pipeline

__all__ = ["create_pipeline"]
