"""Where a catalog entry puts its data: a folder of this machine, or a URL with a folder of local copies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everytoken.redaction import is_url
from everytoken.shards import ShardsError
from everytoken.shards.remote import CacheSettings, FileCache, give_access


def remote_place(
    filepath: str, cache: Mapping[str, Any] | None, credentials: Mapping[str, Any] | None, folder: Path = Path()
) -> tuple[str, FileCache] | None:
    """Return URL and cache of a catalog entry; None: it is a folder of this machine. Credentials are used from now on.

    Args:
        folder: what the path of the cache is relative to.

    Raises:
        ShardsError: a URL has no cache, or a folder has a cache or credentials.
    """
    if not is_url(filepath):
        if cache is not None or credentials is not None:
            raise ShardsError(f"{filepath} is a folder of this machine: it takes neither `cache` nor `credentials`")
        return None
    if filepath.startswith(("file:", "local:")):
        raise ShardsError(
            f"{filepath}: give a folder of this machine as a path, without {filepath.partition(':')[0]}://"
        )
    if cache is None:
        raise ShardsError(
            f"{filepath} is a URL: give its entry a folder of local copies, and the most bytes of all of them, as "
            "cache: {path: data/cache, bytes: 100_000_000_000}"
        )
    try:
        settings = CacheSettings(**cache)
    except TypeError as error:
        raise ShardsError(f"{filepath}: cache takes `path` and `bytes`, and both are needed ({error})") from None
    give_access(filepath, credentials or {})
    return filepath, FileCache(folder / settings.path, settings.bytes)
