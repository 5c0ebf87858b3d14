"""Parts: the tokens of a byte range of an input, kept until all parts are joined, and by ``keep_parts`` longer.

A part is named by its fingerprint: ``<fingerprint>.tokens`` has the ids of all documents one after the other, each
document's EOS included, in the type of the stream; ``.lengths`` the tokens of each document with its EOS, little-endian
int32; and ``.json`` what is known of both. That is written last, so a part without it is not whole. CRC-32 tells a
damaged part when it is joined.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict

from isal.isal_zlib import crc32

from everytoken.shards import DamagedStore, value_digest, write_text
from everytoken.tokens.encoding import EncodedCounts
from everytoken.tokens.tokenizer import TokenizerStatistics

logger = logging.getLogger(__name__)

TOKENS, LENGTHS, RECORD = ".tokens", ".lengths", ".json"
_BLOCK = 1 << 20


class RangeRecord(TypedDict):
    """What is known of a part.

    ``bytes`` and ``crc32``: of its files, by suffix. ``first_lossy``: row of the range, from 0, whose document is the
    first that loses text; None if none does. ``rechecked``: documents that the reference encoded again.
    """

    bytes: dict[str, int]
    crc32: dict[str, int]
    counts: EncodedCounts
    first_lossy: int | None
    tokenizer: TokenizerStatistics
    rechecked: int


class SummedFile:
    """A new file with the CRC-32 of what is written to it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self.bytes = self.crc32 = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def write(self, data: memoryview) -> None:
        """Append bytes."""
        data = data.cast("B") if data.nbytes else memoryview(b"")
        self.crc32 = crc32(data, self.crc32)
        while data:
            written = self._file.write(data)
            self.bytes += written
            data = data[written:]


@dataclass(frozen=True)
class MadePart:
    """A part that is there.

    Attributes:
        folder: where it is.
        name: its fingerprint; of one that is not named yet, its temporary name.
        record: what is known of it.
    """

    folder: Path
    name: str
    record: RangeRecord

    def path(self, suffix: str) -> Path:
        """Return the path of one of its files."""
        return self.folder / f"{self.name}{suffix}"

    def named(self, fingerprint: str) -> MadePart:
        """Give a part its name, when it is known."""
        part = MadePart(self.folder, fingerprint, self.record)
        for suffix in (TOKENS, LENGTHS):
            self.path(suffix).replace(part.path(suffix))
        text = json.dumps({**self.record, "checksum": value_digest(self.record)}, indent=1, sort_keys=True)
        write_text(part.path(RECORD), f"{text}\n")
        return part

    def blocks(self, suffix: str) -> Iterator[bytes]:
        """Yield what a file of the part holds.

        Raises:
            DamagedStore: it is not what was written; known after the last block.
        """
        path, size, summed = self.path(suffix), 0, 0
        with path.open("rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                size, summed = size + len(block), crc32(block, summed)
                yield block
        if (size, summed) != (self.record["bytes"][suffix], self.record["crc32"][suffix]):
            self.path(RECORD).unlink(missing_ok=True)  # so that the next run rebuilds it
            raise DamagedStore(
                f"{path} is not the file that was written (its CRC-32 differs). Run the command again: damaged parts "
                "are rebuilt."
            )


def find_part(folder: Path, fingerprint: str) -> MadePart | None:
    """Return a part that an earlier run made; None when there is none, or it is damaged."""
    path = folder / f"{fingerprint}{RECORD}"
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        checksum = content.pop("checksum")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        _damaged(path, repr(error))
        return None
    if value_digest(content) != checksum:
        _damaged(path, "its checksum differs")
        return None
    part = MadePart(folder, fingerprint, content)  # type: ignore[arg-type]  # as its checksum says
    for suffix, size in part.record["bytes"].items():
        if not part.path(suffix).is_file() or part.path(suffix).stat().st_size != size:
            _damaged(part.path(suffix), "its size differs")
            return None
    return part


def _damaged(path: Path, reason: str) -> None:
    logger.warning("%s is not the file that was written (%s); the part is made again", path, reason)
