"""A dataset that gives None as long as it has not been made: what only some jobs have, and others do without."""

from __future__ import annotations

from typing import Any

from kedro.io import AbstractDataset


class WhenMade(AbstractDataset[Any, Any]):
    """Another dataset with a ledger, to be read alone; None when it is not there.

    Args:
        dataset: its configuration, as in the catalog.
    """

    def __init__(self, *, dataset: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        self._made: Any = AbstractDataset.from_config("made", dataset)
        self.metadata = metadata

    def load(self) -> Any:
        """Return what the dataset holds, or None."""
        return self._made.load() if self._made.exists() else None

    def save(self, data: Any) -> None:
        """Accept what the dataset holds already, so that a node can say that it is made; write nothing.

        Raises:
            TypeError: it holds something else: it is made under its own name.
        """
        held = self._made.load() if self._made.exists() else None
        if held is None or held.root_digest != getattr(data, "root_digest", None):
            raise TypeError("what is read when it is made is saved under its own name in the catalog")

    def _exists(self) -> bool:
        return bool(self._made.exists())

    def _describe(self) -> dict[str, Any]:
        return dict(self._made._describe())

    def state(self) -> object:
        """Return the same before and after: nothing is written."""
        return None

    def ledger_summary(self) -> dict[str, Any] | None:
        """Return what the dataset says it holds; None when it is not there."""
        return dict(self._made.ledger_summary()) if self._made.exists() else None
