"""An artifact behind a URL: made in a local folder, its files kept as objects that never change.

The URL has ``ledger.json``, an object for each file, whose name has the digest of the file, and a block table for each
large one (`everytoken.shards.remote.blocks`). The ledger is that of a local folder, with the SHA-256 of the tables
added under ``blocks``. It is written last, in the place of the one that was read: of two runs that save the same
artifact, the storage lets one replace it. What the former ledger named alone, or a killed run left, is deleted then.

What is loaded has a folder of the cache. It is filled when it is first asked for, and stays as long as the loaded
artifact lives: small files whole, large ones of tokens and numbers as stubs, other large ones when their path is asked
for.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import RLock
from typing import Any

from everytoken.shards.artifacts import (
    Artifact,
    ArtifactStore,
    artifact_checksum,
    artifact_ledger_of,
    artifact_ledger_text,
    is_artifact_ledger,
    parse_artifact_ledger,
)
from everytoken.shards.atomic import sole_writer, write_text
from everytoken.shards.digests import file_sha256, value_digest
from everytoken.shards.engines import Engine, in_threads
from everytoken.shards.errors import DamagedStore, IncompleteStore, ShardsError
from everytoken.shards.ledger import LEDGER_FILE, stub_of
from everytoken.shards.remote.blocks import BlockedFile, BlockTable
from everytoken.shards.remote.cache import FileCache
from everytoken.shards.remote.files import RemoteFile, RemoteFolder, object_name
from everytoken.shards.remote.folders import REQUEST_BYTES
from everytoken.shards.remote.remote_stores import replace_ledger

logger = logging.getLogger(__name__)

_IN_BLOCKS = (".bin", ".idx", ".npy")
_WHEN_ASKED = (".parquet",)
_OURS = re.compile(r".*\.[0-9a-f]{16}(\.[^/]*)?")


class RemoteArtifact(Artifact):
    """A made artifact whose files are fetched when they are used.

    Args:
        remote: where its files are.
        content: its ledger.
    """

    def __init__(self, remote: RemoteFolder, content: bytes) -> None:
        ledger = artifact_ledger_of(content, f"{remote.url}/{LEDGER_FILE}")
        values = {"recipe": None, "ledger": ledger, "switched_off": False, "held": remote, "_content": content}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_here", _LocalFolder(self))

    held: RemoteFolder
    _content: bytes
    _here: _LocalFolder

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteArtifact, (self.held, self._content)

    def __repr__(self) -> str:
        return f"RemoteArtifact({self.held.shown})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteArtifact) and (self.held.url, self.ledger) == (other.held.url, other.ledger)

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_made(self) -> bool:
        """True."""
        return True

    @property
    def shown(self) -> str:
        """Its URL, for messages."""
        return self.held.shown

    @property
    def name(self) -> str:
        """The digest over all that its ledger says: the name of its folder in the cache."""
        return str(json.loads(self._content)["checksum"])[:32]

    @property
    def folder(self) -> Path:
        """A local folder with its files; large ones of tokens, numbers and tables as stubs."""
        return self._here.filled()

    def path(self, name: str) -> Path:
        """Return a local copy of a file, whole.

        Raises:
            DamagedStore: it has no such file, or the object is gone or is not what was written.
            StorageError: it cannot be fetched, or there is no room for it.
        """
        self._require_file(name)
        path = self._here.filled() / name
        if not path.exists():
            self._here.bring(name)
        return path

    def verify(self) -> None:
        """Check that the objects are there, and that copies of them here are what was written.

        What is fetched later is checked then.

        Raises:
            DamagedStore: an object is gone, or has another size.
        """
        if (name := _missing(self.held, self.ledger)) is not None:
            raise DamagedStore(
                f"{self.shown}: {name} is gone, or has another size than was written. Run the pipeline that makes it "
                "again"
            )
        self._here.check()

    def file(self, name: str) -> RemoteFile:
        """Return a file as it is kept."""
        entry = self.ledger["files"][name]
        return self.held.file(name, entry["bytes"], entry["sha256"])


class _LocalFolder:
    """The folder of an artifact in the cache, which stays as long as the artifact lives once it was asked for."""

    def __init__(self, artifact: RemoteArtifact) -> None:
        self._cache, self._name, self._lock = artifact.held.cache, artifact.name, RLock()
        self._artifact = weakref.ref(artifact)
        self._path: Path | None = None

    def _of(self) -> RemoteArtifact:
        artifact = self._artifact()
        assert artifact is not None, "it owns this"
        return artifact

    def filled(self) -> Path:
        with self._lock:
            if self._path is None:
                stack = ExitStack()
                path = stack.enter_context(self._cache.pinned(self._name))
                with stack:
                    self._fill(path)
                    weakref.finalize(self._of(), stack.pop_all().close)
                self._path = path
            return self._path

    def _fill(self, path: Path) -> None:
        artifact = self._of()
        path.mkdir(parents=True, exist_ok=True)
        if not (path / LEDGER_FILE).exists():
            write_text(path / LEDGER_FILE, artifact._content.decode())
        tables, wanted = artifact.ledger.get("blocks", {}), []
        for name in artifact.ledger["files"]:
            if (path / name).exists() or stub_of(path / name).exists():
                continue
            if name in tables and Path(name).suffix in (*_IN_BLOCKS, *_WHEN_ASKED):
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                BlockedFile(artifact.file(name), self._table(name, tables[name])).write_stub(path / name)
            else:
                wanted.append(name)
        for _ in in_threads(self.bring, wanted):
            pass

    def _table(self, name: str, entry: Mapping[str, Any]) -> BlockTable:
        file = self._of().held.file(f"{name}.blocks", entry["bytes"], entry["sha256"])
        with file.at_hand() as path:
            return BlockTable.parse(path.read_text(encoding="utf-8"), file.shown)

    def bring(self, name: str) -> None:
        """Fetch a file whole."""
        file, path = self._of().file(name), self._cache.folder_of(self._name) / name
        self._cache.fetch(path, file.size, file.fetch_to)
        stub_of(path).unlink(missing_ok=True)

    def check(self) -> None:
        """Fetch again what is here and is not what was written."""
        if not self._cache.folder_of(self._name).is_dir():
            return
        path, files = self.filled(), self._of().ledger["files"]

        def check(name: str) -> None:
            if (path / name).exists() and file_sha256(path / name) != files[name]["sha256"]:
                logger.warning("%s is not what was fetched; it is fetched again", path / name)
                (path / name).unlink()
                self.bring(name)

        for _ in in_threads(check, files):
            pass


def _objects(ledger: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield name and bytes of each object that a ledger names."""
    for name, entry in ledger["files"].items():
        yield object_name(name, entry["sha256"]), entry["bytes"]
    for name, entry in ledger.get("blocks", {}).items():
        yield object_name(f"{name}.blocks", entry["sha256"]), entry["bytes"]


