"""Delivery of a run's records: a thread sends them, and a file keeps what the store does not have yet.

A run appends every record to ``mlflow.backlog/<run id>.jsonl`` before the store gets it, and waits until it has, but
for at most 2 seconds in any minute; nothing that the store does can end the run. Records that the store has are cut
off, so the file of a healthy run is empty and is removed at its end. Every record names its time and may be sent
twice: MLflow keeps one point of equal key, step, time and value, one value of a parameter or tag, one file.
A record that the disk does not take is sent while the run waits, or left out and counted.

Line 1 says which store and run; each further line is a JSON object with one of ``metrics`` ([key, value, time, step]),
``params``, ``tags``, ``dataset``, ``model``, ``file`` (its content is in ``<run id>.files/``) and ``end``. Whoever
holds the lock (``flock``) of the file delivers it: the run itself, and after its death whoever comes first (`deliver`).
A run removes its file when it has ended, so one that was killed is known by its file without a lock, and is marked
KILLED.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from everytoken.locks import is_open_as, locked
from everytoken.shards import atomic_file
from everytoken.tracking.store import TrackingStore, reason

logger = logging.getLogger(__name__)

FOLDER = "mlflow.backlog"
LEFT_OUT = "tracking.left_out"
"""The tag of a run that says how many points and files found no room."""

_LIMIT = 256 << 20  # bytes of all backlogs of a project
_CHECKED_EVERY = 1 << 20  # bytes after which a run looks at what others hold
_BLOCK = 1 << 20
_POINTS_A_BATCH = 1000  # MLflow's own limit

_WAIT_SECONDS, _WAIT_WINDOW = 2.0, 60.0  # the run waits for the store so long, of so long
_PAUSE_SECONDS = 5.0  # between tries of a lost store
_STALLED_SECONDS = 15.0  # at the end of a run: nothing was sent for so long
_END_SECONDS = 300.0
_TRIES = 4  # of one record
_LAST_TRY_SECONDS = 2.0  # at the end of a run whose store is lost
_BEGIN = b'{"store": "'
_AWAY = "Move the file out of the folder, or delete it, to give its records up"

BacklogRecord = dict[str, Any]


class DamagedBacklog(Exception):
    """A file, or a line of it, that no run has written so."""


@dataclass(frozen=True)
class Header:
    """Where the records belong: the address of the store as it may be shown, and the id of the run."""

    store: str
    run: str


class Backlog:
    """The backlog of one run, locked by this process. Not for several threads at once."""

    def __init__(self, path: Path, lock: contextlib.ExitStack, descriptor: int, header: Header, start: int) -> None:
        """Use `created` or `claimed`."""
        self._lock = lock
        self.header = header
        self.left_out: Counter[str] = Counter()
        self.stays = False
        """Whether the file stays though it is empty: the store does not know that the run has ended."""
        self._path, self._descriptor = path, descriptor
        self._start = self._sent = start
        self._next: int | None = None  # end of the record that `next_record` gave
        self._size = self._checked = os.fstat(descriptor).st_size
        self._file_bytes = sum(file.stat().st_size for file in self.files.rglob("*") if file.is_file())

    @property
    def files(self) -> Path:
        """The folder with the content of files."""
        return self._path.with_suffix(".files")

    @property
    def is_empty(self) -> bool:
        """Whether the store has every record."""
        return self._sent == self._size

    @property
    def is_on_disk(self) -> bool:
        """Whether the file is still in its folder."""
        return self._path.exists()

    def append(self, record: BacklogRecord) -> None:
        """Keep one record until it is sent; thin the series if there is no more room.

        Raises:
            OSError: the disk does not take it; the file is as before.
        """
        if "end" in record and self.left_out:
            self.append(self.told())
        os.ftruncate(self._descriptor, self._size)  # Ctrl-C may have come just before the size was noted
        self._size += _write(self._descriptor, _line(record), self._size)
        if self._size - self._checked > _CHECKED_EVERY:
            self._checked = self._size
            self._make_room()

    def append_file(self, source: Path, name: str) -> None:
        """Keep a copy of a file that the store gets as ``name`` (with folders), in the place of an earlier one."""
        size = source.stat().st_size
        if size > self._room() - self._size - self._file_bytes:
            self.left_out["files"] += 1
            self.append(self.told())
            return
        copy = self.files / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(copy) as temporary:  # the sender may be reading the earlier one
            shutil.copyfile(source, temporary)
        self._file_bytes += size
        self.append({"file": name})

    def next_record(self) -> BacklogRecord:
        """Return what is to be sent next; points of many records are one.

        Raises:
            DamagedBacklog: the next line is no record.
        """
        lines = self._unsent()
        line = next(lines)
        record = self._record(line)
        if record is None:
            raise DamagedBacklog(f"no record of a run: {line[:40]!r}")
        end = self._sent + len(line)
        if "metrics" in record:
            for line in lines:
                more = (self._record(line) or {}).get("metrics", ())
                if not 0 < len(more) <= _POINTS_A_BATCH - len(record["metrics"]):
                    break
                record["metrics"] += more
                end += len(line)
        self._next = end
        return record

    def sent(self) -> None:
        """Forget what `next_record` gave, unless the file was thinned since; with the last record it is emptied."""
        if self._next is not None:
            self._sent, self._next = self._next, None
        if self.is_empty:
            os.ftruncate(self._descriptor, self._start)
            self._sent = self._size = self._checked = self._start
            shutil.rmtree(self.files, ignore_errors=True)
            self._file_bytes = 0

    @property
    def line(self) -> int:
        """The number of the line that is sent next."""
        return sum(1 for _ in _lines(self._descriptor, 0, self._sent)) + 1

    def records_left(self) -> int:
        """Return how many records the store does not have."""
        return sum(1 for _ in self._unsent())

    def _unsent(self) -> Iterator[bytes]:
        return _lines(self._descriptor, self._sent, self._size)

    def cut(self) -> None:
        """Cut off what was sent; write the rest again if the file was removed.

        Raises:
            OSError: the disk does not take it; a file that is there stays as it is.
        """
        if self._sent > self._start or not is_open_as(self._descriptor, self._path):
            self._path.parent.mkdir(exist_ok=True)
            self._rewrite(thin=False)

    def close(self) -> None:
        """Release the backlog: an empty one is removed, of any other the records that were not sent stay.

        Raises:
            OSError: as `cut`; it is released all the same.
        """
        try:
            if not self.is_empty:
                self.cut()
            if not self.is_empty or self.stays:
                return
            self._path.unlink(missing_ok=True)
            shutil.rmtree(self.files, ignore_errors=True)
            with contextlib.suppress(OSError):  # others are in it
                self._path.parent.rmdir()
        finally:
            self._lock.close()

    def _record(self, line: bytes) -> BacklogRecord | None:
        """Return the record of a line, or None if it is none that a store takes."""
        record: BacklogRecord = _parsed(line)
        match record:
            case {"metrics": list(points)}:
                return record if all(map(_is_point, points)) else None
            case {"params": dict()} | {"tags": dict()} | {"end": str(), "time": int()}:
                return record
            case {"dataset": dict(), "tags_of_dataset": dict()} | {"model": dict()}:
                return record
            case {"file": str(name)} if "\0" not in name:
                own = self.files.parent.resolve() / self.files.name  # nothing else is uploaded
                return record if own in (self.files / name).resolve().parents else None
        return None

    def _room(self) -> int:
        """Return how many bytes this run may keep."""
        mine = self._size + self._file_bytes
        held = 0
        for file in self._path.parent.rglob("*"):
            with contextlib.suppress(OSError):  # another process has delivered it, or it is none of ours
                held += file.stat().st_size if file.is_file() else 0
        return _LIMIT - max(0, held - mine)

    def _make_room(self) -> None:
        room, before = self._room(), -1
        while self._size + self._file_bytes > room and self.left_out["points"] != before:
            before = self.left_out["points"]
            self._rewrite(thin=True)

    def _rewrite(self, *, thin: bool) -> None:
        """Replace the file by one without what was sent, and with every second point of each series if ``thin``."""
        temporary = self._path.with_suffix(".tmp")
        lock, descriptor = _hold(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            size, seen = _write(descriptor, _line(asdict(self.header)), 0), Counter[str]()
            for line in self._unsent():
                size += _write(descriptor, self._thinned(line, seen) if thin else line, size)
            if thin:
                size += _write(descriptor, _line(self.told()), size)
            temporary.replace(self._path)
        except OSError:
            lock.close()
            temporary.unlink(missing_ok=True)
            raise
        self._lock.close()
        self._lock, self._descriptor = lock, descriptor
        self._size = self._checked = size
        self._sent, self._next = self._start, None

    def _thinned(self, line: bytes, seen: Counter[str]) -> bytes:
        record = json.loads(line)
        if "metrics" not in record:
            return line
        kept = []
        for point in record["metrics"]:
            if seen[point[0]] % 2 == 0:
                kept.append(point)
            seen[point[0]] += 1
        self.left_out["points"] += len(record["metrics"]) - len(kept)
        return _line({"metrics": kept}) if kept else b""

    def told(self) -> BacklogRecord:
        """Return the tag that counts what was left out."""
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.left_out.items()))
        return {"tags": {LEFT_OUT: counts}}


def created(root: Path, header: Header) -> Backlog:
    """Create the empty backlog of a run in the folder ``root``."""
    path = root / f"{header.run}.jsonl"
    while True:
        root.mkdir(exist_ok=True)
        try:
            lock, descriptor = _hold(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # another process has just removed the empty folder
            continue
        return Backlog(path, lock, descriptor, header, _write(descriptor, _line(asdict(header)), 0))


def _hold(path: Path, flags: int, *, wait: bool = True) -> tuple[contextlib.ExitStack, int]:
    """Return the lock of a file, which is released when it is closed, and its descriptor."""
    lock = contextlib.ExitStack()
    return lock, lock.enter_context(locked(path, lambda: os.open(path, flags, 0o644), wait=wait))


def waiting(root: Path) -> list[Path]:
    """Return the files of the backlogs in the folder ``root``, also of runs that live."""
    return sorted(root.glob("*.jsonl"))


def claimed(path: Path) -> Backlog | None:
    """Return the backlog of a run that has ended; None if a process holds it, or if it is delivered already.

    Raises:
        DamagedBacklog: it has no header; nothing in it is changed.
        OSError: it cannot be opened, read and written.
    """
    try:
        lock, descriptor = _hold(path, os.O_RDWR, wait=False)
    except (FileNotFoundError, BlockingIOError):
        return None
    with contextlib.ExitStack() as on_error:
        on_error.callback(lock.close)
        first, newline, _ = os.pread(descriptor, _BLOCK, 0).partition(b"\n")
        if not newline and (first.startswith(_BEGIN) or _BEGIN.startswith(first)):  # a kill came before its header
            path.unlink()
            return None
        header = _header(first) if newline else None
        if header is None:
            raise DamagedBacklog(f"line 1 does not name a store and a run: {first[:40]!r}")
        path.with_suffix(".tmp").unlink(missing_ok=True)  # of a rewriting that was killed
        whole = sum(map(len, _lines(descriptor, 0, os.fstat(descriptor).st_size)))
        os.ftruncate(descriptor, whole)  # a run that was killed may leave half a line
        on_error.pop_all()
    return Backlog(path, lock, descriptor, header, len(first) + 1)


def _header(line: bytes) -> Header | None:
    match _parsed(line):
        case {"store": str(store), "run": str(run)}:  # a newer version may say more
            return Header(store, run)
    return None


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # no JSON, no UTF-8
        return None


def _is_point(value: Any) -> bool:
    match value:
        case [str(), int() | float(), int(), int()]:
            return True
    return False


def _lines(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """Yield the complete lines of a file from one offset to another."""
    rest = b""
    while start < end:
        block = os.pread(descriptor, min(_BLOCK, end - start), start)
        start += len(block)
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)


def _line(record: BacklogRecord) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _write(descriptor: int, data: bytes, offset: int) -> int:
    """Write all of ``data`` or nothing; return its length."""
    done = 0
    try:
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], offset + done)
    except OSError:
        os.ftruncate(descriptor, offset)
        raise
    return len(data)


@dataclass(frozen=True)
class Delivery:
    """What became of the backlog of one run.

    Attributes:
        sent: records that the store has now.
        left: records that it does not have; None if its file cannot be read.
    """

    run: str
    sent: int
    left: int | None
    problem: str

    def __str__(self) -> str:
        if self.left is None:
            return self.problem
        left = f", {self.left} kept: {self.problem}" if self.problem else ""
        return f"run {self.run}: {self.sent} records delivered{left}"


@dataclass(eq=False)
class _Unkept:
    """A record that the backlog cannot take, and its file: sent while the run waits, else left out."""

    record: BacklogRecord
    file: Path | None = None
    is_taken: bool = False


class Sender:
    """The way of one run's records to the store. Methods may be called from several threads."""

    def __init__(self, store: TrackingStore, run_id: str) -> None:
        """Create the backlog and start the thread."""
        self._store, self._run_id = store, run_id
        self._backlog = created(store.backlogs, Header(store.shown, run_id))
        self._changed = threading.Condition()
        self._waits: deque[tuple[float, float]] = deque()  # end and seconds of each wait of the last minute
        self._unkept: deque[_Unkept] = deque()
        self._problem = ""  # why the store is lost
        self._warned: set[str] = set()
        self._closing = self._closed = False
        self._delivered = 0
        threading.Thread(target=self._work, name="tracking", daemon=True).start()

    def put(self, record: BacklogRecord) -> None:
        """Send a record; return when the store has it, or the time that a run may wait is used up."""
        self._put(lambda: self._backlog.append(record), _Unkept(record))

    def put_file(self, source: Path, name: str) -> None:
        """Send a copy of a file as the artifact ``name``."""
        self._put(lambda: self._backlog.append_file(source, name), _Unkept({"file": name}, source))

    def flush(self, seconds: float) -> str:
        """Wait for all records, without counting it; return why some could not be sent, or ""."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_all() or self._problem, seconds)
            self._waits.clear()
            if self._backlog.left_out["records"]:
                return f"{FOLDER} cannot be written, and records could not be sent without it"
            return "" if self._has_all() else self._problem or f"it did not answer within {seconds:.0f} s"

    def close(self) -> None:
        """Wait as long as records go out, then leave the rest in the backlog, and say so."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            deadline = time.monotonic() + _END_SECONDS
            while not self._has_all() and time.monotonic() < deadline:
                before = self._delivered
                self._changed.wait_for(
                    lambda: self._has_all() or self._closed or self._delivered > before,  # noqa: B023
                    _LAST_TRY_SECONDS if self._problem else _STALLED_SECONDS,
                )
                if self._delivered == before:
                    break
            self._closed = True
            self._changed.notify_all()
            for unkept in list(self._unkept):
                self._leave_out(unkept)
            left, kept = self._backlog.records_left(), True
            try:
                self._backlog.close()
            except OSError as error:
                kept = self._backlog.is_on_disk
                logger.warning("Tracking: %s cannot be written at the end of run %s: %s", FOLDER, self._run_id, error)
        if not kept:
            logger.warning("Tracking: %d records of run %s are lost: neither has them", left, self._run_id)
        elif left:
            logger.warning(
                "Tracking: %s does not have %d records of run %s (%s). %s keeps them: the next run sends them, or "
                "'everytoken tracking deliver' does",
                self._store.shown,
                left,
                self._run_id,
                self._problem or "it does not answer",
                FOLDER,
            )

    def _has_all(self) -> bool:
        return self._backlog.is_empty and not self._unkept

    def _put(self, append: Callable[[], None], unkept: _Unkept) -> None:
        with self._changed:
            try:
                append()
            except OSError as error:  # no room on the disk, or the project folder is gone
                self._warn(f"{FOLDER} cannot be written ({error}): records are sent without being kept")
                if "end" in unkept.record and self._backlog.left_out:
                    self._unkept.append(_Unkept(self._backlog.told()))
                self._unkept.append(unkept)
            self._changed.notify_all()
            now = time.monotonic()
            while self._waits and self._waits[0][0] < now - _WAIT_WINDOW:
                self._waits.popleft()
            allowed = _WAIT_SECONDS - sum(seconds for _, seconds in self._waits)
            self._changed.wait_for(
                lambda: unkept not in self._unkept and (self._has_all() or self._problem), max(0.0, allowed)
            )
            self._waits.append((time.monotonic(), time.monotonic() - now))
            if unkept in self._unkept and not unkept.is_taken and "end" not in unkept.record:  # `close` waits for that
                self._leave_out(unkept)

    def _leave_out(self, unkept: _Unkept) -> None:
        self._unkept.remove(unkept)
        self._backlog.stays |= "end" in unkept.record
        self._backlog.left_out["records"] += 1
        if self._backlog.left_out["records"] == 1:
            self._warn(f"records are left out: neither {self._store.shown} nor {FOLDER} takes them")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("Tracking: %s", text)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or not self._has_all())
                if self._closed or self._has_all():
                    return
                unkept = self._unkept[0] if self._backlog.is_empty else None
                if unkept is not None:
                    unkept.is_taken = True
            try:
                if unkept is not None:
                    self._send_unkept(unkept)
                else:
                    self._send_next()
            except Exception as error:  # MLflow, SQLAlchemy, requests and plugins each raise what they like
                with self._changed:
                    if unkept is not None and unkept in self._unkept:  # `close` gives up before a slow store does
                        self._leave_out(unkept)
                self._lost(error)
                continue
            with self._changed:
                if self._closed:
                    return
                if self._problem:
                    logger.warning("Tracking: %s takes records again", self._store.shown)
                self._problem = ""
                self._delivered += 1
                if unkept is not None:
                    self._unkept.remove(unkept)
                else:
                    self._backlog.sent()
                self._changed.notify_all()

    def _send_next(self) -> None:
        with self._changed:
            record = self._backlog.next_record()
        _persistent(partial(self._store.send, self._run_id, record, self._backlog.files))

    def _send_unkept(self, unkept: _Unkept) -> None:
        def attempt() -> None:
            if unkept.file is not None and not unkept.file.exists():  # `send` would take it for one that was sent
                raise FileNotFoundError(f"{unkept.record['file']} was removed before it was sent")
            self._store.send(self._run_id, unkept.record, Path(temporary))

        with tempfile.TemporaryDirectory() as temporary:
            if unkept.file is not None:
                link = Path(temporary, unkept.record["file"])
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(unkept.file.absolute())  # the artifact has the name of the link
            _persistent(attempt)

    def _lost(self, error: Exception) -> None:
        """Note why the store is lost, and pause; at the end of the run give up."""
        with self._changed:
            if not self._problem and not self._closing:
                logger.warning(
                    "Tracking: %s is lost (%s). The run continues and keeps its records in %s",
                    self._store.shown,
                    reason(error),
                    FOLDER,
                )
            self._problem, self._closed = reason(error), self._closed or self._closing
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing, _PAUSE_SECONDS)


