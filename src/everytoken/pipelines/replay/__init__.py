"""Replay: the manifest of a release and its upstream give the documents of every split again."""

from everytoken.pipelines.replay.pipeline import create_pipeline

__all__ = ["create_pipeline"]
