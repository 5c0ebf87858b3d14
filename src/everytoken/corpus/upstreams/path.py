"""Files of a folder, on this machine or behind any URL that fsspec opens, with or without a list of their checksums."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from pydantic import BaseModel, ConfigDict, field_validator

from everytoken.corpus.errors import NoFilesError, UpstreamError
from everytoken.corpus.upstreams.checksums import parse_checksums
from everytoken.corpus.upstreams.file import UpstreamFile
from everytoken.corpus.upstreams.patterns import Pattern, is_safe, matches_pattern, parts_of
from everytoken.corpus.upstreams.remotes import UrlRemote
from everytoken.corpus.upstreams.retries import FetchError
from everytoken.redaction import is_url, redacted, require_bare_folder, secrets_in
from everytoken.shards import value_digest

NOT_PUBLISHED = "(not published)"
"""The root, in a release, of a source that has no public address."""

_SHOWN = 10


class PathUpstream(BaseModel):
    """The files of a folder that match a pattern (``**/*.jsonl``), pinned by the digests in the shard plan.

    Files behind a URL are fetched when they are first opened. Without ``checksums`` nothing but their bytes tells
    their digest, so planning fetches those it chooses.

    Attributes:
        root: the folder, or the URL of one (``s3://bucket/prefix``); ``file://`` is a folder of this machine.
        pattern: relative to it, with ``/`` between parts; ``*``, ``?`` and ``[...]`` stay within a part, and a part
            ``**`` stands for any number of folders; ``**`` alone for every file.
        checksums: path, relative to root, of a file that ``sha256sum`` wrote there, or null. Then every file that
            matches must be listed in it and have that digest, and every listed one that matches must be there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    kind: Literal["path"]
    root: str
    pattern: Pattern = "**"
    checksums: str | None = None

    @field_validator("root")
    @classmethod
    def _without_secrets(cls, root: str) -> str:
        require_bare_folder("root", root)
        return root

    @field_validator("checksums")
    @classmethod
    def _in_the_root(cls, checksums: str | None) -> str | None:
        if checksums is not None and not is_safe(checksums):
            raise ValueError(f"checksums must be a path below root, such as SHA256SUMS, found {checksums!r}")
        return checksums


def find_path_files(
    name: str, upstream: PathUpstream, folder: Path, named: tuple[str, ...] | None = None
) -> list[UpstreamFile]:
    """Return the files of a source, sorted by relative POSIX path; none of them is fetched.

    Links to files are files. Links to folders are never followed: one that the pattern could reach into is an error.

    Args:
        folder: for everything that is fetched; the place of files behind a URL is ``path/<digest of the URL>`` in it.
        named: None, or the roots beyond which no private address and no plain http is reached.

    Raises:
        UpstreamError: no file matches, what matches cannot be read as a file, the folder is not there, or the
            checksum file lacks a file or is malformed.
    """
    root = upstream.root
    if root == NOT_PUBLISHED:
        raise UpstreamError(
            f"source {name!r} has no public address: the release does not say where its files were. Give the folder or "
            f"URL that has them, by --params ingestion.sources.{name}.upstream.root=PATH (everytoken verify: --root "
            f"{name}=PATH)."
        )
    if root.startswith("file://"):
        root = root.removeprefix("file://")
    if is_url(root):
        return _find_remote(name, upstream, folder, named)
    return _find_local(name, upstream, Path(root))


def _find_local(name: str, upstream: PathUpstream, root: Path) -> list[UpstreamFile]:
    if not root.is_dir():
        raise UpstreamError(f"source {name!r}: there is no folder {root.absolute()}. Set upstream.root to a folder.")
    found = _matching_files(name, root, parts_of(upstream.pattern))
    pins: dict[str, str] = {}
    if upstream.checksums is not None:
        listed = root / upstream.checksums
        try:
            content = listed.read_bytes()
        except OSError as error:
            raise UpstreamError(
                f"source {name!r}: the checksum file {listed.absolute()} cannot be read ({error.strerror}). Put it "
                f"there, or set upstream.checksums to null."
            ) from None
        found.pop(upstream.checksums, None)
        pins = _pins(name, upstream, content, found)
    _require_files(name, upstream, str(root.absolute()), found)
    return [UpstreamFile(name, path, found[path], None, pins.get(path)) for path in sorted(found)]


def _find_remote(name: str, upstream: PathUpstream, folder: Path, named: tuple[str, ...] | None) -> list[UpstreamFile]:
    from everytoken.corpus.upstreams import urls  # fsspec is imported where it is used

    pattern = parts_of(upstream.pattern)
    pins: dict[str, str] = {}
    try:
        listed = urls.list_folder(upstream.root, named)
        found = {path: told for path, told in listed.items() if matches_pattern(parts_of(path), pattern)}
        if upstream.checksums is not None:
            found.pop(upstream.checksums, None)
            pins = _pins(name, upstream, urls.read_whole(upstream.root, upstream.checksums, named), found)
    except FetchError as error:
        raise UpstreamError(f"source {name!r}: {error}") from None
    _require_files(name, upstream, upstream.root, found)
    if signed := [path for path in found if upstream.root.lower().startswith("http") and secrets_in(f"/{path}")]:
        raise UpstreamError(
            f"source {name!r}: {upstream.root} lists {redacted(f'/{signed[0]}')[1:]!r}, a name with a token in it, and "
            f"names are recorded. Set upstream.root to a place that lists plain names, or upstream.pattern to names "
            f"without a query."
        )
    place = folder / "path" / value_digest(upstream.root)[:16]
    return [
        UpstreamFile(
            name,
            path,
            place / path,
            None,
            pins.get(path),
            found[path].size,
            UrlRemote(root=upstream.root, version=found[path].version or "", named=named),
        )
        for path in sorted(found)
    ]


def _pins(name: str, upstream: PathUpstream, content: bytes, found: Mapping[str, object]) -> dict[str, str]:
    """Return the digests that the checksum file tells; a file on one side only is an error."""
    where = f"source {name!r}: checksum file {upstream.checksums} of {upstream.root}"
    pins = parse_checksums(content, where)
    pattern = parts_of(upstream.pattern)
    wanted = {path for path in pins if matches_pattern(parts_of(path), pattern)} - {upstream.checksums}
    unlisted, missing = sorted(set(found) - wanted), sorted(wanted - set(found))
    if unlisted:
        raise UpstreamError(
            f"{where} does not list {_first(unlisted)}, which match {upstream.pattern!r}. Write the checksum file "
            f"again (sha256sum), remove these files, or change upstream.pattern."
        )
    if missing:
        raise UpstreamError(
            f"{where} lists {_first(missing)}, which match {upstream.pattern!r} and are not there. Put the files "
            f"there, or write the checksum file again (sha256sum)."
        )
    return pins


def _require_files(name: str, upstream: PathUpstream, root: str, found: Mapping[str, object]) -> None:
    if not found:
        raise NoFilesError(
            f"source {name!r}: no file in {root} matches {upstream.pattern!r}. "
            f"Check upstream.root and upstream.pattern (**/ reaches subfolders)."
        )


