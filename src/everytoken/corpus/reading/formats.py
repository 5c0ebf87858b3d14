"""The formats of files, by their names."""

from __future__ import annotations

from typing import Literal, NamedTuple

FileKind = Literal["jsonl", "json", "txt", "parquet", "arrow"]
_KINDS: dict[str, FileKind] = {
    ".jsonl": "jsonl",
    ".json": "json",
    ".txt": "txt",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_COMPRESSIONS = {".gz": "gz", ".zst": "zst"}
_TABLES = ("parquet", "arrow")
FORMAT_NAMES = ".jsonl, .json, .txt (each also with .gz or .zst after it), .parquet, .arrow"


class Format(NamedTuple):
    """The kind of a file, and how it is compressed: ``gz``, ``zst`` or None."""

    kind: FileKind
    compression: str | None


def format_by_name(name: str) -> Format | None:
    """Return the format that the name of a file tells, one of `FORMAT_NAMES`; None when it tells none."""
    kind, compression = named_format(name)
    return None if kind is None or (compression and kind in _TABLES) else Format(kind, compression)


def named_format(name: str) -> tuple[FileKind | None, str | None]:
    """Return kind and compression that the name of a file tells, whether or not they go together."""
    compression = next((found for suffix, found in _COMPRESSIONS.items() if name.endswith(suffix)), None)
    stem = name if compression is None else name.removesuffix(f".{compression}")
    kind = next((kind for suffix, kind in _KINDS.items() if stem.endswith(suffix)), None)
    if kind == "json" and compression is not None:
        kind = "jsonl"  # so they are in Dolma and everything made like it
    return kind, compression
