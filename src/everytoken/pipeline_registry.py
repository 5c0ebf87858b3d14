"""The pipelines by name, and those of a whole run in order as the default: which these are is the *job*.

An environment names its job in ``globals.yml``. ``build`` is everything but what is `ON_REQUEST`; ``replay`` rebuilds
the streams of a release, with ``packing`` where the release has raw shards. The loader of `everytoken.configuration`
chooses it before Kedro looks at the pipelines; where no environment is loaded (``kedro registry list``) it is
``build``.
"""

from collections.abc import Iterable

from kedro.framework.project import find_pipelines, pipelines
from kedro.pipeline import Pipeline

ON_REQUEST = frozenset({"canary", "finetuning", "packing", "pretraining", "release", "replay", "verification"})
"""Not steps of the job ``build``."""

JOBS: dict[str, tuple[str, ...] | None] = {
    "build": None,
    "replay": ("replay", "tokenization", "provenance", "verification"),
}

_MADE_BEFORE_VERIFICATION = {"raw_shards": "packing", "canary_stream": "canary"}

_job: tuple[str, frozenset[str]] = ("build", frozenset())  # and pipelines on request that belong to it
_registered: tuple[str, frozenset[str]] | None = None  # the job that the registered pipelines are of


def choose_job(job: str, more: Iterable[str] = ()) -> None:
    """Let the default be the pipelines of a job; those that are registered for another one are registered again.

    Args:
        job: one of `JOBS`.
        more: pipelines on request that the job ``replay`` runs too.
    """
    global _job
    _job = (job, frozenset(more))
    if _registered not in (None, _job):  # another environment was loaded in this process before, as in a notebook
        pipelines.configure(__name__)


def register_pipelines(pipelines_to_find: list[str] | None = None) -> dict[str, Pipeline]:
    """Return every pipeline of `everytoken.pipelines` by name, and as ``__default__`` those of the job.

    Args:
        pipelines_to_find: only these, when Kedro asks for some (``kedro run --pipelines NAME``).
    """
    global _registered
    _registered = _job
    found = find_pipelines(raise_errors=True, pipelines_to_find=pipelines_to_find)
    job, more = _job
    chosen = JOBS[job]
    names = None if chosen is None else (*chosen, *sorted(more))
    if "verification" in found:
        running = set(names or ()) if set(found) >= ON_REQUEST else set(found)  # --pipelines finds those it names alone
        found["verification"] = _after(found["verification"], running)
    default = [
        pipeline for name, pipeline in found.items() if (name not in ON_REQUEST if names is None else name in names)
    ]
    found["__default__"] = sum(default, Pipeline([]))
    return found


def _after(verification: Pipeline, running: set[str]) -> Pipeline:
    """Let verification wait for the streams that the same run makes; of the others it takes what was made before."""
    waited = {f"{stream}_when_made": stream for stream, maker in _MADE_BEFORE_VERIFICATION.items() if maker in running}
    return Pipeline([verification], inputs=waited)
