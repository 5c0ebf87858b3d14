"""A store of parts behind a URL: parts are made in a local folder, and kept as objects that never change.

The URL has ``ledger.json``, and an object for each file of a part, whose name has the digest of the file. A worker
uploads a part when it is made, before it writes its record. The ledger comes last, in the place of the one that was
read: of two runs that save the same store, the storage lets one replace it. So a ledger and the objects that it names
always belong together. What the former ledger named alone, or a killed run left, is deleted after that.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from everytoken.shards.atomic import atomic_file, lock_folder, sole_writer
from everytoken.shards.digests import value_digest
from everytoken.shards.engines import Engine
from everytoken.shards.errors import IncompleteStore, StoreBusy
from everytoken.shards.ledger import LEDGER_FILE, FileRecord, HeldFile, Ledger, PartRecord, ledger_of
from everytoken.shards.remote.cache import FileCache
from everytoken.shards.remote.files import RemoteFolder, object_name
from everytoken.shards.remote.folders import Changed
from everytoken.shards.shards import Shards
from everytoken.shards.store import Store

logger = logging.getLogger(__name__)

_OURS = re.compile(r"part_\d{5,}(\.set_aside|\.extended)?\.[0-9a-f]{16}\.parquet")
_MAKING = ".making"


@dataclass(frozen=True)
class HeldParts:
    """The files of a store that a storage lists."""

    folder: RemoteFolder
    sizes: dict[str, int]

    def has(self, name: str, record: PartRecord | FileRecord) -> bool:
        """Return whether the object is there, by name, which has its digest, and size."""
        return self.sizes.get(object_name(name, record.sha256)) == record.bytes

    def file(self, name: str, record: PartRecord | FileRecord) -> HeldFile:
        """Return a file, fetched when it is read."""
        return self.folder.file(name, record.bytes, record.sha256)

    @property
    def take(self) -> Callable[[Path, str, str], None]:
        """Upload a local file."""
        return self.folder.upload


def require_server(folder: RemoteFolder) -> None:
    """Warn where the storage cannot keep two runs from replacing each other's ledger at the same moment."""
    if not folder.objects.compares_on_server:
        logger.warning(
            "%s: this storage does not compare versions when a ledger is replaced. See that one run at a time saves "
            "there (S3 compares)",
            folder.shown,
        )


def replace_ledger(folder: RemoteFolder, content: bytes, version: str | None) -> None:
    """Write a ledger in the place of the one that was read.

    Raises:
        StoreBusy: another run wrote one meanwhile.
    """
    require_server(folder)
    try:
        folder.objects.replace(LEDGER_FILE, content, version)
    except Changed:
        raise StoreBusy(
            f"{folder.shown} was saved by another run while this one made it, and is as that run left it. Run the same "
            "command again: only what is missing is made. If both are to stay, give one of them another URL"
        ) from None


class RemoteStore:
    """A store of parts behind a URL.

    Args:
        url: of its folder.
        cache: where local copies are kept; parts are made in ``work`` of its folder.
    """

    def __init__(self, url: str, cache: FileCache) -> None:
        self.folder = RemoteFolder(url, cache)
        self._work = cache.folder / "work" / value_digest(url.rstrip("/"))[:16]
        self._known: tuple[object, Ledger] | None = None

    @property
    def shown(self) -> str:
        """Its URL for messages."""
        return self.folder.shown

    def _store(self) -> Store:
        return Store(self._work, HeldParts(self.folder, self.folder.objects.sizes()))

    def exists(self) -> bool:
        """Return whether the ledger is there, and every object that it names."""
        try:
            self.load()
        except IncompleteStore:
            return False
        return True

    def state(self) -> object:
        """Return what differs when the ledger was written again; None: there is none."""
        return self.folder.objects.version(LEDGER_FILE)

    def ledger(self) -> Ledger:
        """Read the ledger.

        Raises:
            IncompleteStore: there is none; the message says how far the store is.
            DamagedStore: it is not the one that was written.
        """
        if self._known is not None and self._known[0] == self.state():
            return self._known[1]
        found = self.folder.objects.read(LEDGER_FILE)
        if found is None:
            there = sum(_OURS.fullmatch(name) is not None for name in self.folder.objects.sizes())
            state = f"is not complete ({there} files of parts are there)" if there else "has not been made"
            raise IncompleteStore(f"{self.shown} {state}. Run the pipeline that makes it; it goes on where it stopped.")
        content, version = found
        self._known = version, ledger_of(content, f"{self.shown}/{LEDGER_FILE}")
        return self._known[1]

    def load(self) -> Shards:
        """Return the parts; their files are fetched when they are read.

        Raises:
            IncompleteStore: not all of them are there.
        """
        return self._store().shards_of(self.ledger(), self.shown)

    def save(self, planned: Shards, engine: Engine) -> Ledger:
        """Make and upload the parts that are missing or made otherwise; return the ledger.

        Raises:
            PartsFailed: some parts failed; the others are made and kept.
            StoreBusy: another run is writing this store, or has written it meanwhile.
            StorageError: the storage refuses something, or is out of reach.
        """
        self._work.mkdir(parents=True, exist_ok=True)
        with sole_writer(lock_folder(self._work)):
            version = self._adopt_ledger()
            store = self._store()
            listed = self.folder.objects.sizes()
            ledger = store.save(planned, engine)
            for path in sorted(self._work.glob("part_*.parquet")):  # linked again from an input
                self._upload_known(path, ledger)
            content = (self._work / LEDGER_FILE).read_bytes()
            if version is None or version[0] != content:
                replace_ledger(self.folder, content, None if version is None else version[1])
            wanted = {object_name(name, record.sha256) for name, record in files_of(ledger)}
            stale = [name for name in listed if _OURS.fullmatch(name) and name not in wanted]
            self.folder.objects.delete(stale)
            self.folder.objects.abort_uploads()
            return ledger

    def _adopt_ledger(self) -> tuple[bytes, str] | None:
        """Let the ledger of the storage be the one that is here; return its bytes and its version.

        One that is here and not there was not uploaded, or was replaced: its records may help all the same.
        """
        found, here = self.folder.objects.read(LEDGER_FILE), self._work / LEDGER_FILE
        content = None if found is None else found[0]
        if here.exists() and here.read_bytes() != content:
            (self._work / _MAKING).mkdir(exist_ok=True)
            here.replace(self._work / _MAKING / LEDGER_FILE)
        if content is not None and not here.exists():
            with atomic_file(here) as temporary:
                temporary.write_bytes(content)
        return found

    def _upload_known(self, path: Path, ledger: Ledger) -> None:
        for name, record in files_of(ledger):
            if name == path.name:
                self.folder.upload(path, name, record.sha256)


def files_of(ledger: Ledger) -> list[tuple[str, PartRecord | FileRecord]]:
    """Return the files of all parts, by name, with their records."""
    found: list[tuple[str, PartRecord | FileRecord]] = []
    for part in ledger.parts if ledger.holds == "rows" else ():
        found.append((f"{part.name}.parquet", part))
        if part.set_aside is not None:
            found.append((f"{part.name}.set_aside.parquet", part.set_aside))
        if part.extended is not None:
            found.append((f"{part.name}.extended.parquet", part.extended))
    return found
