"""Errors of tasks."""


class TaskError(Exception):
    """A task that is not known, or that cannot be run."""
