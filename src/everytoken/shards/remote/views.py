"""Datasets behind URLs for readers of folders: a folder of the cache stands for each.

The folder has the ledger. That of an artifact also has its files, large ones as stubs. Into that of a store the files
of a part are brought when `present` is asked for it::

    artifacts/<digest of URL and ledger>/
        ledger.json
        elsewhere.json            the URL, and the bound of the cache
        part_00000.parquet
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

from everytoken.shards.atomic import write_text
from everytoken.shards.ledger import LEDGER_FILE, Ledger, holds_parts
from everytoken.shards.remote.cache import FileCache
from everytoken.shards.remote.files import RemoteFile, RemoteFolder
from everytoken.shards.remote.remote_artifacts import RemoteArtifactStore
from everytoken.shards.remote.remote_stores import HeldParts, files_of
from everytoken.shards.store import Store

_ELSEWHERE = "elsewhere.json"
_NEEDED = ExitStack()  # who asked for a folder may come back to it as long as the process lives


def local_view(url: str, cache: FileCache) -> Path:
    """Return a local folder that stands for a dataset behind a URL, and stays until the process ends.

    Where nothing is behind the URL, there is no such folder.

    Raises:
        DamagedStore: its ledger is not what was written.
        IncompleteStore: an artifact lacks files.
        StorageError: the storage refuses something, or is out of reach.
    """
    url = url.rstrip("/")
    found = RemoteFolder(url, cache).objects.read(LEDGER_FILE)
    content = b"" if found is None else found[0]
    name = hashlib.sha256(url.encode() + b"\n" + content).hexdigest()[:32]
    if found is None:
        return cache.folder_of(name)
    if not holds_parts(content):
        artifact = RemoteArtifactStore(url, cache).load()
        _NEEDED.callback(lambda: artifact)
        return artifact.folder
    folder = _NEEDED.enter_context(cache.pinned(name))
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / _ELSEWHERE, json.dumps({"url": url, "bytes": cache.bound}))
    write_text(folder / LEDGER_FILE, content.decode())
    return folder


def open_parts(folder: Path) -> Store:
    """Return the store of parts in a folder, or the one that the folder stands for."""
    remote = _elsewhere(folder)
    return Store(folder) if remote is None else Store(folder, HeldParts(remote, remote.objects.sizes()))


def present(path: Path) -> Path:
    """Return the path of the file of a part; in a folder that stands for a store its files are brought first.

    Raises:
        DamagedStore: a file is gone, or is not what was written.
        StorageError: it cannot be fetched, or there is no room for it.
    """
    remote = None if path.exists() else _elsewhere(path.parent)
    if remote is not None:
        for file in _files_by_part(path.parent, remote).get(path.name.partition(".")[0], ()):
            remote.cache.fetch(path.with_name(file.name), file.size, file.fetch_to)
    return path


def _elsewhere(folder: Path) -> RemoteFolder | None:
    try:
        said = json.loads((folder / _ELSEWHERE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return RemoteFolder(said["url"], FileCache(folder.parents[1], said["bytes"]))


@lru_cache(maxsize=16)  # a folder never gets another ledger
def _files_by_part(folder: Path, remote: RemoteFolder) -> Mapping[str, list[RemoteFile]]:
    found: dict[str, list[RemoteFile]] = {}
    for name, record in files_of(Ledger.read(folder / LEDGER_FILE)):
        found.setdefault(name.partition(".")[0], []).append(remote.file(name, record.bytes, record.sha256))
    return found
