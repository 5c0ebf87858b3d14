"""A run that lacks parameters or data is refused before it begins, and before it is recorded."""

from __future__ import annotations

from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline

from everytoken.configuration.errors import MissingConfigurationError
from everytoken.datasets import ArtifactFolder, ShardStore

_PARAMETERS = "params:"


class MissingInputsHook:
    """Lets no run begin that reads parameters which the environment does not have, or stores that were not made."""

    @hook_impl(tryfirst=True)
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: DataCatalog) -> None:
        """Refuse it before the tracking of runs looks at its parameters."""
        self._require_parameters(run_params, pipeline, catalog)
        for name in sorted(pipeline.inputs()):
            if isinstance(dataset := catalog.get(name), ArtifactFolder | ShardStore) and not dataset.exists():
                catalog.load(name)  # its error says how far the store is

    @staticmethod
    def _require_parameters(run_params: dict[str, Any], pipeline: Pipeline, catalog: DataCatalog) -> None:
        read = (name.removeprefix(_PARAMETERS) for name in pipeline.inputs() if name.startswith(_PARAMETERS))
        if not (missing := sorted(name for name in read if _PARAMETERS + name not in catalog)):
            return
        env = run_params.get("env") or "local"
        files = ", ".join(f"parameters_{group}.yml" for group in dict.fromkeys(one.split(".")[0] for one in missing))
        raise MissingConfigurationError(
            f"the run reads the parameters {', '.join(missing)}, which environment {env!r} (conf/base, conf/{env}) "
            f"does not have: put {files} into one of the two folders."
        )
