"""Is a release the one that was written? Asked before anything of it is used: names, kinds of files, and checksums."""

from __future__ import annotations

import logging

from everytoken.checks import Faults, Hashing, require_none
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import (
    BOUNDARIES_FILE,
    MANIFEST_FOLDER,
    MOST_BYTES,
    RECIPE_FILE,
    STREAMS_FILE,
    SUMS_FILE,
    TOKENIZER_PATH,
    UPSTREAM_FILE,
    Release,
    require_inside,
)

logger = logging.getLogger(__name__)

_COPY = "Copy the release again; if it stays so, do not trust it."


def require_whole(release: Release) -> None:
    """Check that every file of a release is a file inside it, and has the SHA-256 of ``SHA256SUMS``.

    Raises:
        ProvenanceError: a file is missing, is a link, or has other bytes, or two lists of digests say otherwise.
    """
    sums = release.sha256sums
    needed = {RECIPE_FILE, UPSTREAM_FILE, BOUNDARIES_FILE, STREAMS_FILE, TOKENIZER_PATH}
    listed = {
        f"{MANIFEST_FOLDER}/{split}/{part['name']}.parquet": part["sha256"]
        for split, boundaries in release.boundaries.items()
        for part in boundaries["parts"]
    } | {TOKENIZER_PATH: release.recipe["tokenizer"]["sha256"]}
    faults = [f"{SUMS_FILE} does not list {name}" for name in sorted({*needed, *listed} - set(sums))]
    faults += [
        f"{name}: SHA-256 {sums[name][:16]} in {SUMS_FILE}, {digest[:16]} elsewhere in the release"
        for name, digest in listed.items()
        if sums.get(name, digest) != digest
    ]
    for name in sums:
        try:
            require_inside(release.path, name)
        except OSError as error:
            faults.append(f"{release.path / name} cannot be read ({error.strerror})")
    try:
        require_none(faults)
        tokenizer = release.path / TOKENIZER_PATH
        if (size := tokenizer.stat().st_size) > MOST_BYTES:
            raise ProvenanceError(f"{tokenizer} has {size:,} bytes, at most {MOST_BYTES:,} are read")
        with Hashing() as hashing:
            require_none([*hashing.wrong(release.path, sums).values()])
    except Faults as error:
        raise ProvenanceError(
            f"the release {release.path} is not the one that was written: {error}. {_COPY}"
        ) from error
    logger.info("release %s: %s files have their SHA-256", release.digest, f"{len(sums):,}")
