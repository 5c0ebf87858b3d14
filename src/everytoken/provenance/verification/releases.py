"""Whether a release is whole, agrees with itself, and is what given streams were made of.

`everytoken verify RELEASE [STREAMS]` prints the checks. Nothing is raised for bad data: each check says what it found,
or which stream, part, window, row and document is the first that is wrong, with what was expected and found.

Sampled, little is read whatever the size: small files, some parts of the manifests, some windows of each stream (of the
annotated one the order of all documents is drawn, 8 bytes each). Full, every byte of the release and of the streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from everytoken.checks import Check, Checks, Hashing, run_checks
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import (
    BOUNDARIES_FILE,
    RECIPE_FILE,
    SUMS_FILE,
    VERIFICATION_FOLDER,
    Release,
    open_release,
)
from everytoken.provenance.verification.checked_release import CheckedRelease
from everytoken.provenance.verification.consistency_checks import (
    check_plan,
    check_recipe,
    check_rows,
    check_stream_digests,
    check_tokenizer,
    check_windows,
)
from everytoken.provenance.verification.documents import RELEASE_FAULTS, kind_in_manifests
from everytoken.provenance.verification.manifest_checks import (
    check_classifications,
    check_documents,
    check_manifest,
    check_reflections,
    check_rescue,
)
from everytoken.provenance.verification.rebuilt_streams import RebuiltStream, stream_checks
from everytoken.provenance.verification.release_files import check_digests, check_ledger, check_release, check_sums
from everytoken.provenance.verification.upstream_checks import check_listed, check_upstream, open_upstream
from everytoken.tokens.streams import kinds_by_name

_FILES: Checks[CheckedRelease] = (
    ("checksums", check_sums),
    ("ledger", check_ledger),
    ("digests", check_digests),
    ("release", check_release),
)
_CONTENT: Checks[CheckedRelease] = (
    ("recipe", check_recipe),
    ("plan", check_plan),
    ("rows", check_rows),
    ("manifest", check_manifest),
    ("text_rescue", check_rescue),
    ("classifications", check_classifications),
    ("tokenizer", check_tokenizer),
    ("streams", check_stream_digests),
    ("windows", check_windows),
)


def document_checks() -> Checks[CheckedRelease]:
    """Return the checks of the documents of each kind of stream that the manifests have."""
    kinds = [kind for kind in kinds_by_name() if kind_in_manifests(kind.name)]
    return [(f"{kind.name} documents", partial(check_documents, kind=kind)) for kind in kinds]


def release_checks(release: Release | Path, streams: Mapping[str, Path], **how: Any) -> list[Check]:
    """Return all checks of `each_release_check`, with its keywords."""
    return list(each_release_check(release, streams, **how))


def each_release_check(
    release: Release | Path,
    streams: Mapping[str, Path],
    *,
    full: bool,
    documents: int,
    seed: int,
    upstream: Path | None = None,
    roots: Mapping[str, str] | None = None,
) -> Iterator[Check]:
    """Check a release, and streams against it; each check comes when it is made.

    Args:
        streams: folders of streams by the release's names (`find_streams`).
        documents: else how many documents of each split, and windows of each stream, are looked at; with ``upstream``,
            documents that are read again.
        upstream: folder for fetched files, to read documents again from upstream; None: that is not done.
        roots: by source where its files are, where the release does not say it or names a place that is not public.
    """
    folder = release if isinstance(release, Path) else release.path
    with Hashing() as hashing, ExitStack() as scratch:
        checked = CheckedRelease(folder, full, documents, seed, hashing, scratch)
        yield from _run(_FILES, checked)
        for name, path in streams.items() if full else ():
            if (file := path / f"{name}.bin").is_file():
                hashing.begin(file)  # it takes longest, so it runs while manifests are read
        yield from _run((*_CONTENT, *document_checks(), ("reflections", check_reflections)), checked)
        if checked.opened is not None:
            opening = partial(open_upstream, folder=upstream, roots=roots or {})
            yield from _run((("upstream", opening),), checked)
            yield from _stream_checks(checked, streams)


def _stream_checks(checked: CheckedRelease, streams: Mapping[str, Path]) -> Iterator[Check]:
    known = checked.release.streams
    yield from _run([(name, partial(_unknown, name=name)) for name in sorted(streams.keys() - known)], checked)
    rebuilt = [RebuiltStream(name, path, checked) for name, path in streams.items() if name in known]
    for stream in rebuilt:
        yield from run_checks(stream_checks(stream), stream, RELEASE_FAULTS, missing=checked.missing)
    read_again = partial(check_upstream, streams=rebuilt)
    yield from _run((("upstream files", check_listed), ("upstream", read_again)), checked)


def _run(checks: Checks[CheckedRelease], checked: CheckedRelease) -> Iterator[Check]:
    return run_checks(checks, checked, RELEASE_FAULTS, missing=checked.missing)


def _unknown(checked: CheckedRelease, *, name: str) -> str:
    raise ProvenanceError(f"the release has no stream {name!r}, only {sorted(checked.release.streams)}")


def is_meant_as_release(path: Path) -> bool:
    """Return whether a folder is meant to be a release, also where one of its files is missing."""
    return sum((path / name).is_file() for name in (RECIPE_FILE, BOUNDARIES_FILE, SUMS_FILE)) >= 2


def find_streams(release: Path, paths: list[Path]) -> tuple[dict[str, Path], list[str]]:
    """Find the streams of a release in folders, or in folders in these, by the names of their files.

    Of several folders that have a stream the one nearest to the path is taken: environments lie inside ``data``.

    Args:
        paths: folders of streams, or a data folder that holds them.

    Returns:
        Folders by stream, and what cannot be told: a stream that is there twice, a path without any. None of both for a
        release that cannot be opened, which its own checks say.
    """
    try:
        described = open_release(release).streams
    except ProvenanceError:
        return {}, []
    files = {
        name: {file for file in stream["files"] if file.endswith((".bin", ".idx"))}
        for name, stream in described.items()
    }
    return streams_in(paths, files, "the release's streams")


def streams_in(paths: list[Path], files_of: Mapping[str, set[str]], what: str) -> tuple[dict[str, Path], list[str]]:
    """Find streams by the names of their files, as `find_streams` does.

    Args:
        files_of: names of which a folder of the stream has one, by stream.
        what: which streams these are, in words.
    """
    found: dict[str, dict[int, list[Path]]] = {name: {} for name in files_of}
    faults = []
    for path in paths:
        here = 0
        for folder in _folders(path):
            files = {file.name for file in folder.iterdir() if file.is_file()}
            for name in (name for name, wanted in files_of.items() if files & wanted):
                found[name].setdefault(len(folder.relative_to(path).parts), []).append(folder)
                here += 1
        if not here:
            faults.append(f"{path} holds none of {what}: {', '.join(files_of)}")
    chosen = {}
    for name, by_depth in found.items():
        nearest = by_depth[min(by_depth)] if by_depth else []
        if len(nearest) > 1:
            faults.append(f"{name} is there {len(nearest)} times: {', '.join(map(str, nearest[:5]))}; name one of them")
        elif nearest:
            chosen[name] = nearest[0]
    return chosen, faults


def _folders(path: Path) -> Iterator[Path]:
    """Yield a folder and those in it, but the hidden ones and those of releases."""
    for folder in [path, *sorted(one for one in path.rglob("*") if one.is_dir())] if path.is_dir() else []:
        hidden = any(part.startswith(".") for part in folder.relative_to(path).parts)
        if not hidden and VERIFICATION_FOLDER not in (folder.name, folder.parent.name):
            yield folder
