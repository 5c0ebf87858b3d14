"""Looks for a secret in everything that a run wrote and printed: as it is, percent-encoded, and in base64."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow.parquet as pq


def forms(secret: str) -> set[bytes]:
    """Return what a file with the secret in it has in it."""
    plain = unquote(secret)
    found = {one.encode() for one in (secret, plain, quote(plain, safe=""), json.dumps(plain)[1:-1])}
    for before in range(3):
        encoded = base64.b64encode(b"-" * before + plain.encode()).rstrip(b"=")
        found.add(encoded[(0, 2, 3)[before] : -1])
    return found


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file below a folder, its name too; parquet and gzip also decompressed."""
    for path in sorted(folder.rglob("*")):
        yield f"name of {path}", str(path.relative_to(folder)).encode("utf-8", "surrogateescape")
        if not path.is_file():
            continue
        content = path.read_bytes()
        yield str(path), content
        if path.suffix == ".parquet":
            yield f"{path} read", repr(pq.read_table(path).to_pydict()).encode() + repr(_metadata(path)).encode()
        elif path.suffix == ".gz":
            yield f"{path} unpacked", gzip.decompress(content)


def _metadata(path: Path) -> Any:
    return pq.read_metadata(path).metadata, pq.read_schema(path).metadata


def found_in(wanted: Iterable[bytes], given: Iterable[tuple[str, bytes]]) -> list[str]:
    """Return where one of ``wanted`` is."""
    looked = list(wanted)
    return [f"{name}: {one!r}" for name, content in given for one in looked if one in content]
