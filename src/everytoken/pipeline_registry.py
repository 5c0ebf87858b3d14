"""The pipelines by name, and all of them in order as the default."""

from kedro.framework.project import find_pipelines
from kedro.pipeline import Pipeline


def register_pipelines(pipelines_to_find: list[str] | None = None) -> dict[str, Pipeline]:
    """Return every pipeline of `everytoken.pipelines` by name, and their sum as ``__default__``.

    Args:
        pipelines_to_find: only these, when Kedro asks for some (``kedro run --pipelines NAME``).
    """
    pipelines = find_pipelines(raise_errors=True, pipelines_to_find=pipelines_to_find)
    pipelines["__default__"] = sum(pipelines.values(), Pipeline([]))
    return pipelines
