"""Files of a folder that fsspec opens (``s3://bucket/prefix``, ``gs://``, ``https://``), listed and fetched.

Credentials, endpoints and the like come from fsspec's own configuration and environment, never from parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Any

import fsspec
from fsspec.core import url_to_fs

from everytoken.corpus.upstreams.fetch import Listed, Partial
from everytoken.corpus.upstreams.patterns import is_safe
from everytoken.corpus.upstreams.remotes import UrlRemote
from everytoken.corpus.upstreams.retries import FetchError, Transient, retrying
from everytoken.redaction import GIVE_IT_BY

_BLOCK = 1 << 20
_READ_AHEAD = 8 << 20  # bytes of one request to a storage that is not of the web, held in memory
_SILENCE = 60.0  # seconds without a byte of a web file
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


def look_up(root: str, path: str) -> Listed:
    """Return what the storage tells of one file: its size and version.

    Raises:
        FetchError: there is no such file, or it cannot be asked for.
    """

    def ask() -> Listed:
        with _explained(root, path):
            filesystem, base = _opened(root, None)
            info = filesystem.info(f"{base}/{path}")
            return Listed(_size_of(info), None, version_of(info))

    return retrying(ask)


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
            content: bytes = filesystem.cat_file(f"{base}/{path}")
            return content

    return retrying(ask)


def download_from_url(remote: UrlRemote, path: str, size: int | None, stream: Partial) -> None:
    """Append to ``stream`` the bytes of a file from where it ends; see `fetch.fetch`.

    The file must be the one that was listed, before its first and after its last byte.
    """
    with _explained(remote.root, path):
        filesystem, base = _opened(remote.root, remote.named)
        place = f"{base}/{path}"
        _require_listed_version(filesystem, place, remote, size)
    if size is None or stream.end() < size:
        with _explained(remote.root, path):
            source = _opened_at(filesystem, place, stream)
        with source:
            while size is None or stream.end() < size:
                with _explained(remote.root, path):
                    block = source.read(_BLOCK if size is None else min(_BLOCK, size - stream.end()))
                if not block:
                    break
                stream.write(block)
    if size is not None and stream.end() < size:
        raise Transient(f"{remote.root} ended after {stream.end():,} of {size:,} bytes of {path}")
    with _explained(remote.root, path):
        _require_listed_version(filesystem, place, remote, size)


def _opened_at(filesystem: Any, place: str, stream: Partial) -> Any:
    """Open a file to be read from where ``stream`` ends, or from its start where a web server gives no ranges."""
    start = stream.end()
    if not _is_web(filesystem):
        source = filesystem.open(place, "rb", block_size=_READ_AHEAD)
        if start:
            source.seek(start)
        return source
    settings = _web_settings(filesystem)
    source = _web_range(filesystem, place, start, settings) if start else None
    if source is None:
        stream.start_anew()
        source = filesystem.open(place, "rb", **settings)
    return source


def _web_range(filesystem: Any, place: str, start: int, settings: dict[str, Any]) -> Any:
    """Open a web file from a byte on, or return None where the server sends something else.

    fsspec has a file that seeks by a request for each block; it accepts another range, and needs a size.
    """
    headers = {**filesystem.kwargs.get("headers", {}), "Range": f"bytes={start}-", "Accept-Encoding": "identity"}
    try:
        source = filesystem.open(place, "rb", **settings, headers=headers)
    except Exception as error:
        if _status(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        raise
    told = source.r.headers
    if told.get("Content-Range", "").startswith(f"bytes {start}-") and "Content-Encoding" not in told:
        return source
    source.close()
    return None


def _is_web(filesystem: Any) -> bool:
    protocol = filesystem.protocol
    return "http" in ((protocol,) if isinstance(protocol, str) else protocol)


def _web_settings(filesystem: Any) -> dict[str, Any]:
    """Return how fsspec opens a web file as one stream; with any size it does not ask for the size first."""
    settings = {"block_size": 0, "size": 1}
    if "timeout" in filesystem.kwargs:
        return settings
    import aiohttp

    # the client's own limit is five minutes for the whole file
    return {**settings, "timeout": aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE)}


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
    except (Transient, FetchError):
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