def _missing(remote: RemoteFolder, ledger: Mapping[str, Any]) -> str | None:
    """Return the first object that is not there with its size; None where all are."""
    sizes = remote.objects.sizes()
    return next((name for name, size in _objects(ledger) if sizes.get(name) != size), None)


class RemoteArtifactStore:
    """A folder behind a URL that holds one artifact.

    Args:
        url: of the folder.
        cache: where local copies are kept; the artifact is made in ``work`` of its folder.
        block: bytes of the blocks of files that are larger than one.
    """

    def __init__(self, url: str, cache: FileCache, block: int = REQUEST_BYTES) -> None:
        self.remote, self._block = RemoteFolder(url.rstrip("/"), cache), block
        self._work = cache.folder / "work" / value_digest(self.remote.url)[:16] / self.name

    @property
    def name(self) -> str:
        """The last name of its URL."""
        return self.remote.url.rpartition("/")[2]

    @property
    def shown(self) -> str:
        """Its URL for messages."""
        return self.remote.shown

    def state(self) -> object:
        """Return what differs after the ledger was written again; None: there is none."""
        return self.remote.objects.version(LEDGER_FILE)

    def exists(self) -> bool:
        """Return whether the ledger is there, and every object that it names."""
        try:
            self.load()
        except IncompleteStore:
            return False
        return True

    def load(self) -> RemoteArtifact:
        """Return the made artifact; its files are fetched when they are used.

        Raises:
            IncompleteStore: it is not there, or not whole.
            DamagedStore: its ledger is not what was written.
        """
        found = self.remote.objects.read(LEDGER_FILE)
        if found is None:
            raise IncompleteStore(f"{self.shown} has not been made. Run the pipeline that makes it.")
        artifact = RemoteArtifact(self.remote, found[0])
        if (name := _missing(self.remote, artifact.ledger)) is not None:
            raise IncompleteStore(
                f"{self.shown} lacks {name}, or its size is not the recorded one. Run the pipeline that makes it."
            )
        return artifact

    def save(self, planned: Artifact, engine: Engine | None = None) -> Artifact:
        """Make and upload the artifact unless the storage holds it already; return the made one.

        Args:
            engine: as of `ArtifactStore.save`.

        Raises:
            StoreBusy: another process makes it here, or another run has written it meanwhile.
            StorageError: the storage refuses something, or is out of reach.
            ShardsError: see `ArtifactStore.save`; or there are other objects at the URL.
        """
        if planned.recipe is None:
            raise ShardsError(f"{self.shown}: only a planned artifact can be saved")
        self._work.parent.mkdir(parents=True, exist_ok=True)
        with sole_writer(self._work.parent):
            found, sizes = self.remote.objects.read(LEDGER_FILE), self.remote.objects.sizes()
            former = self._former(found)
            is_right = former is not None and former["fingerprint"] == planned.recipe.fingerprint([])
            if found and former and is_right and all(sizes.get(name) == size for name, size in _objects(former)):
                logger.log(logging.DEBUG if planned.switched_off else logging.INFO, "%s is there", self.name)
                return RemoteArtifact(self.remote, found[0])
            self._check_replaceable(sizes, found)
            ArtifactStore(self._work).save(planned, engine)
            content = self._upload(sizes)
            replace_ledger(self.remote, content, None if found is None else found[1])
            self._delete_stale(sizes, content)
            made = RemoteArtifact(self.remote, content)
            write_text(self._work / LEDGER_FILE, content.decode())
            if not self.remote.cache.adopt(self._work, made.name):
                shutil.rmtree(self._work)
            return made

    def _former(self, found: tuple[bytes, str] | None) -> dict[str, Any] | None:
        """Return the ledger that is there; None where there is none, or a damaged one."""
        if found is None:
            return None
        try:
            return artifact_ledger_of(found[0], f"{self.shown}/{LEDGER_FILE}")
        except DamagedStore as error:
            logger.warning("%s; it is made again", error)
            return None

    def _check_replaceable(self, sizes: Mapping[str, int], found: tuple[bytes, str] | None) -> None:
        foreign = sorted(name for name in sizes if name != LEDGER_FILE and not _OURS.fullmatch(name))
        if foreign:
            what = "holds" if found is None else "is an artifact and also holds"
            raise ShardsError(
                f"{self.shown} {what} {foreign[:5]}, which is no object of an artifact. Give the artifact another URL, "
                "or move these elsewhere"
            )
        if found is not None and not is_artifact_ledger(found[0]):
            raise ShardsError(f"{self.shown} holds something that is no artifact. Give the artifact another URL")

    def _upload(self, sizes: Mapping[str, int]) -> bytes:
        """Bring the files of the work folder, and their block tables, to the storage; return the ledger to publish."""
        objects = self.remote.objects
        ledger = parse_artifact_ledger(self._work / LEDGER_FILE)
        ledger.pop("blocks", None)
        files = ledger["files"]
        large = {name: self._work / name for name, entry in files.items() if entry["bytes"] > self._block}
        small = [name for name in files if name not in large]
        blocks: dict[str, Any] = {}

        def upload(name: str) -> None:
            target = object_name(name, files[name]["sha256"])
            if sizes.get(target) != files[name]["bytes"]:
                objects.upload(target, self._work / name)

        for _ in in_threads(upload, small):
            pass
        for name, path in large.items():  # in parts, which are sent in parallel
            logger.info("%s: uploading %s, %s bytes", self.name, name, f"{path.stat().st_size:,}")
            upload(name)
            text = BlockTable.of(path, self._block).text.encode()
            blocks[name] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
            target = object_name(f"{name}.blocks", blocks[name]["sha256"])
            if sizes.get(target) != len(text):
                self._upload_text(target, text)
        if blocks:
            ledger["blocks"] = blocks
        ledger["checksum"] = artifact_checksum(ledger)
        return artifact_ledger_text(ledger).encode()

    def _upload_text(self, target: str, text: bytes) -> None:
        path = self._work.with_name(f"{self._work.name}.blocks")
        try:
            path.write_bytes(text)
            self.remote.objects.upload(target, path)
        finally:
            path.unlink(missing_ok=True)

    def _delete_stale(self, sizes: Mapping[str, int], content: bytes) -> None:
        wanted = {name for name, _ in _objects(json.loads(content))}
        stale = [name for name in sizes if name != LEDGER_FILE and name not in wanted]
        self.remote.objects.delete(stale)
        self.remote.objects.abort_uploads()
