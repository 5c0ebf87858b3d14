"""Errors of what an environment says. Importing this imports no Kedro."""


class ConfigurationError(Exception):
    """A key of the configuration is read by nothing, or the configuration would bring excluded documents back."""


class MissingConfigurationError(ConfigurationError):
    """No file of the environment has parameters that the run reads."""
