"""Where the datasets of an environment lie, and which of them has a content: by root digest, never by name alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import stream_of
from everytoken.shards import LEDGER_FILE, Artifact, ArtifactStore, DamagedStore, ShardsError, is_store, read_ledger
from everytoken.system_errors import raise_trouble

logger = logging.getLogger(__name__)

FORMER_INDEXES = "former_indexes"  # beside the indexes: those of streams that were made again since
_INDEX = "_index"


@dataclass(frozen=True)
class Places:
    """The datasets of an environment.

    Attributes:
        paths: folder or file of each, by name.
        environment: what the user calls it, for messages.
        remote: artifacts behind URLs, which are fetched when they are read.
        streams: where streams lie that its parameters name by path, by their names there.
    """

    paths: Mapping[str, Path]
    environment: str
    streams: Mapping[str, Path] = field(default_factory=dict)
    remote: Mapping[str, Artifact] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Return where a dataset lies.

        Raises:
            ProvenanceError: the environment has none of this name.
        """
        try:
            if (artifact := self.remote.get(name)) is not None and artifact.folder is not None:
                return artifact.folder
            return self.paths[name]
        except KeyError:
            raise ProvenanceError(
                f"the environment {self.environment!r} has no dataset {name!r}, or has it as parts behind a URL, where "
                "nothing is looked up: give it a local filepath in the catalog and run its pipeline"
            ) from None

    def store(self, name: str) -> Path:
        """Return the folder of a dataset of parts that has been made.

        Raises:
            ProvenanceError: it has not.
        """
        folder = self.path(name)
        if not (folder / LEDGER_FILE).is_file():
            raise ProvenanceError(
                f"{folder} ({name}) is not there, or not complete: documents are looked up in it. Run the pipelines "
                f"that make it again: kedro run{self.options}; it gives the same bytes"
            )
        return folder

    def knows(self, name: str) -> bool:
        """Return whether the environment names a dataset, made or not."""
        return name in self.paths or name in self.remote

    def has(self, name: str) -> bool:
        """Return whether a dataset is there."""
        return name in self.remote or (
            name in self.paths and (self.paths[name].is_file() or (self.paths[name] / LEDGER_FILE).is_file())
        )

    @property
    def options(self) -> str:
        """What follows ``kedro run`` for this environment."""
        return "" if self.environment in ("", "local", "base") else f" --env {self.environment}"

    @cached_property
    def artifacts(self) -> dict[str, Artifact]:
        """The artifacts that are there and whole, by name."""
        return {**dict(self._artifacts()), **self.remote}

    def _artifacts(self) -> Iterator[tuple[str, Artifact]]:
        for name, folder in self.paths.items():
            if not (folder / LEDGER_FILE).is_file() or is_store(folder):
                continue
            try:
                yield name, ArtifactStore(folder).load()
            except ShardsError as error:  # another one may be the one that is looked for; if not, its error says so
                logger.warning("%s is passed over: %s", name, error)

    @cached_property
    def indexes(self) -> dict[str, Artifact]:
        """The indexes of streams by the root digest of their stream; also of streams that a take-down made again."""
        found = {stream: one for one in self.artifacts.values() if (stream := stream_of(one))}
        places = {path.parent / FORMER_INDEXES for name, path in self.paths.items() if name.endswith(_INDEX)}
        former = Places({str(path.parent): path.parent for one in places for path in one.glob(f"*/{LEDGER_FILE}")}, "")
        return {stream: one for one in former.artifacts.values() if (stream := stream_of(one))} | found

    def with_digest(self, root_digest: str) -> tuple[str, Artifact] | None:
        """Return name and artifact of this content; None when the environment has none."""
        return next(((name, one) for name, one in self.artifacts.items() if one.root_digest == root_digest), None)


def store_head(folder: Path) -> dict[str, Any]:
    """Return what the ledger of a store of parts says, and ``part_rows`` in place of its parts.

    Raises:
        ProvenanceError: the folder has no such ledger.
    """
    path = folder / LEDGER_FILE
    try:
        found = path.stat()
        return _store_head(path, found.st_ino, found.st_mtime_ns, found.st_size)
    except (DamagedStore, OSError) as error:
        raise_trouble(error)
        raise ProvenanceError(str(error)) from error


@lru_cache(maxsize=16)  # a question asks several times; each part is but a number here
def _store_head(path: Path, *_: int) -> dict[str, Any]:
    ledger = read_ledger(path)
    rows = tuple(part["rows"] for part in ledger.pop("parts"))
    return {**ledger, "part_rows": rows}
