"""What pins something on the Hugging Face hub: the id of a repository, and a commit of it."""

from __future__ import annotations

import re

UNKNOWN_REVISION = "???"
"""Revision of a recipe whose commit nobody could find out: it can be looked at, and not be run."""


def repository_id(name: str, field: str) -> str:
    """Return ``name`` if it is an id.

    Raises:
        ValueError: it is none; ``field`` is what the parameter is called.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?", name):
        raise ValueError(f"{field} must be an id as its page shows it (organisation/name), found {name!r}")
    return name


def commit(revision: str, consequence: str, remedy: str) -> str:
    """Return ``revision`` if it is a full commit.

    Raises:
        ValueError: it is none; ``consequence``: what the same parameters would do when a branch moves.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ValueError(
            f"revision must be a commit of 40 lower-case hex digits, found {revision!r}: a branch or tag may move, and "
            f"then the same parameters would {consequence}. {remedy}"
        )
    return revision


def find_commit(kind: str, name: str) -> str:
    """Return how to find a commit of a ``dataset`` or ``model``, as a sentence without its full stop."""
    return (
        f"Find the commit on the {kind}'s page (Files and versions, History), or with "
        f"huggingface_hub.HfApi().{kind}_info({name}).sha"
    )
