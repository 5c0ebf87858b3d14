"""Artifacts of the catalog that are behind URLs: how an entry opens one, and all that an environment has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everytoken.redaction import is_url
from everytoken.shards import ArtifactStore, IncompleteStore
from everytoken.shards.remote import (
    CacheSettings,
    FileCache,
    RemoteArtifact,
    RemoteArtifactStore,
    StorageError,
    give_access,
    names_below,
)

_ARTIFACTS = ("ArtifactFolder", "TokenStream", "TokenizerFile", "Checkpoint", "ReleaseFolder")


def open_artifact_store(
    filepath: str,
    credentials: Mapping[str, Any] | None = None,
    cache: Mapping[str, Any] | None = None,
    block_bytes: int | None = None,
    folder: Path = Path(),
) -> ArtifactStore | RemoteArtifactStore:
    """Return the store of a catalog entry: a local folder, or what is behind a URL.

    Args:
        credentials: options of fsspec's file system, as Kedro passes them.
        cache: ``folder`` and ``bytes`` of `CacheSettings`; only for a URL, and needed there.
        block_bytes: of the blocks in which large files are read; None: 16 MiB.
        folder: what local paths are relative to.

    Raises:
        StorageError: a URL without a cache.
    """
    if not is_url(filepath):
        return ArtifactStore(folder / filepath)
    return RemoteArtifactStore(
        filepath,
        open_cache(filepath, credentials, cache, folder),
        **({} if block_bytes is None else {"block": block_bytes}),
    )


def open_cache(
    filepath: str, credentials: Mapping[str, Any] | None, cache: Mapping[str, Any] | None, folder: Path = Path()
) -> FileCache:
    """Let this process and its workers open a URL; return where local copies of what is behind it are kept."""
    if cache is None or set(cache) != {"folder", "bytes"}:
        raise StorageError(
            f"{filepath} is a URL, so its entry in the catalog needs cache: {{folder: FOLDER, bytes: NUMBER}}: where "
            "local copies are kept, and the most bytes of them"
        )
    settings = CacheSettings(**cache)
    give_access(filepath, credentials or {})
    return FileCache(folder / settings.folder, settings.bytes)


def remote_artifacts(
    catalog: Mapping[str, Any], credentials: Mapping[str, Any], folder: Path
) -> dict[str, RemoteArtifact]:
    """Return the artifacts of a catalog that are behind URLs and whole, by name.

    Args:
        catalog: its configuration; placeholders of a factory are in the last part of its path.
        credentials: the environment's, by name.
        folder: what paths of caches are relative to.

    Raises:
        StorageError: a storage is out of reach, or refuses the credentials.
    """
    found: dict[str, RemoteArtifact] = {}
    for name, url, entry in _entries(catalog, credentials, folder):
        store = RemoteArtifactStore(url, open_cache(url, _login(entry, credentials), entry.get("cache"), folder))
        try:
            found.setdefault(name, store.load())
        except IncompleteStore:
            continue
    return found


def _login(entry: Mapping[str, Any], credentials: Mapping[str, Any]) -> Mapping[str, Any]:
    given = entry.get("credentials") or {}
    login: Mapping[str, Any] = credentials.get(given, {}) if isinstance(given, str) else given
    return login


def _entries(
    catalog: Mapping[str, Any], credentials: Mapping[str, Any], folder: Path
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield name, URL and entry: those with whole names first, then those that a factory has made."""
    from everytoken.datasets.dataset_paths import in_factory_order, made_by_factory

    for pattern in in_factory_order(catalog):
        entry = catalog[pattern]
        url = str(entry.get("filepath", ""))
        if not is_url(url) or str(entry.get("type", "")).rpartition(".")[2] not in _ARTIFACTS:
            continue
        if "{" not in pattern:
            yield pattern, url, entry
            continue
        parent, _, last = url.rpartition("/")
        open_cache(parent, _login(entry, credentials), entry.get("cache"), folder)
        for name, place in made_by_factory(pattern, last, names_below(parent)):
            if name not in catalog:
                yield name, f"{parent}/{place}", entry
