"""The formats of files, by their names in any letter case, and what to run first for files that are not read."""

from __future__ import annotations

from typing import Literal, NamedTuple

FileKind = Literal["jsonl", "json", "objects", "csv", "tsv", "txt", "parquet", "arrow", "tar", "webdataset"]
_KINDS: dict[str, FileKind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "txt",
    ".md": "txt",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tar": "tar",
}
_COMPRESSIONS = {".gz": "gz", ".zst": "zst", ".bz2": "bz2", ".xz": "xz"}
_SHORT = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
TABLES = ("parquet", "arrow")
TARS = ("tar", "webdataset")
FORMAT_NAMES = (
    ".jsonl, .json, .txt (also .ndjson, .jsonlines, .csv, .tsv, .md, .tar; "
    "each also with .gz, .zst, .bz2 or .xz after it), .parquet, .arrow"
)

_PAGES = "extract their text first, for example by trafilatura --input-dir PAGES --output-dir TEXTS"
_ARCHIVE = "unpack it first, for example by python -m zipfile -e FILE FOLDER"
_PANDOC = "convert it first, for example by pandoc --to plain --output FILE.txt FILE"
_FIRST = {
    ".warc": "WARC holds web pages: write their text as .jsonl first, for example with warcio and trafilatura",
    ".wet": "WET holds records of WARC: write their text as .jsonl first, for example with warcio",
    ".html": f"HTML pages are not read: {_PAGES}",
    ".htm": f"HTML pages are not read: {_PAGES}",
    ".pdf": "PDF is not read: extract its text first, for example by pdftotext FILE.pdf FILE.txt",
    ".epub": f"EPUB is not read: {_PANDOC}",
    ".docx": f"DOCX is not read: {_PANDOC}",
    ".zip": f"a zip archive is not read: {_ARCHIVE}",
}


class Format(NamedTuple):
    """The kind of a file, and how it is compressed: ``gz``, ``zst``, ``bz2``, ``xz`` or None."""

    kind: FileKind
    compression: str | None


def format_by_name(name: str) -> Format | None:
    """Return the format that the name of a file tells, one of `FORMAT_NAMES`; None when it tells none."""
    kind, compression = named_format(name)
    return None if kind is None or (compression and kind in TABLES) else Format(kind, compression)


def named_format(name: str) -> tuple[FileKind | None, str | None]:
    """Return kind and compression that the name of a file tells, whether or not they go together."""
    kind, compression = _suffixes(name)
    if kind == "json" and compression is not None:
        kind = "jsonl"  # so they are in Dolma and everything made like it
    return kind, compression


def may_be_array(name: str) -> bool:
    """Return whether a file that `named_format` takes for lines is an array when it begins as one: ``.json.gz``."""
    kind, compression = _suffixes(name)
    return kind == "json" and compression is not None


def member_format(name: str) -> Format | None:
    """Return how a member of a tar archive is read, None for one that is no text.

    A ``.json`` has objects, or an array when it begins as one.
    """
    kind, compression = named_format(name)
    if kind is None or kind in TABLES or kind in TARS or is_of_macos(name):
        return None
    return Format("objects" if kind == "json" else kind, compression)


def is_of_macos(name: str) -> bool:
    """Return whether a member has attributes that tar of macOS writes before the member they are of: ``._a.txt``."""
    return name.rpartition("/")[2].startswith("._")


def _suffixes(name: str) -> tuple[FileKind | None, str | None]:
    lower = name.lower()
    lower = next((lower.removesuffix(short) + long for short, long in _SHORT.items() if lower.endswith(short)), lower)
    compression = next((found for suffix, found in _COMPRESSIONS.items() if lower.endswith(suffix)), None)
    stem = lower if compression is None else lower.removesuffix(f".{compression}")
    return next((kind for suffix, kind in _KINDS.items() if stem.endswith(suffix)), None), compression


def what_to_run_first(name: str) -> str | None:
    """Return what makes a file of a known format that is not read into one that is; None for other names."""
    stem = name.lower()
    for suffix in _COMPRESSIONS:
        stem = stem.removesuffix(suffix)
    return next((advice for suffix, advice in _FIRST.items() if stem.endswith(suffix)), None)
