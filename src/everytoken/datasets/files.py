"""Small results in one file: JSON, CSV, HTML and plotly, written atomically.

The classes of `kedro_datasets` for these formats are of packages that import SQLAlchemy and plotly.express: half a
second of each run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.io import AbstractDataset

from everytoken.datasets.previews import JSONPreview, PlotlyPreview, TablePreview
from everytoken.shards import write_text

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


class _OneFile(AbstractDataset[Any, Any]):
    """A result in one file."""

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(filepath)
        self.metadata = metadata

    def _write(self, text: str) -> None:
        self._filepath.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._filepath, text)

    def _exists(self) -> bool:
        return self._filepath.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}


class JsonFile(_OneFile):
    """Plain data in a JSON file; keys keep their order; NaN is refused."""

    def load(self) -> Any:
        """Read the data."""
        return json.loads(self._filepath.read_text(encoding="utf-8"))

    def save(self, data: Any) -> None:
        """Write the data."""
        self._write(json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n")

    def preview(self) -> JSONPreview:
        """Return the data for kedro-viz."""
        return JSONPreview(json.dumps(json.loads(self._filepath.read_text(encoding="utf-8"))))


class CsvFile(_OneFile):
    """A table in a CSV file.

    Args:
        load_args: for ``pandas.read_csv``.
        save_args: for ``DataFrame.to_csv``.
    """

    def __init__(
        self,
        *,
        filepath: str,
        load_args: Mapping[str, Any] | None = None,
        save_args: Mapping[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(filepath=filepath, metadata=metadata)
        self._load_args, self._save_args = dict(load_args or {}), {"index": False, **(save_args or {})}

    def load(self) -> pd.DataFrame:
        """Read the table."""
        return self._read()

    def save(self, data: pd.DataFrame) -> None:
        """Write the table."""
        self._write(data.to_csv(**self._save_args))

    def shape(self) -> tuple[int, int]:
        """Return how many rows and columns the table has."""
        return self._read().shape

    def preview(self, nrows: int = 100) -> TablePreview:
        """Return the first rows for kedro-viz."""
        return TablePreview(self._read(nrows=nrows).to_dict(orient="split"))

    def _read(self, **more: Any) -> pd.DataFrame:
        import pandas as pd

        table: pd.DataFrame = pd.read_csv(self._filepath, **{**self._load_args, **more})
        return table


class HtmlFile(_OneFile):
    """A page of HTML."""

    def load(self) -> str:
        """Read the page."""
        return self._filepath.read_text(encoding="utf-8")

    def save(self, data: str) -> None:
        """Write the page."""
        self._write(data)


class FigureFile(_OneFile):
    """A plotly figure as JSON."""

    def load(self) -> Figure:
        """Read the figure."""
        import plotly.io

        return plotly.io.from_json(self._filepath.read_text(encoding="utf-8"))

    def save(self, data: Figure) -> None:
        """Write the figure."""
        self._write(data.to_json() + "\n")

    def preview(self) -> PlotlyPreview:
        """Return the figure for kedro-viz."""
        return PlotlyPreview(json.loads(self._filepath.read_text(encoding="utf-8")))
