"""Folders that ``save_to_disk`` wrote, in the layout of datasets 2 to 4."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from everytoken.corpus.ingestion.source import find_files
from everytoken.corpus.upstreams import PathUpstream
from tests.corpus.reading.read_rows import kept, read, write_arrow

ROWS = [{"id": str(number), "text": f"text {number}"} for number in range(7)]


def save(folder: Path) -> None:
    folder.mkdir(parents=True)
    name = "data-00000-of-00001.arrow"
    write_arrow(folder / name, pa.Table.from_pylist(ROWS), stream=True)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}], "_split": "train"}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"text": {"dtype": "string"}}}))


def found(root: Path, pattern: str = "**") -> list[str]:
    return [file.path for file in find_files("s", PathUpstream(kind="path", root=str(root), pattern=pattern), root)]


def test_a_saved_dataset_is_its_arrow_files(tmp_path: Path) -> None:
    save(tmp_path / "one")
    assert found(tmp_path / "one") == ["data-00000-of-00001.arrow"]
    (file,) = find_files("s", PathUpstream(kind="path", root=str(tmp_path / "one")), tmp_path)
    assert kept(read(file)) == ROWS


def test_a_saved_dict_of_datasets_is_the_arrow_files_of_all(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save(tmp_path / split)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    (tmp_path / "notes.json").write_text("[]")
    assert found(tmp_path) == ["notes.json", "test/data-00000-of-00001.arrow", "train/data-00000-of-00001.arrow"]


def test_json_files_of_these_names_elsewhere_are_data(tmp_path: Path) -> None:
    save(tmp_path / "saved")
    (tmp_path / "other").mkdir()
    for name in ("state.json", "dataset_info.json", "a.arrow"):
        (tmp_path / "other" / name).write_text("[]")
    assert found(tmp_path / "other") == ["a.arrow", "dataset_info.json", "state.json"]
    assert found(tmp_path, "**/*.json") == [
        f"{folder}/{name}" for folder in ("other", "saved") for name in ("dataset_info.json", "state.json")
    ]
