"""Errors of this package."""


class ProvenanceError(Exception):
    """A release, an index or a question about where tokens came from cannot be answered; the message says why."""
