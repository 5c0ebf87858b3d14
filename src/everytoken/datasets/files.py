"""Small results in one file: the datasets of `kedro_datasets` for JSON, CSV and plotly, but written atomically."""

from __future__ import annotations

import json
from io import StringIO
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
        text = StringIO()
        data.to_csv(text, **self._save_args)
        _write(self._get_save_path(), text.getvalue())


class FigureFile(FigureDataset):  # type: ignore[misc]
    """A plotly figure as JSON."""

    def save(self, data: Figure) -> None:
        """Write the figure."""
        _write(self._get_save_path(), data.to_json() + "\n")


def _write(file: Any, text: str) -> None:
    path = Path(str(file))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
