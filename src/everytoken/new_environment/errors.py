"""What keeps an environment from being written: messages name the file and the remedy."""

from __future__ import annotations

from everytoken.corpus import CorpusError


class NewEnvironmentError(CorpusError):
    """The files give no corpus, or the environment cannot be written."""
