"""Project settings: configuration that merges leaf by leaf, and the hooks that check it and record runs."""

import atexit
import gc
import logging
import os
import sys
from pathlib import Path

import yaml
from kedro.framework.project import LOGGING
from kedro.utils import find_kedro_project

from everytoken.configuration import (
    CONFIG_LOADER_ARGS,  # noqa: F401  # Kedro reads it
    ConfigurationHook,
    ContractHook,
    CostsHook,
    JobConfigLoader,
    JobContext,
    MissingInputsHook,
    ReplayHook,
    StagesHook,
    SystemErrorHook,
    VizFilesHook,
)
from everytoken.progress import fold_log_lines
from everytoken.tracking import TrackingHook


def _log_as_in_the_project_folder() -> None:
    """Configure logging by ``conf/logging.yml``, which Kedro finds in the working directory alone."""
    project = find_kedro_project(Path.cwd())
    file = None if project is None else project / "conf" / "logging.yml"
    if file is None or not file.exists() or os.environ.get("KEDRO_LOGGING_CONFIG"):
        return
    ours = yaml.safe_load(file.read_text(encoding="utf-8"))
    if LOGGING.data != ours:
        LOGGING.configure(ours)
        logging.captureWarnings(False)  # what Kedro's own handler has switched on
        sys.excepthook = sys.__excepthook__
    fold_log_lines()


_log_as_in_the_project_folder()  # before the hooks: they wrap what prints errors

CONTEXT_CLASS = JobContext
CONFIG_LOADER_CLASS = JobConfigLoader
HOOKS = (
    ConfigurationHook(),
    ReplayHook(),
    ContractHook(),
    TrackingHook(),
    MissingInputsHook(),
    StagesHook(),
    CostsHook(),
    VizFilesHook(),
    SystemErrorHook(),
)
DISABLE_HOOKS_FOR_PLUGINS = ("kedro_mlflow",)

atexit.register(gc.freeze)  # else the collector walks through all that was imported before the process ends: seconds
