"""The pipelines by name, the same in every environment.

A *job* is a pipeline that a run without ``--pipelines`` has:

- ``corpus``: a scored corpus, its streams, and a model of them;
- ``shards``: raw shards, and a model of them;
- ``chat``: a model that answers;
- ``pretraining``: a model of streams on disk;
- ``replay``: the streams of a release again.

An environment names its job in ``globals.yml``; `everytoken.configuration.JobContext` looks that up, and gives the
other pipelines the nodes that they have in the job. Without an environment, as in ``kedro registry list``, the default
is `DEFAULT_JOB`.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from kedro.framework.project import find_pipelines
from kedro.pipeline import Pipeline

DEFAULT_JOB = "corpus"
JOBS = (DEFAULT_JOB, "shards", "chat", "pretraining", "replay")
"""Pipelines that ``job`` in ``globals.yml`` may name."""


def register_pipelines() -> dict[str, Pipeline]:
    """Return the pipeline of every folder of `everytoken.pipelines`, or of those that Kedro asks for."""
    with _without_collector():
        found = find_pipelines(raise_errors=True)
    if DEFAULT_JOB in found:  # not for `kedro run --pipelines tokenization`
        found["__default__"] = found[DEFAULT_JOB]
    return found


@contextmanager
def _without_collector() -> Iterator[None]:
    """Import without the garbage collector, which would walk again and again through objects that stay: a second."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # what is imported is not looked at later either
        if was_on:
            gc.enable()
