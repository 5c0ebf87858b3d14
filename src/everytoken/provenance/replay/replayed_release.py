"""A folder of replayed data remembers the release that it is made from, and takes no other one's data."""

from __future__ import annotations

import json
from pathlib import Path

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import Release
from everytoken.shards import canonical_json, write_text

NOTE_FILE = "replayed_release.json"


def keep_to_release(data: Path, release: Release) -> None:
    """Check that a data folder holds what is made from this release; note it where nothing was made yet.

    The note is ``replayed_release.json``, ``{"digest", "path"}``. Only the digest counts: a release may be copied.

    Raises:
        ProvenanceError: the folder is of another release, or its note cannot be read.
    """
    path = data / NOTE_FILE
    if not path.exists():
        data.mkdir(parents=True, exist_ok=True)
        write_text(path, canonical_json({"digest": release.digest, "path": str(release.path.absolute())}) + "\n")
        return
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        digest, then = note["digest"], note["path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProvenanceError(
            f"{path} does not tell which release {data} was replayed from ({error!r}). Remove {data} and replay again"
        ) from error
    if digest != release.digest:
        raise ProvenanceError(
            f"{data} is replayed from the release {digest} (at {then} then), replay.release is "
            f"{release.path.absolute()}, which is {release.digest}: nothing of the one is overwritten with the other. "
            f"Give the release of then (--params replay.release={then}), or move {data} away, or replay into another "
            "folder: a copy of conf/replay with another `data` in globals.yml"
        )
