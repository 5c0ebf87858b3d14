"""A dataset of parts in the catalog: saving runs the lazy map, loading gives the parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset

from everytoken.corpus.sampling import is_scored
from everytoken.datasets.previews import TablePreview
from everytoken.datasets.remote_entries import remote_place
from everytoken.shards import Shards, Store, digests_in, make_engine
from everytoken.shards.remote import RemoteStore

_PREVIEW_CHARS = 200
_UNSCORED = dict.fromkeys(("safety_score", "safety_probs", "is_bad"), "not scored")


class ShardStore(AbstractDataset[Shards, Shards]):
    """A folder of parts with a ledger (see `everytoken.shards.store`), here or behind a URL.

    Args:
        filepath: the folder, or its URL (docs/stores.md).
        engine: where part functions run: ``{kind: inline}``, ``{kind: processes, workers: 2}`` or ``{kind: slurm,
            ...}`` (docs/cluster.md).
        cache: of a URL: ``{path, bytes}``, the folder of local copies and the most bytes of all of them.
        credentials: of a URL: what its file system of fsspec takes.
    """

    def __init__(
        self,
        *,
        filepath: str,
        engine: dict[str, Any],
        cache: dict[str, Any] | None = None,
        credentials: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        remote = remote_place(filepath, cache, credentials)
        self._store = Store(Path(filepath)) if remote is None else RemoteStore(*remote)
        self._engine = make_engine(**engine)
        self.metadata = metadata

    def load(self) -> Shards:
        """Return the stored parts."""
        return self._store.load()

    def save(self, data: Shards) -> None:
        """Make the parts that are missing or made otherwise."""
        self._store.save(data, self._engine)

    def _exists(self) -> bool:
        return self._store.exists()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._store.shown, "engine": str(self._engine)}

    def ledger_summary(self) -> dict[str, Any]:
        """Return root digest, rows and bytes of the complete store, and whether it has no part."""
        ledger = self._store.ledger()
        return {
            "root_digest": ledger.root_digest,
            "rows": ledger.rows,
            "bytes": ledger.bytes,
            "is_empty": not ledger.parts,
        }

    def columns(self) -> int | None:
        """Return how many columns a row has; None: the parts are values, or there are none."""
        shards = self._store.load()
        return len(shards.parts[0].schema) if shards.holds == "rows" and shards.parts else None

    def state(self) -> object:
        """Return what differs after a part was made again, also to the same digest."""
        return self._store.state()

    def is_made_from(self, root_digest: str, part_digests: Sequence[str]) -> bool:
        """Tell whether a dataset of this content was an input of what is stored, whole or part by part."""
        ledger = self._store.ledger()
        inputs = zip(*(part.inputs for part in ledger.parts), strict=True)  # one sequence for each zipped dataset
        return root_digest in digests_in(ledger.recipe) or tuple(part_digests) in inputs

    def part_digests(self) -> Sequence[str]:
        """Return the content digests of the parts, in plan order."""
        return [part.content_digest for part in self._store.ledger().parts]

    def preview(self, nrows: int = 50) -> TablePreview:
        """Return the first rows (of values: the first parts) as a table for kedro-viz."""
        shards = self.load()
        if shards.holds == "values":
            rows = [{"part": part.name, **part.value} for part in islice(shards, nrows)]
        else:
            batches = (batch for part in shards for batch in part.batches())
            rows = [row for batch in islice(batches, 1) for row in batch.slice(0, nrows).to_pylist()]
            if shards.ledger is not None and not is_scored(shards.ledger.recipe):
                rows = [{**row, **_UNSCORED} for row in rows]
        return TablePreview(_table(rows))


def _table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    columns = list(rows[0]) if rows else []
    data = [[_cell(row[column]) for column in columns] for row in rows]
    return {"index": list(range(len(rows))), "columns": columns, "data": data}


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        value = value.hex()
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, int | float) else text[:_PREVIEW_CHARS] + "…" * (len(text) > _PREVIEW_CHARS)
