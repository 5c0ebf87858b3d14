"""The pipelines by name, and those of a whole run in order as the default."""

from kedro.framework.project import find_pipelines
from kedro.pipeline import Pipeline

ON_REQUEST = frozenset({"canary", "packing", "pretraining", "finetuning"})  # not steps of the default job


def register_pipelines(pipelines_to_find: list[str] | None = None) -> dict[str, Pipeline]:
    """Return every pipeline of `everytoken.pipelines` by name, and as ``__default__`` all but those `ON_REQUEST`.

    Args:
        pipelines_to_find: only these, when Kedro asks for some (``kedro run --pipelines NAME``).
    """
    pipelines = find_pipelines(raise_errors=True, pipelines_to_find=pipelines_to_find)
    default = [pipeline for name, pipeline in pipelines.items() if name not in ON_REQUEST]
    pipelines["__default__"] = sum(default, Pipeline([]))
    return pipelines
