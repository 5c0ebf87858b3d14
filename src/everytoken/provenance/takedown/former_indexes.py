"""The indexes of streams as they were before a take-down: what a model that was trained on these read stays known.

They are kept by the digest of their stream, ``former_indexes/<its first 16 characters>``, whole artifacts with their
ledgers, as hard links where the file system has them: an index that is made again takes the place of its folder, and
leaves its files as they were. Nothing removes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from everytoken.provenance.indexes import stream_of
from everytoken.provenance.lookup import FORMER_INDEXES, Places
from everytoken.shards import (
    LEDGER_FILE,
    Artifact,
    ArtifactStore,
    atomic_folder,
    link_file,
    remove_temporaries,
    sole_writer,
)


def keep_indexes(places: Places, made: Iterable[Artifact] = ()) -> Path:
    """Keep the indexes of all streams of an environment; return the folder that holds them.

    Args:
        made: indexes that were made now, as the environment lacks them.
    """
    folder = places.path("compact_index").parent / FORMER_INDEXES
    folder.mkdir(parents=True, exist_ok=True)
    with sole_writer(folder):
        remove_temporaries(folder)
        for index in (*made, *places.artifacts.values()):
            if stream := stream_of(index):
                _keep(index, folder / stream[:16])
    return folder


def _keep(index: Artifact, folder: Path) -> None:
    if ArtifactStore(folder).exists():
        return
    assert index.folder is not None, "it was loaded"
    with atomic_folder(folder) as temporary:
        for name in (*index.ledger["files"], LEDGER_FILE):
            to = temporary / name
            to.parent.mkdir(parents=True, exist_ok=True)
            link_file(index.folder / name, to)
