"""What is published of streams without their tokens: indexes, lengths and SHA-256, in a folder or on the hub.

There is ``<stream>.idx`` for each stream (``annotated``, ``canary``, ``compact``), in any folder. ``token_lengths.npy``
is that of the stream with a document a window next to it, or that has as many windows. Files whose name says ``sha256``
or ``checksum`` list digests, as ``sha256sum`` writes them or as JSON. A file of the hub is fetched when it is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from everytoken.checks import NotMadeError
from everytoken.corpus.ingestion import find_files
from everytoken.corpus.upstreams import (
    HubUpstream,
    PathUpstream,
    commit,
    find_commit,
    parse_checksums,
    repository_id,
)
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.verification.releases import streams_in
from everytoken.tokens.streams import (
    STREAM_KINDS,
    TOKEN_LENGTHS_FILE,
    MegatronIndex,
    open_megatron_index,
    released_kinds,
)

_LISTS = re.compile(r"sha-?256|checksum", re.IGNORECASE)
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


class PublishedStreams:
    """What is published of streams: a folder, or ``ORGANISATION/NAME@COMMIT`` of the hub.

    Args:
        fetched: folder for files of the hub.

    Raises:
        ProvenanceError: the reference is no folder and not pinned, or has no index of a stream, or two of one.
        UpstreamError: the files cannot be listed.
    """

    def __init__(self, reference: str, fetched: Path) -> None:
        self.reference = reference
        self._files = {file.path: file for file in find_files(reference, _upstream(reference), fetched)}
        kinds = [kind for kind in released_kinds() if kind.is_of_windows and kind.base is None]
        named = {kind.name: self._named(f"{kind.name}.idx") for kind in kinds}
        self.indexes = {name: paths[0] for name, paths in named.items() if paths}
        if not self.indexes or any(len(paths) > 1 for paths in named.values()):
            raise ProvenanceError(
                f"{reference}: expected NAME.idx of each stream that is published, once ({', '.join(named)}), found "
                f"{[*chain(*named.values())] or sorted(self._files)[:10]}. Give the folder with those of one corpus"
            )

    def _named(self, name: str) -> list[str]:
        return sorted(path for path in self._files if PurePosixPath(path).name == name)

    def find(self, paths: list[Path]) -> tuple[dict[str, Path], list[str]]:
        """Find the streams in folders, as `find_streams` does for a release."""
        files = {name: {f"{name}.bin", f"{name}.idx"} for name in self.indexes}
        return streams_in(paths, files, f"the streams of {self.reference}")

    def bring(self, path: str) -> Path:
        """Return where a file is; one of the hub is fetched, and has the digest that the hub lists."""
        file = self._files[path]
        if file.pinned is not None:
            file.require(file.pinned)
        return file.location

    def index(self, name: str) -> MegatronIndex:
        """Return the index of a stream."""
        return open_megatron_index(self.bring(self.indexes[name]))

    def lengths_file(self, name: str) -> str | None:
        """Return the path of the lengths of a stream with a document a window; None: they are not published."""
        own, named = self._next_to_index(name, TOKEN_LENGTHS_FILE), self._named(TOKEN_LENGTHS_FILE)
        padded = (kind for kind in self.indexes if STREAM_KINDS[kind].layout == "padded")
        if own in named and all(
            self._next_to_index(other, TOKEN_LENGTHS_FILE) != own for other in padded if other != name
        ):
            return own
        windows = len(self.index(name).lengths)
        return next((path for path in named if _entries(self.bring(path)) == windows), None)

    @cached_property
    def sums(self) -> dict[str, str]:
        """SHA-256 in hex by path, as the published lists say."""
        found: dict[str, str] = {}
        for path in (path for path in sorted(self._files) if _LISTS.search(PurePosixPath(path).name)):
            for name, digest in _listed(self.bring(path)).items():
                at = (PurePosixPath(path).parent / name).as_posix()
                if found.setdefault(at, digest) != digest:
                    raise ProvenanceError(f"{self.reference} lists {at} with {found[at]}, and in {path} with {digest}")
        return found

    def sum_of(self, name: str, file: str) -> str:
        """Return the listed SHA-256 of a file of a stream, which itself may not be published.

        Raises:
            NotMadeError: none is listed.
        """
        named = {digest for path, digest in self.sums.items() if PurePosixPath(path).name == file}
        digest = self.sums.get(self._next_to_index(name, file)) or (named.pop() if len(named) == 1 else None)
        if digest is None:
            raise NotMadeError(f"no list of {self.reference} has the SHA-256 of {file}")
        return digest

    def _next_to_index(self, name: str, file: str) -> str:
        return PurePosixPath(self.indexes[name]).with_name(file).as_posix()


def _upstream(reference: str) -> HubUpstream | PathUpstream:
    if Path(reference).is_dir():
        return PathUpstream(kind="path", root=reference)
    dataset, pinned, revision = reference.partition("@")
    remedy = find_commit("dataset", "<dataset>")
    if not pinned:
        raise ProvenanceError(
            f"{reference} is no folder. A dataset of the hub is named with its commit, ORGANISATION/NAME@COMMIT. "
            f"{remedy}"
        )
    try:
        return HubUpstream(
            kind="hub",
            dataset=repository_id(dataset, "the dataset"),
            revision=commit(revision, "compare with other files", remedy),
        )
    except ValueError as error:
        raise ProvenanceError(f"{reference}: {error}") from None


def _listed(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    if not content.lstrip().startswith(b"{"):
        return {name: digest.partition(":")[2] for name, digest in parse_checksums(content, str(path)).items()}
    try:
        return dict(_digests_in(json.loads(content)))
    except (ValueError, RecursionError) as error:
        raise ProvenanceError(f"{path} is no list of digests: it is no JSON ({error})") from None


def _digests_in(value: Any) -> Iterator[tuple[str, str]]:
    """Yield names and SHA-256 of a tree: ``{name: hex}`` or ``{name: {"sha256": hex}}``, at any depth."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        digest = inner.get("sha256") if isinstance(inner, dict) else inner
        if isinstance(digest, str) and _DIGEST.fullmatch(digest):
            yield name, digest.lower()
        else:
            yield from _digests_in(inner)


def _entries(path: Path) -> int | None:
    """Return the entries of an array of NumPy with one dimension, from its header."""
    with path.open("rb") as file:
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
    return shape[0] if len(shape) == 1 else None
