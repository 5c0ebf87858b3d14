"""Small results in one file: the datasets of `kedro_datasets` for JSON, CSV and plotly, but written atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from kedro_datasets.json import JSONDataset
from kedro_datasets.pandas import CSVDataset
from kedro_datasets.plotly import JSONDataset as FigureDataset
from plotly.graph_objects import Figure

from everytoken.shards import write_text


class JsonFile(JSONDataset):  # type: ignore[misc]
    """Plain data in a JSON file; keys keep their order; NaN is refused."""

    def save(self, data: Any) -> None:
        """Write the data."""
        _write(self._get_save_path(), json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


class CsvFile(CSVDataset):  # type: ignore[misc]
    """A table in a CSV file."""

    def save(self, data: pd.DataFrame) -> None:
        """Write the table."""
        _write(self._get_save_path(), data.to_csv(**self._save_args))


class FigureFile(FigureDataset):  # type: ignore[misc]
    """A plotly figure as JSON."""

    def save(self, data: Figure) -> None:
        """Write the figure."""
        _write(self._get_save_path(), data.to_json() + "\n")


def _write(file: Any, text: str) -> None:
    path = Path(str(file))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
