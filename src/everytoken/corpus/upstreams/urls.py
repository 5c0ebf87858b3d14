"""Files of a folder that fsspec opens (``s3://bucket/prefix``, ``gs://``, ``https://``), listed and fetched.

Credentials, endpoints and the like come from fsspec's own configuration and environment, never from parameters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any

import fsspec
from fsspec.core import url_to_fs

from everytoken.corpus.upstreams.fetch import Listed, Partial
from everytoken.corpus.upstreams.patterns import is_safe
from everytoken.corpus.upstreams.remotes import UrlRemote, write_all
from everytoken.corpus.upstreams.retries import FetchError, Transient, retrying
from everytoken.redaction import GIVE_IT_BY

_BLOCK = 1 << 20
_READ_AHEAD = 8 << 20  # bytes of one request to the storage, held in memory
_SILENCE = 60.0  # seconds without a byte of a file that comes in one go
# what storages tell that changes with the content; the first that is there is taken, times only where nothing better is
_TELLS = (
    "ETag",
    "etag",
    "md5Hash",
    "md5",
    "content_md5",
    "Content-MD5",
    "Digest",
    "crc32c",
    "generation",
    "checksum",
)
_TIMES = ("LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "created")


def list_folder(root: str, named: tuple[str, ...] | None = None) -> dict[str, Listed]:
    """Return all files below ``root`` by relative path, with size and version.

    Args:
        named: None, or the roots beyond which no private address and no plain http is reached.

    Raises:
        FetchError: the folder cannot be listed, or lists a name that would not stay below it.
    """

    def ask() -> dict[str, Any]:
        with _explained(root, None):
            filesystem, base = _opened(root, named)
            found: dict[str, Any] = filesystem.find(base, withdirs=False, detail=True)
            for place, info in found.items():
                if info.get("size") is None or not version_of(info):  # web servers list names alone
                    found[place] = {**info, **filesystem.info(place)}
            return {place[len(base) :].removeprefix("/"): info for place, info in found.items()}

    files: dict[str, Listed] = {}
    listed = retrying(ask)
    if "" in listed:
        raise FetchError(f"{root} is a file", "Set upstream.root to the folder it is in, and pattern to its name.")
    for path, info in listed.items():
        if info.get("type") == "directory" or path.endswith("/"):
            continue  # empty objects that stand for folders
        if not is_safe(path):
            raise FetchError(
                f"{root} lists {path!r}, which is no path below it",
                "Rename it there, or set upstream.root to a folder that does not have it.",
            )
        files[path] = Listed(_size_of(info), None, version_of(info))
    return files


def version_of(info: Mapping[str, Any]) -> str:
    """Return what a listing tells that changes with the content: an ETag or digest, else the time of change.

    A storage may spell a time in its listing and of one file in two ways; it is taken to the millisecond. Where it
    tells nothing, this is empty, and only another size tells another content.
    """
    for key in _TELLS:
        if info.get(key) is not None:
            return f"{key.lower()}:{info[key]}"
    for key in _TIMES:
        if info.get(key) is not None:
            time = info[key].timestamp() if isinstance(info[key], datetime) else info[key]
            return f"{key.lower()}:{time:.3f}" if isinstance(time, float) else f"{key.lower()}:{time}"
    return ""


def read_whole(root: str, path: str, named: tuple[str, ...] | None = None) -> bytes:
    """Return the bytes of a small file; ``named`` as in `list_folder`."""

    def ask() -> bytes:
        with _explained(root, path):
            filesystem, base = _opened(root, named)
            content: bytes = filesystem.cat_file(_join(base, path))
            return content

    return retrying(ask)


def download_from_url(remote: UrlRemote, path: str, size: int | None, stream: Partial) -> None:
    """Append to ``stream`` the bytes of a file from where it ends; see
    `everytoken.corpus.upstreams.downloads.download`.

    The file must be the one that was listed, before its first and after its last byte. A web server that tells no size
    or gives no ranges of bytes is asked for the whole file, and what came before is given up.
    """
    with _explained(remote.root, path):
        filesystem, base = _opened(remote.root, remote.named)
        place = _join(base, path)
        _require_listed_version(filesystem, place, remote, size)
        in_ranges = size is not None or not _is_web(filesystem)  # fsspec seeks in no web file of unknown size
    if in_ranges:
        try:
            _append(filesystem, place, remote, path, size, stream, in_ranges=True)
        except _NoRanges:
            in_ranges = False
    if not in_ranges:
        stream.start_anew()
        _append(filesystem, place, remote, path, size, stream, in_ranges=False)
    with _explained(remote.root, path):
        _require_listed_version(filesystem, place, remote, size)


class _NoRanges(Exception):
    """The storage does not go on from a byte."""


def _append(
    filesystem: Any, place: str, remote: UrlRemote, path: str, size: int | None, stream: Partial, *, in_ranges: bool
) -> None:
    """Append to ``stream`` the bytes from where it ends, by requests for ranges or by one for the whole file."""
    received = stream.seek(0, os.SEEK_END)
    with _explained(remote.root, path):
        source = filesystem.open(place, "rb", **({"block_size": _READ_AHEAD} if in_ranges else _whole(filesystem)))
    with source:
        if received:
            with _explained(remote.root, path), _ranges_needed():
                source.seek(received)
        while size is None or received < size:
            with _explained(remote.root, path), _ranges_needed() if in_ranges and received else nullcontext():
                block = source.read(_BLOCK if size is None else min(_BLOCK, size - received))
            if not block:
                break
            write_all(stream, block)
            received += len(block)
    if size is not None and received < size:
        raise Transient(f"{remote.root} ended after {received:,} of {size:,} bytes of {path}")


@contextmanager
def _ranges_needed() -> Iterator[None]:
    try:
        yield
    except (ValueError, NotImplementedError) as error:  # what fsspec raises where it cannot seek
        raise _NoRanges from error


def _is_web(filesystem: Any) -> bool:
    protocol = filesystem.protocol
    return "http" in ((protocol,) if isinstance(protocol, str) else protocol)


def _whole(filesystem: Any) -> dict[str, Any]:
    """Return how a file is opened to be read in one go."""
    if not _is_web(filesystem):
        return {"block_size": _READ_AHEAD}
    if "timeout" in filesystem.kwargs:
        return {"block_size": 0}
    import aiohttp

    # the client's own limit is five minutes for the whole file; with any size, fsspec does not ask for the size first
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE)
    return {"block_size": 0, "size": 1, "timeout": timeout}


def _require_listed_version(filesystem: Any, place: str, remote: UrlRemote, size: int | None) -> None:
    filesystem.invalidate_cache()
    info = filesystem.info(place)
    found = (_size_of(info), version_of(info))
    if found != (size, remote.version):
        raise FetchError(
            f"it changed at {remote.root} since it was listed: expected size and version {(size, remote.version)}, "
            f"found {found}",
            "Make the list of files again (run from the start of the pipeline), and see that nothing writes there.",
        )


def _opened(root: str, named: tuple[str, ...] | None) -> tuple[fsspec.AbstractFileSystem, str]:
    guard: dict[str, Any] = {}
    if named is not None and "::" not in root and root.lower().startswith(("http://", "https://")):
        from everytoken.corpus.upstreams.guarded_web import client_of  # aiohttp takes its time to load

        guard["get_client"] = client_of(named)
    filesystem, base = url_to_fs(root, **guard)
    filesystem.invalidate_cache()  # what another run listed some time ago is not what is there
    return filesystem, base.rstrip("/")


def _join(base: str, path: str) -> str:
    return f"{base}/{path}"


def _size_of(info: Mapping[str, Any]) -> int | None:
    size = info.get("size")
    return None if size is None else int(size)


def _is_denied(cause: BaseException | None) -> bool:
    """Return whether a web server wants another login, or one at all."""
    return cause is not None and type(cause).__module__.startswith("aiohttp.") and _status(cause) in (401, 403, 407)


def _status(cause: BaseException) -> int | None:
    return getattr(cause, "status", None)


def _denied(what: str, error: BaseException | None) -> FetchError:
    return FetchError(
        f"access to {what} is denied ({error})", f"Give fsspec credentials that may read it. {GIVE_IT_BY}."
    )


def _is_of_the_network(cause: BaseException | None) -> bool:
    """Return whether a web server was not reached, broke off, or asks to come again."""
    if cause is None or not (isinstance(cause, TimeoutError) or type(cause).__module__.startswith("aiohttp.")):
        return False
    status = _status(cause)
    return status is None or status in (408, 429) or status >= 500


@contextmanager
def _explained(root: str, path: str | None) -> Iterator[None]:
    """Turn what fsspec and the libraries behind it raise into `Transient` or `FetchError`."""
    what = root if path is None else f"{path} of {root}"
    try:
        yield
    except (Transient, FetchError, _NoRanges):
        raise
    except ImportError as error:
        raise FetchError(
            f"{root} needs a package that is not installed ({error})",
            "Install it; for s3:// it is s3fs: pip install 'everytoken[s3]'.",
        ) from None
    except FileNotFoundError as error:
        if isinstance(error.__cause__, FetchError):  # `guarded_web` refused a request that fsspec sent
            raise error.__cause__ from None
        if _is_denied(error.__cause__):
            raise _denied(what, error.__cause__) from None
        if _is_of_the_network(error.__cause__):  # fsspec says so of every failure to ask a web server
            raise Transient(f"{what}: {type(error.__cause__).__name__}: {error.__cause__}") from error
        raise FetchError(f"{what} is not there", "Check upstream.root, or make the list of files again.") from None
    except PermissionError as error:
        raise _denied(what, error) from None
    except (ValueError, NotImplementedError) as error:
        raise FetchError(
            f"{what} cannot be read ({type(error).__name__}: {error})", "Check upstream.root: its protocol and form."
        ) from None
    except Exception as error:  # each storage has exceptions of its own, most of them of the network
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"):
            raise FetchError(f"{what}: {error}", "Set the credentials in the environment (for s3: AWS_*).") from None
        if _is_denied(error):
            raise _denied(what, error) from None
        raise Transient(f"{what}: {type(error).__name__}: {error}") from error
