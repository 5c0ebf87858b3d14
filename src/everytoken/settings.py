"""Project settings: configuration that merges leaf by leaf, and the hooks that check it and record runs."""

from everytoken.configuration import ConfigurationHook, JobConfigLoader, ReplayHook, SystemErrorHook
from everytoken.tracking import TrackingHook

CONFIG_LOADER_CLASS = JobConfigLoader
CONFIG_LOADER_ARGS = {
    "base_env": "base",
    "default_run_env": "local",
    # Kedro's default replaces whole branches: an environment that changes one number would drop the seeds beside it.
    "merge_strategy": {"parameters": "soft", "globals": "soft"},
    "config_patterns": {"mlflow": ["mlflow*"]},
}

HOOKS = (ConfigurationHook(), ReplayHook(), TrackingHook(), SystemErrorHook())
DISABLE_HOOKS_FOR_PLUGINS = ("kedro_mlflow",)
