"""Whether a release is whole, agrees with itself, and is what given streams were made of: one finding for each thing.

`everytoken verify RELEASE [STREAMS]` prints them. Nothing is raised for bad data: each check says what it found, or
which stream, part, window, row and document is the first that is wrong, with what was expected and found.

Sampled, little is read whatever the size: small files, some parts of the manifests, some windows of each stream (of the
annotated one the order of all documents is drawn, 8 bytes each). Full, every byte of the release and of the streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import (
    BOUNDARIES_FILE,
    RECIPE_FILE,
    STREAMS_FILE,
    SUMS_FILE,
    UPSTREAM_FILE,
    VERIFICATION_FOLDER,
    Release,
    open_release,
    require_regular,
)
from everytoken.provenance.verification.consistency_checks import (
    check_plan,
    check_recipe,
    check_rows,
    check_stream_digests,
    check_tokenizer,
    check_windows,
    described_streams,
)
from everytoken.provenance.verification.file_checks import (
    check_digests,
    check_ledger,
    check_sums,
    read_sums,
    recorded_sums,
    sampled_files,
)
from everytoken.provenance.verification.file_threads import Hashing
from everytoken.provenance.verification.findings import Finding, finding
from everytoken.provenance.verification.manifest_checks import (
    PartFacts,
    check_classifications,
    check_document_lengths,
    check_manifest,
    check_packed,
    check_rescue,
)
from everytoken.provenance.verification.manifest_rows import chosen_parts
from everytoken.provenance.verification.rebuilt_streams import RebuiltStream
from everytoken.provenance.verification.upstream_checks import UpstreamTexts, check_upstream
from everytoken.provenance.verification.window_documents import WindowDocuments, kind_in_manifests
from everytoken.tokens.checks import Check
from everytoken.tokens.streams import kinds_by_name


def release_checks(
    release: Release | Path,
    streams: Mapping[str, Path],
    *,
    full: bool,
    documents: int,
    seed: int,
    upstream: Path | None = None,
    roots: Mapping[str, str] | None = None,
) -> list[Check]:
    """Return all findings of `each_release_check`."""
    checks = each_release_check(
        release, streams, full=full, documents=documents, seed=seed, upstream=upstream, roots=roots
    )
    return list(checks)


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
    """Check a release, and streams against it; findings come when they are there.

    Args:
        release: the release or its folder.
        streams: folders of streams by the release's names (`find_streams`).
        full: whether every byte is read.
        documents: else how many documents of each split, and windows of each stream, are looked at; with ``upstream``,
            documents that are read again.
        seed: of which these are.
        upstream: folder for fetched files, to read documents again from upstream; None: that is not done.
        roots: by source where its files are, where the release does not say it or names a place that is not public.
    """
    folder, sampled = release if isinstance(release, Path) else release.path, None if full else documents
    with Hashing() as hashing:
        missing: dict[Path, str] = {}
        yield from _file_checks(folder, sampled, seed, hashing, missing)
        opened: list[Release] = []
        yield finding("release", lambda: _opened(folder, opened), missing)
        if opened:
            texts = None if upstream is None else partial(UpstreamTexts, opened[0], upstream, roots or {})
            yield from _opened_checks(opened[0], streams, sampled, documents, seed, texts, hashing, missing)


def _opened_checks(
    release: Release,
    streams: Mapping[str, Path],
    sampled: int | None,
    documents: int,
    seed: int,
    upstream: Callable[[], UpstreamTexts] | None,
    hashing: Hashing,
    missing: Mapping[Path, str],
) -> Iterator[Check]:
    known = {name: path for name, path in streams.items() if name in release.streams}
    for name, path in known.items():
        if sampled is None and (file := path / f"{name}.bin").is_file():
            hashing.begin(file)  # which takes longest: it goes on while manifests are read
    yield from _own_checks(release, sampled, seed, missing)
    for name in sorted(set(streams) - set(known)):
        yield Finding(name, False, {}, f"the release has no stream {name!r}, only {sorted(release.streams)}")
    with WindowDocuments(release) as held:
        made: list[UpstreamTexts] = []
        if upstream is not None:
            opening = finding("upstream", lambda: _open_upstream(upstream, made), missing)
            if not made:
                yield opening
        texts = made[0] if made else None
        rebuilt = {
            name: RebuiltStream(name, path, release, sampled, seed, held, texts, hashing, missing)
            for name, path in known.items()
        }
        for stream in rebuilt.values():
            yield from stream.checks()
        if texts is not None:
            yield finding("upstream files", lambda: texts.listed(count_rows=sampled is None))
            own = {name: stream for name, stream in rebuilt.items() if kind_in_manifests(name)}
            yield finding(
                "upstream",
                lambda: check_upstream(
                    release,
                    texts,
                    {name: stream.tokens for name, stream in own.items()},
                    held,
                    count=documents,
                    seed=seed,
                ),
                {path: check for stream in rebuilt.values() for path, check in stream.missing.items()} | {**missing},
            )


def is_meant_as_release(path: Path) -> bool:
    """Return whether a folder is meant to be a release, also where one of its files is missing."""
    return sum((path / name).is_file() for name in (RECIPE_FILE, BOUNDARIES_FILE, SUMS_FILE)) >= 2


def find_streams(release: Path, paths: list[Path]) -> tuple[dict[str, Path], list[str]]:
    """Find the streams of a release in folders, or in folders in these, by the names of their files.

    Of several folders that have a stream the one nearest to the path is taken: environments lie inside ``data``.

    Args:
        release: folder of the release.
        paths: folders of streams, or a data folder that holds them.

    Returns:
        Folders by stream, and what cannot be told: a stream that is there twice, a path without any. None of both for a
        release that cannot be opened, which its own checks say.
    """
    try:
        described = described_streams(open_release(release))
    except ProvenanceError:
        return {}, []
    found: dict[str, dict[int, list[Path]]] = {name: {} for name in described}
    faults = []
    for path in paths:
        here = 0
        for folder in _folders(path):
            files = {file.name for file in folder.iterdir() if file.is_file()}
            for name, stream in described.items():
                if files & {file for file in stream["files"] if file.endswith((".bin", ".idx"))}:
                    depth = len(folder.relative_to(path).parts)
                    found[name].setdefault(depth, []).append(folder)
                    here += 1
        if not here:
            faults.append(f"{path} holds none of the release's streams: {', '.join(described)}")
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


def _opened(folder: Path, into: list[Release]) -> str:
    for name in (RECIPE_FILE, UPSTREAM_FILE, BOUNDARIES_FILE, SUMS_FILE, STREAMS_FILE):
        require_regular(folder / name)
    release = open_release(folder)
    streams = described_streams(release)  # of a file that may be damaged too
    into.append(release)
    return f"{release.recipe['format']}, digest {release.digest}, streams {', '.join(streams) or 'none'}"


def _open_upstream(opening: Callable[[], UpstreamTexts], into: list[UpstreamTexts]) -> str:
    into.append(opening())
    return ""


def _file_checks(
    folder: Path, sampled: int | None, seed: int, hashing: Hashing, missing: dict[Path, str]
) -> Iterator[Finding]:
    """Check files; put those that are not there into ``missing``."""
    sums: dict[str, str] = {}

    def read() -> str:
        sums.update(read_sums(folder))
        return check_sums(folder)

    yield finding("checksums", read)
    if not sums:  # the ledger says the same, where there is one
        finding("ledger", lambda: sums.update(recorded_sums(folder)) or "")
    missing |= {folder / name: "checksums" for name in (SUMS_FILE, *sums) if not (folder / name).is_file()}
    yield finding("ledger", lambda: check_ledger(folder, sums), missing)
    chosen = set(sums) if sampled is None else sampled_files(folder, sums, sampled, seed)
    yield finding("digests", lambda: check_digests(folder, sums, chosen, hashing))


def _own_checks(release: Release, sampled: int | None, seed: int, missing: Mapping[Path, str]) -> Iterator[Finding]:
    facts: dict[str, list[PartFacts]] = {}
    checks: dict[str, Callable[[], str]] = {
        "recipe": partial(check_recipe, release),
        "plan": partial(check_plan, release),
        "rows": partial(check_rows, release),
        "manifest": lambda: check_manifest(release, chosen_parts(release, sampled, seed), facts),
        "text_rescue": partial(check_rescue, release, sampled, seed),
        "classifications": partial(check_classifications, release, full=sampled is None),
        "tokenizer": partial(check_tokenizer, release),
        "streams": partial(check_stream_digests, release),
        "windows": partial(check_windows, release),
    }
    if sampled is None:
        for kind in kinds_by_name():
            if kind.name in release.streams and kind_in_manifests(kind.name):
                check = check_packed if kind.layout == "packed" else check_document_lengths
                checks[f"{kind.name} documents"] = partial(check, release, kind, facts)
    checks["reflections"] = partial(_reflections, release)
    for name, run in checks.items():
        yield finding(name, run, missing)


def _reflections(release: Release) -> str:
    files = sorted((release.path / "reflections").rglob("*.parquet"))
    return f"{sum(pq.read_metadata(file).num_rows for file in files):,} rows" if files else "none are made"
