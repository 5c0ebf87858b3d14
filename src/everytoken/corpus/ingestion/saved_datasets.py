"""Folders that ``save_to_disk`` of the library ``datasets`` wrote: their arrow files are data, their ``.json`` not.

A dataset is a folder with ``state.json``, ``dataset_info.json`` and ``data-<number>-of-<number>.arrow`` (an IPC
stream). A ``DatasetDict`` is a folder of such folders with a ``dataset_dict.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

_DATA = re.compile(r"data-\d+-of-\d+\.arrow")
_OF_A_DATASET = ("state.json", "dataset_info.json")
_OF_A_DICT = "dataset_dict.json"


def metadata_of_saved_datasets(paths: Iterable[str]) -> frozenset[str]:
    """Return those of the files of an upstream that only describe a dataset next to them.

    Args:
        paths: of all files that the source's pattern matches. A file is metadata only next to the arrow files that it
            describes, so a source of ``.json`` files alone has none.
    """
    every = set(paths)
    saved = {str(PurePosixPath(path).parent) for path in every if _DATA.fullmatch(PurePosixPath(path).name)}
    saved = {folder for folder in saved if all(_within(folder, name) in every for name in _OF_A_DATASET)}
    above = {str(PurePosixPath(folder).parent) for folder in saved if folder != "."}
    found = {_within(folder, name) for folder in saved for name in _OF_A_DATASET}
    return frozenset(found | ({_within(folder, _OF_A_DICT) for folder in above} & every))


def _within(folder: str, name: str) -> str:
    return str(PurePosixPath(folder) / name)
