"""Configuration that no code reads is refused: a mistyped key would silently leave the value of ``base`` in force."""

from __future__ import annotations

import logging
from pathlib import Path

from kedro.config import AbstractConfigLoader
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from omegaconf.errors import InterpolationKeyError

logger = logging.getLogger(__name__)

GLOBALS = {"data", "raw", "engine", "model_size"}


class ConfigurationError(Exception):
    """A key of the configuration is read by nothing."""


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


def _refuse(found: set[str], known: set[str], where: str, loader: AbstractConfigLoader) -> None:
    if unknown := sorted(found - known):
        raise ConfigurationError(
            f"{where} of environment {loader.env or 'local'!r} (conf/) has {', '.join(unknown)}, which nothing reads. "
            f"Known are {', '.join(sorted(known))}: correct the name or remove the entry."
        )
