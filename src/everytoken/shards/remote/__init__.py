"""Stores and artifacts behind URLs: object storage that fsspec opens, and a bounded folder of local copies."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.shards.remote.access import give_access
    from everytoken.shards.remote.blocked_arrays import BlockedArray, map_npy, map_values
    from everytoken.shards.remote.blocks import bring_whole, forget_mapped
    from everytoken.shards.remote.cache import CacheSettings, FileCache
    from everytoken.shards.remote.files import RemoteFolder, names_below, object_name
    from everytoken.shards.remote.folders import REQUEST_BYTES, Changed, StorageError
    from everytoken.shards.remote.remote_artifacts import RemoteArtifact, RemoteArtifactStore
    from everytoken.shards.remote.remote_stores import RemoteStore
    from everytoken.shards.remote.retries import ATTEMPTS, Transient, retried
    from everytoken.shards.remote.views import local_view, open_parts, present

__getattr__, __dir__ = exports(__name__, __file__)
