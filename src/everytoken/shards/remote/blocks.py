"""Large files in blocks: each is fetched when it is first read, checked by its own SHA-256, and mapped from the cache.

When a large file is uploaded, the digests of its blocks are written down in a *block table*, an object next to it. The
ledger of the artifact has the SHA-256 of the table, so a chain leads from the ledger's checksum to each byte::

    annotated_stream.<16 hex>.bin       the file
    annotated_stream.bin.<16 hex>.blocks
        {"block": 16777216, "bytes": 50331648, "format": "everytoken-blocks/1"}
        <SHA-256 of the first block>
        ...

In a local folder a stub (`everytoken.shards.ledger.stub_of`) takes the place of such a file: a line that says where the
object and the cache are, then the table.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from everytoken.shards.atomic import write_text
from everytoken.shards.engines import in_threads
from everytoken.shards.errors import DamagedStore
from everytoken.shards.ledger import files_here, stub_of
from everytoken.shards.remote.cache import FileCache, NoRoom
from everytoken.shards.remote.files import RemoteFile, RemoteFolder
from everytoken.shards.remote.folders import Gone

logger = logging.getLogger(__name__)

BLOCKS_FORMAT = "everytoken-blocks/1"

_MOST_MAPPED = 16  # blocks of a process that are mapped at a time, and at most a sixteenth of the cache's bound
_SECONDS_FOR_ROOM = 10.0  # in which other processes may put blocks back


@dataclass(frozen=True)
class BlockTable:
    """The blocks of a file.

    Attributes:
        bytes: of the file.
        block: bytes of each block; the last may have fewer.
        sha256: of each block.
    """

    bytes: int
    block: int
    sha256: tuple[str, ...]

    @staticmethod
    def of(path: Path, block: int) -> BlockTable:
        """Return the table of a local file, which is read once."""
        size = path.stat().st_size

        def digest(start: int) -> str:
            with path.open("rb") as file:
                file.seek(start)
                return hashlib.sha256(file.read(block)).hexdigest()

        return BlockTable(size, block, tuple(in_threads(digest, range(0, size, block))))

    @property
    def text(self) -> str:
        """The table as it is stored."""
        head = {"format": BLOCKS_FORMAT, "bytes": self.bytes, "block": self.block}
        return "\n".join([json.dumps(head, sort_keys=True), *self.sha256, ""])

    @staticmethod
    def parse(text: str, where: object) -> BlockTable:
        """Return the table of a text.

        Raises:
            DamagedStore: it is none.
        """
        first, *digests = text.splitlines()
        try:
            head = json.loads(first)
            table = BlockTable(head["bytes"], head["block"], tuple(digests))
            whole = head["format"] == BLOCKS_FORMAT and len(table.sha256) == -(-table.bytes // table.block)
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            whole = False
        if not whole:
            raise DamagedStore(f"{where} is no table of blocks. Run the pipeline that makes the artifact again")
        return table

    def range_of(self, number: int) -> tuple[int, int]:
        """Return the bytes [start, stop) of a block."""
        return number * self.block, min(self.bytes, (number + 1) * self.block)


@dataclass(frozen=True)
class BlockedFile:
    """A remote file that is read in blocks."""

    file: RemoteFile
    table: BlockTable

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return self.table.bytes

    @property
    def _mapped(self) -> _MappedBlocks:
        return _mapped_blocks(self.file.folder.cache)

    def block(self, number: int) -> np.ndarray:
        """Return the bytes of a block, uint8 (n,), mapped.

        Raises:
            DamagedStore: the object is gone, or this part of it is not what was written.
            StorageError: it cannot be fetched, or there is no room for it.
        """
        start, stop = self.table.range_of(number)
        return self._mapped.get(self.table.sha256[number], stop - start, lambda path: self._fetch(number, path))

    def _fetch(self, number: int, path: Path) -> None:
        start, stop = self.table.range_of(number)
        try:
            content = self.file.folder.objects.download(self.file.object_name, start, stop)
        except Gone:
            raise self.file.gone() from None
        found, expected = hashlib.sha256(content).hexdigest(), self.table.sha256[number]
        if found != expected:
            raise DamagedStore(
                f"{self.file.shown}, bytes {start:,} to {stop:,}, is not what was written: their SHA-256 is {found}, "
                f"expected {expected}. Delete this object and run the pipeline that makes it again"
            )
        path.write_bytes(content)

    def read(self, start: int, into: np.ndarray) -> None:
        """Write the bytes from ``start`` on into an array, uint8 (n,)."""
        done, block = 0, self.table.block
        while done < len(into):
            number, within = divmod(start + done, block)
            piece = self.block(number)[within : within + len(into) - done]
            into[done : done + len(piece)] = piece
            done += len(piece)

    def write_stub(self, path: Path) -> None:
        """Write the stub of a file that would be at ``path``."""
        file, cache = self.file, self.file.folder.cache
        place = {
            "bytes": file.size,
            "url": file.folder.url,
            "cache": [str(cache.folder.resolve()), cache.bound],
            "file": [file.name, file.sha256],
        }
        write_text(stub_of(path), f"{json.dumps(place)}\n{self.table.text}")

    def bring(self, path: Path) -> None:
        """Fetch the whole file to ``path``, in the place of its stub.

        Raises:
            DamagedStore: the object is gone, or is not what was written.
            StorageError: it cannot be fetched, or there is no room for it.
        """
        self.file.folder.cache.fetch(path, self.size, self.file.fetch_to)
        stub_of(path).unlink(missing_ok=True)

    @staticmethod
    def at(path: Path) -> BlockedFile | None:
        """Return the file whose stub is there; None: there is none, or the file itself is there."""
        if path.exists():
            return None
        try:
            text = stub_of(path).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        first, _, table = text.partition("\n")
        try:
            place = json.loads(first)
            (folder, bound), (name, sha256) = place["cache"], place["file"]
            remote = RemoteFolder(place["url"], FileCache(Path(folder), bound))
            file = remote.file(name, place["bytes"], sha256)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedStore(f"{stub_of(path)} is no stub ({error}); delete it, and run the same again") from None
        return BlockedFile(file, BlockTable.parse(table, stub_of(path)))


def bring_whole(folder: Path) -> None:
    """Fetch the whole files of all stubs in a folder; errors as of `BlockedFile.bring`."""
    for path in files_here(folder, "*"):
        if (file := BlockedFile.at(path)) is not None:
            file.bring(path)


class _MappedBlocks:
    """The blocks of a cache that this process has mapped: each is locked in the cache as long.

    A block is checked when this process maps that copy for the first time.
    """

    def __init__(self, cache: FileCache) -> None:
        self._cache = cache
        self._held: OrderedDict[str, tuple[np.ndarray, ExitStack]] = OrderedDict()
        self._checked: set[tuple[str, int]] = set()
        self._bytes, self._lock = 0, Lock()

    def get(self, sha256: str, size: int, fetch: Callable[[Path], None]) -> np.ndarray:
        """Return the bytes of a block."""
        with self._lock:
            held = self._held.get(sha256)
            if held is not None:
                self._held.move_to_end(sha256)
                return held[0]
            most = self._cache.bound // 16
            while self._held and (self._bytes + size > most or len(self._held) >= _MOST_MAPPED):
                self._let_go()
            mapped, stack = self._open(sha256, size, fetch)
            self._held[sha256] = mapped, stack
            self._bytes += size
            return mapped

    def close(self) -> None:
        """Let go of all."""
        with self._lock:
            while self._held:
                self._let_go()

    def _let_go(self) -> None:
        _, (mapped, stack) = self._held.popitem(last=False)
        self._bytes -= len(mapped)
        stack.close()

    def _open(self, sha256: str, size: int, fetch: Callable[[Path], None]) -> tuple[np.ndarray, ExitStack]:
        until = time.monotonic() + _SECONDS_FOR_ROOM
        while True:
            try:
                return self._open_once(sha256, size, fetch)
            except NoRoom:
                if not self._held and time.monotonic() > until:
                    raise
                while self._held:
                    self._let_go()
                time.sleep(0.05)

    def _open_once(self, sha256: str, size: int, fetch: Callable[[Path], None]) -> tuple[np.ndarray, ExitStack]:
        for _ in range(2):
            with ExitStack() as stack:
                path = stack.enter_context(self._cache.file(sha256, size, fetch))
                with path.open("rb") as file:
                    inode, whole = path.stat().st_ino, path.stat().st_size == size
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if whole else b""
                block = np.frombuffer(mapped, np.uint8)
                if whole and ((sha256, inode) in self._checked or hashlib.sha256(mapped).hexdigest() == sha256):
                    self._checked.add((sha256, inode))
                    return block, stack.pop_all()
            logger.warning("%s is not what was fetched; it is fetched again", path)
            self._cache.drop(sha256)
        raise DamagedStore(f"{path} was fetched again, and is not what was written there: check this disk")


_of_caches: dict[FileCache, _MappedBlocks] = {}


def _mapped_blocks(cache: FileCache) -> _MappedBlocks:
    if cache not in _of_caches:
        _of_caches.setdefault(cache, _MappedBlocks(cache))
    return _of_caches[cache]


def forget_mapped() -> None:
    """Let go of all blocks that this process has mapped."""
    for mapped in _of_caches.values():
        mapped.close()
    _of_caches.clear()