def _matching_files(name: str, root: Path, pattern: Sequence[str]) -> dict[str, Path]:
    """Return the files below ``root`` that match, by relative POSIX path; what would be passed over is an error."""

    def unreadable(error: OSError) -> NoReturn:
        raise UpstreamError(
            f"source {name!r}: folder {error.filename!r} cannot be listed ({error.strerror}). Make it readable, or "
            f"change upstream.pattern so that it does not reach into it."
        ) from None

    found: dict[str, Path] = {}
    linked, no_files = [], []
    for folder, folders, names in os.walk(root, onerror=unreadable):
        above = Path(folder).relative_to(root).parts
        folders[:] = [child for child in folders if matches_pattern((*above, child), pattern, within=True)]
        linked += [path for child in folders if (path := Path(folder, child)).is_symlink()]
        for path in [Path(folder, child) for child in names if matches_pattern((*above, child), pattern)]:
            relative = path.relative_to(root).as_posix()
            if not path.is_file():
                no_files.append(path)
            found[relative] = path
    if linked:
        raise UpstreamError(
            f"source {name!r}: {_paths(root, linked)} in {root.absolute()} are links to folders, which are not "
            f"followed, and {'/'.join(pattern)!r} could reach into them. Put the files themselves there, make the "
            f"linked folder the upstream.root of a source of its own, or change upstream.pattern."
        )
    if no_files:
        raise UpstreamError(
            f"source {name!r}: {_paths(root, no_files)} in {root.absolute()} match {'/'.join(pattern)!r} and "
            f"are no files (dangling links, pipes). Put the files there, remove these, or change upstream.pattern."
        )
    for relative in sorted(found):
        try:
            relative.encode("utf-8")
        except UnicodeEncodeError:
            raise UpstreamError(
                f"source {name!r}: the file name {relative!r} in {root.absolute()} is not UTF-8, expected UTF-8 names "
                f"(the plan stores them). Rename the file, or change upstream.pattern."
            ) from None
    return found


def _paths(root: Path, paths: Sequence[Path]) -> str:
    return _first(sorted(path.relative_to(root).as_posix() for path in paths))


def _first(names: Sequence[str]) -> str:
    return str(list(names[:_SHOWN])) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
