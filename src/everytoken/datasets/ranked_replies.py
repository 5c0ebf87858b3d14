"""A dataset of replies in the catalog: saving asks a generator for those that are missing, loading lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset

from everytoken.datasets.previews import TablePreview
from everytoken.reflections.merging import list_replies
from everytoken.reflections.ranks import RUN_CONFIG, GenerationPlan, submit
from everytoken.shards import Shards, processes_of


class RankedReplies(AbstractDataset[GenerationPlan, Shards]):
    """The folder of a generation run (see `everytoken.reflections.ranks`).

    Args:
        engine: how many ranks are made at a time: ``{kind: processes, workers: 2}``, one after the other in this
            process with ``{kind: inline}``.
    """

    def __init__(self, *, filepath: str, engine: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        self._root = Path(filepath)
        self._at_once = processes_of(**engine)
        self.metadata = metadata

    def load(self) -> Shards:
        """Return a value for each rank."""
        return list_replies(self._root)

    def save(self, data: GenerationPlan) -> None:
        """Submit the ranks that are not complete, and wait for them."""
        submit(data, self._root, at_once=self._at_once, wait=True)

    def _exists(self) -> bool:
        return (self._root / RUN_CONFIG).is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._root), "ranks at a time": max(1, self._at_once)}

    def state(self) -> object:
        """Return what differs after a rank was made."""
        return self.load().root_digest if self._exists() else None

    def ledger_summary(self) -> dict[str, Any]:
        """Return root digest, rows with a result, and bytes of the results."""
        replies = self.load()
        sums = {name: sum(value[name] for value in replies.values) for name in ("results", "bytes")}
        return {"root_digest": replies.root_digest, "rows": sums["results"], "bytes": sums["bytes"]}

    def preview(self, nrows: int = 20) -> TablePreview:
        """Return the first ranks as a table for kedro-viz."""
        values = self.load().values[:nrows]
        columns = list(values[0]) if values else []
        data = [[str(value[name]) for name in columns] for value in values]
        return TablePreview({"index": list(range(len(values))), "columns": columns, "data": data})
