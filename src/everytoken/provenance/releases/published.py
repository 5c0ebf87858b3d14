"""What of parameters is published: no place of the machine that made them.

A path of the machine, and the root of a source without a public address, are replaced by `NOT_PUBLISHED`. Whoever
replays the release gives their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from everytoken.corpus.ingestion import Source
from everytoken.corpus.upstreams import NOT_PUBLISHED, PathUpstream
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.parameters import Homepage, Origin
from everytoken.redaction import is_url, names_public_place

_PLACES = frozenset({"path", "root", "folder", "fetched", "file", "directory"})


def published(parameters: Any) -> Any:
    """Return plain parameters without the places of this machine."""
    own = [str(folder) for folder in (Path.home(), Path.cwd()) if len(folder.parts) > 1]
    return _published(parameters, None, own)


def _published(value: Any, key: str | None, own: list[str]) -> Any:
    if isinstance(value, Mapping):
        found = {name: _published(one, str(name), own) for name, one in value.items()}
        root = found.get("root")
        if found.get("kind") == "path" and isinstance(root, str) and not names_public_place(root):
            found["root"] = NOT_PUBLISHED
        return found
    if isinstance(value, list | tuple):
        return [_published(one, key, own) for one in value]
    if not isinstance(value, str):
        return value
    if key in _PLACES and is_of_machine(value):
        return NOT_PUBLISHED
    bare = value.removeprefix("file://")
    return NOT_PUBLISHED if any(bare == folder or bare.startswith(f"{folder}/") for folder in own) else value


def is_of_machine(place: str) -> bool:
    """Return whether a path or URL is of one machine; a relative path that stays in the project names none."""
    if is_url(place):
        return not names_public_place(place)
    posix, windows = PurePosixPath(place), PureWindowsPath(place)
    return posix.is_absolute() or bool(windows.anchor) or place.startswith("~") or ".." in windows.parts


def has_public_address(source: Source) -> bool:
    """Return whether anybody can read the files of a source where it reads them."""
    upstream = source.upstream
    return not isinstance(upstream, PathUpstream) or names_public_place(upstream.root)


def origins_of(sources: Mapping[str, Source], origins: Mapping[str, Origin]) -> dict[str, Origin]:
    """Return what is said of the sources without a public address, and of others of which something is said.

    Raises:
        ProvenanceError: nothing is said of a source without a public address; names it and what can be said.
    """
    silent = [name for name in sorted(sources) if name not in origins and not has_public_address(sources[name])]
    if silent:
        name = silent[0]
        more = f" (and so for {', '.join(silent[1:])})" if len(silent) > 1 else ""
        raise ProvenanceError(
            f"source {name!r} has no public address: its files are read from {_place(sources[name])}. Where it is from "
            f"is not published. Set release.sources.{name}.homepage to the page where anybody finds these files, or "
            f"release.sources.{name}.public to false{more}. Nothing was released."
        )
    return {name: origins[name] for name in sorted(sources) if name in origins}


def _place(source: Source) -> str:
    return source.upstream.root if isinstance(source.upstream, PathUpstream) else source.upstream.kind


def described_origin(origin: Origin | None) -> dict[str, object]:
    """Return what ``upstream.json`` says of where a source is from, next to its pin; nothing of most."""
    if origin is None:
        return {}
    return {"homepage": origin.homepage} if isinstance(origin, Homepage) else {"public": False}


def not_public(described: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the sources in ``upstream.json`` whose files nobody finds at the address in it."""
    return [name for name, one in sorted(described.items()) if _is_not_public(one)]


def _is_not_public(described: Mapping[str, Any]) -> bool:
    return described.get("public") is False or described["upstream"].get("root") == NOT_PUBLISHED
