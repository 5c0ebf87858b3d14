"""Errors of models in use."""


class ServingError(Exception):
    """A model that cannot be opened, or that cannot do what is asked of it."""
