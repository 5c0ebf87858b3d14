"""Which places a replay reads: those of its user, and of a stranger's release only what is public.

A release says where its sources are, and whoever wrote it may be a stranger. A folder of this machine, a private
address, plain http and protocols of fsspec that are not of the web are read only where the user names them:
``replay.allow_roots``, ``replay.upstreams``, or the source's root in their own parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from everytoken.corpus.ingestion import Guarded, Upstream
from everytoken.corpus.upstreams import NOT_PUBLISHED, HubUpstream, PathUpstream
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.release import Release
from everytoken.redaction import is_named_by, is_url, names_public_place, shown_url

logger = logging.getLogger(__name__)


def is_readable(root: str, allowed: Collection[str]) -> bool:
    """Return whether a root that a release names may be read: a public one, not by plain http, or one that is named."""
    if ".." in unquote(root).replace("\\", "/").split("/"):
        return False
    if is_named(root, allowed):
        return True
    return names_public_place(root) and urlsplit(root).scheme.lower() != "http"


def is_named(place: str, allowed: Collection[str]) -> bool:
    """Return whether one of ``allowed`` is the place or a folder around it."""
    return any(_is_within(place, one) for one in allowed)


def _is_within(place: str, named: str) -> bool:
    place, named = place.removeprefix("file://"), named.removeprefix("file://")
    if is_url(place) or is_url(named):
        return is_url(place) and is_url(named) and is_named_by(place, named)
    if not place or place == NOT_PUBLISHED or not named:
        return False
    return Path(place).resolve().is_relative_to(Path(named).resolve())


def without_foreign_places(released: Any, own: Any, allowed: Collection[str], key: str | None = None) -> Any:
    """Return parameters of a release in which every place that is not readable is the user's own one.

    Args:
        released: parameters of a release, plain data.
        allowed: places that the user names.
        key: of ``released`` in what it is a part of.

    Returns:
        The same, with `NOT_PUBLISHED` where the user has none.
    """
    if isinstance(released, Mapping):
        mine = own if isinstance(own, Mapping) else {}
        return {name: without_foreign_places(one, mine.get(name), allowed, str(name)) for name, one in released.items()}
    if isinstance(released, list | tuple):
        return [without_foreign_places(one, None, allowed, key) for one in released]
    if key not in ("root", "path") or not isinstance(released, str) or is_readable(released, allowed):
        return released
    return own if isinstance(own, str) else NOT_PUBLISHED


def guarded_upstreams(
    upstreams: Mapping[str, Upstream], given: Collection[str], release: Release | None, allowed: Sequence[str]
) -> dict[str, Guarded]:
    """Say which places are read; return the upstreams, which reach a private address only where it is named.

    Args:
        given: the sources whose upstream ``replay.upstreams`` is.
        release: that is replayed, or None for a manifest in the published format, which names no place.
        allowed: ``replay.allow_roots``.

    Raises:
        ProvenanceError: the release names a place that is not read unasked, or none; with what to do.
    """
    guarded, refused = {}, []
    for name, upstream in upstreams.items():
        if not isinstance(upstream, PathUpstream):
            guarded[name] = Guarded(upstream, tuple(allowed))
            continue
        then = None if release is None else _released_root(release, name)
        is_own = name in given or release is None or upstream.root != then
        if upstream.root == NOT_PUBLISHED or (not is_own and not is_readable(upstream.root, allowed)):
            refused.append(_refusal(name, then))
        else:
            own = [upstream.root] if is_own or is_named(upstream.root, allowed) else []
            guarded[name] = Guarded(upstream, (*allowed, *own))
    for name, one in guarded.items():
        logger.info("replay reads source %s: %s", name, _said(one.upstream))
    if refused:
        raise ProvenanceError(f"{'; '.join(refused)}. Nothing was read.")
    return guarded


def _released_root(release: Release, name: str) -> str | None:
    source = (release.parameters("ingestion").get("sources") or {}).get(name) or {}
    root = (source.get("upstream") or {}).get("root")
    return root if isinstance(root, str) else None


def _refusal(name: str, root: str | None) -> str:
    give = f"--params ingestion.sources.{name}.upstream.root=PLACE, or replay.upstreams"
    if root is None or root == NOT_PUBLISHED:
        return f"the release does not say where source {name!r} is: give the place of its files ({give})"
    return (
        f"source {name!r}: the release names {shown_url(root)!r}, a place of a machine, a private address or plain "
        "http, which is read only when you name it. If you trust it: --params "
        f"replay.allow_roots={shown_url(root)} (several: with | between "
        f"them, or a list in parameters_replay.yml); else give another place ({give})"
    )


def _said(upstream: Upstream) -> str:
    if isinstance(upstream, PathUpstream):
        return upstream.root if is_url(upstream.root) else str(Path(upstream.root).absolute())
    if isinstance(upstream, HubUpstream):
        return f"dataset {upstream.dataset} at {upstream.revision} of the Hugging Face hub"
    return f"{upstream.project} {upstream.version} of the package index"
