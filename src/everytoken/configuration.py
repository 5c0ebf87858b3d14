"""What an environment says: its job, the parameters that follow from that, and a check that all of it is read.

Configuration that no code reads is refused: a mistyped key would silently leave the value of ``base`` in force. The job
``replay`` takes the parameters that decide bytes from the release that it replays: they are part of the release, and a
copy of them in ``conf`` could differ. What the command line sets goes over them. (A resolver of OmegaConf could not do
that: ``--params`` replaces the whole of what one gives, and the values of ``base`` would come back.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedro.config import AbstractConfigLoader, OmegaConfigLoader
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from omegaconf.errors import InterpolationKeyError

from everytoken.pipeline_registry import JOBS, choose_job

logger = logging.getLogger(__name__)

GLOBALS = {"data", "raw", "engine", "model_size", "job"}


class ConfigurationError(Exception):
    """A key of the configuration is read by nothing."""


class JobConfigLoader(OmegaConfigLoader):
    """Loads an environment; the default pipelines become those of its job, also where no hooks run (kedro viz)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        job = str(self["globals"].get("job"))
        _refuse({job}, set(JOBS), "globals.yml: job", self)
        choose_job(job)
        self._job = job

    def __getitem__(self, key: str) -> dict[str, Any]:
        """Return the configuration of a kind; the parameters of a replay are those of the release."""
        found: dict[str, Any] = super().__getitem__(key)
        if key != "parameters" or self._job != "replay":
            return found
        from everytoken.provenance.replay.parameters import with_released_parameters

        return _merged(with_released_parameters(found), self.runtime_params or {})


class ConfigurationHook:
    """Checks ``globals.yml`` and the names of the parameters when a command loads the project."""

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Refuse unknown keys; say where results go."""
        loader = context.config_loader
        _refuse(set(loader["globals"]), GLOBALS, "globals.yml", loader)
        from everytoken import parameters  # not for `kedro --help`

        known = {name.removesuffix("Parameters").lower() for name in parameters.__all__}
        try:
            parameters_of_files = loader["parameters"]
        except InterpolationKeyError as error:  # globals are checked: what is left is the name of a template
            raise ConfigurationError(
                f"{str(error).splitlines()[0]} (environment {loader.env or 'local'!r}): globals.yml says model_size = "
                f"{loader['globals']['model_size']!r}; give one of the names in conf/base/parameters_sizes.yml"
            ) from error
        named = {name for name in parameters_of_files if not name.startswith("_")}  # templates for others to name
        _refuse(named - _of_command_line(loader), known, "the parameters", loader)
        logger.info("Results go to %s", (Path(context.project_path) / loader["globals"]["data"]).resolve())


def _of_command_line(loader: AbstractConfigLoader) -> set[str]:
    """Return the names set by ``--params``, which the tracking hook checks against what the run reads."""
    return set(loader.runtime_params or {})


def _merged(values: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with the leaves of ``over`` in the place of theirs."""
    both = {
        name: _merged(values[name], value) for name, value in over.items() if _are_mappings(values.get(name), value)
    }
    return {**values, **over, **both}


def _are_mappings(*values: Any) -> bool:
    return all(isinstance(value, Mapping) for value in values)


def _refuse(found: set[str], known: set[str], where: str, loader: AbstractConfigLoader) -> None:
    if unknown := sorted(found - known):
        raise ConfigurationError(
            f"{where} of environment {loader.env or 'local'!r} (conf/) has {', '.join(unknown)}, which nothing reads. "
            f"Known are {', '.join(sorted(known))}: correct the name or remove the entry."
        )
