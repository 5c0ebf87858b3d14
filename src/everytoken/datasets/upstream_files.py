"""The files of all sources: fetched and listed when saved, opened from where they lie when loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset
from kedro_datasets._typing import JSONPreview

from everytoken.corpus.upstreams import Source, UpstreamFile, find_files
from everytoken.shards import value_digest, write_text

Files = dict[str, list[UpstreamFile]]


class UpstreamFiles(AbstractDataset[Mapping[str, Source], Files]):
    """The list of the files of each source, in JSON; wheels are kept in a folder and known there by their SHA-256.

    Args:
        filepath: the list.
        wheels: the folder for fetched wheels.
        metadata: for kedro-viz.
    """

    def __init__(self, *, filepath: str, wheels: str, metadata: dict[str, Any] | None = None) -> None:
        self._list = Path(filepath)
        self._wheels = Path(wheels)
        self.metadata = metadata

    def save(self, data: Mapping[str, Source]) -> None:
        """Fetch what is not there and write the list, sorted by source and path."""
        self._wheels.mkdir(parents=True, exist_ok=True)
        files = {name: find_files(name, data[name], self._wheels) for name in sorted(data)}
        listed = {
            name: [{"path": file.path, "location": str(file.location), "member": file.member} for file in of_source]
            for name, of_source in files.items()
        }
        self._list.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._list, json.dumps(listed, ensure_ascii=False, indent=1) + "\n")

    def load(self) -> Files:
        """Return the files of each source."""
        listed = json.loads(self._list.read_text(encoding="utf-8"))
        return {
            name: [UpstreamFile(name, file["path"], Path(file["location"]), file["member"]) for file in of_source]
            for name, of_source in listed.items()
        }

    def _exists(self) -> bool:
        return self._list.exists()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._list), "wheels": str(self._wheels)}

    def ledger_summary(self) -> dict[str, Any]:
        """Return a digest over the names of the files; their contents are in the shard plan."""
        files = self.load()
        names = {name: [file.path for file in of_source] for name, of_source in files.items()}
        sizes = {file.location: file.location.stat().st_size for of_source in files.values() for file in of_source}
        return {
            "root_digest": value_digest(names),
            "rows": sum(map(len, names.values())),
            "bytes": sum(sizes.values()),
        }

    def preview(self) -> JSONPreview:
        """Return the list for kedro-viz."""
        return JSONPreview(self._list.read_text(encoding="utf-8"))
