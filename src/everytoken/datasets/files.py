"""Small results in one file, written atomically: JSON (metrics, metadata, samples) and plotly figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset
from kedro_datasets._typing import JSONPreview
from kedro_datasets.plotly import JSONDataset
from plotly.graph_objects import Figure

from everytoken.shards import write_text


class JsonFile(AbstractDataset[Any, Any]):
    """Plain data in a JSON file; keys keep their order; NaN is refused.

    Args:
        filepath: the file.
        metadata: for kedro-viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(filepath)
        self.metadata = metadata

    def load(self) -> Any:
        """Return the data."""
        return json.loads(self._filepath.read_text(encoding="utf-8"))

    def save(self, data: Any) -> None:
        """Write the data."""
        self._filepath.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._filepath, json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n")

    def _exists(self) -> bool:
        return self._filepath.exists()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}

    def preview(self) -> JSONPreview:
        """Return the file's text for kedro-viz."""
        return JSONPreview(self._filepath.read_text(encoding="utf-8"))


class FigureFile(JSONDataset):  # type: ignore[misc]
    """A plotly figure as JSON: `kedro_datasets.plotly.JSONDataset`, but local and atomic."""

    def save(self, data: Figure) -> None:
        """Write the figure."""
        path = Path(str(self._get_save_path()))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, data.to_json() + "\n")