def _persistent(call: Callable[[], None]) -> None:
    """Call again what failed, a few times within a second.

    Two processes that write at once can both find that a row is missing and both insert it; one of them fails.
    """
    for attempt in range(1, _TRIES):
        try:
            call()
        except Exception:  # each kind of store has its own
            time.sleep(0.05 * 2**attempt)
        else:
            return
    call()


def deliver(store: TrackingStore, seconds: float = float("inf")) -> Iterator[Delivery]:
    """Send what runs that have ended could not, and mark as KILLED those that did not come to their end.

    Stop after ``seconds``. Safe to be killed, repeated, run twice. A run that has not ended delivers its own, and what
    another process delivers is left to that.
    """
    deadline = time.monotonic() + seconds
    for path in waiting(store.backlogs):
        try:
            backlog = claimed(path)
        except (DamagedBacklog, OSError) as error:
            yield Delivery(path.stem, 0, None, f"{FOLDER}/{path.name} cannot be delivered: {error}. {_AWAY}")
            continue
        if backlog is not None:
            delivery = _delivered(store, backlog, path.name, deadline)
            if delivery.sent or delivery.problem:
                yield delivery


def _delivered(store: TrackingStore, backlog: Backlog, name: str, deadline: float) -> Delivery:
    run, sent, problem = backlog.header.run, 0, ""
    try:
        if store.status(run) is None:
            problem = (
                f"they belong to {backlog.header.store}, and {store.shown} does not know the run; deliver with "
                f"MLFLOW_TRACKING_URI set to where that store is now, or delete {name} and "
                f"{backlog.files.name} in {FOLDER} to give these records up"
            )
        while not problem and not backlog.is_empty:
            record = backlog.next_record()
            _persistent(partial(store.send, run, record, backlog.files))
            backlog.sent()
            sent += 1
            if time.monotonic() > deadline:
                problem = "a start waits no longer; run: everytoken tracking deliver"
        if not problem and store.status(run) == "RUNNING":
            why = "the process ended without a word (SIGKILL, out of memory or power)"
            for record in ({"tags": {"error": why}}, {"end": "KILLED", "time": int(time.time() * 1000)}):
                _persistent(partial(store.send, run, record, backlog.files))
            logger.warning("Run %s was left RUNNING by a process that is gone: marked KILLED", run)
    except DamagedBacklog as error:
        with contextlib.suppress(OSError):  # then the lines that were sent stay, and count
            backlog.cut()
        problem = f"{FOLDER}/{name}, line {backlog.line}: {error}. Delete the line to deliver what follows. {_AWAY}"
    except Exception as error:  # MLflow, SQLAlchemy, requests and plugins each raise what they like
        problem = reason(error)
    finally:
        left, backlog.stays = backlog.records_left(), bool(problem)
        with contextlib.suppress(OSError):  # what was sent stays, and may be sent twice
            backlog.close()
    return Delivery(run, sent, left, problem)
