"""What the store does not have yet: a file for each run, from which any later process delivers.

A run appends every record to ``mlflow.backlog/<run id>.jsonl`` before the store gets it. Records that the store has
are cut off, so the file of a healthy run is empty and is removed at its end. Every record names its time and may be
sent twice: MLflow keeps one point of equal key, step, time and value, one value of a parameter or tag, one file.

Line 1 says which store and run; each further line is a JSON object with one of ``metrics`` ([key, value, time, step]),
``params``, ``tags``, ``dataset``, ``file`` (its content is in ``<run id>.files/``) and ``end``. Whoever holds the
lock (``flock``) of the file delivers it: the run itself, and after its death whoever comes first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = "mlflow.backlog"
LEFT_OUT = "tracking.left_out"
"""The tag of a run that says how many points and files found no room."""

_LIMIT = 256 << 20  # bytes of all backlogs of a project
_CHECKED_EVERY = 1 << 20  # bytes after which a run looks at what others hold
_BLOCK = 1 << 20
_POINTS_A_BATCH = 1000  # MLflow's own limit

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

    def __init__(self, path: Path, descriptor: int, header: Header, start: int) -> None:
        """Use `created` or `claimed`."""
        self.header = header
        self.left_out: Counter[str] = Counter()
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
        temporary = copy.with_name(f".{copy.name}.tmp")  # the sender may be reading the earlier one
        try:
            shutil.copyfile(source, temporary)
            temporary.replace(copy)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self._file_bytes += size
        self.append({"file": name})

    def next_record(self) -> BacklogRecord:
        """Return what is to be sent next; points of many records are one.

        Raises:
            DamagedBacklog: the next line is no record.
        """
        lines = self._lines(self._sent, self._size)
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
        return sum(1 for _ in self._lines(0, self._sent)) + 1

    def records_left(self) -> int:
        """Return how many records the store does not have."""
        return sum(1 for _ in self._lines(self._sent, self._size))

    def cut(self) -> None:
        """Cut off what was sent; write the rest again if the file was removed.

        Raises:
            OSError: the disk does not take it; a file that is there stays as it is.
        """
        if self._sent > self._start or not _is_file_of(self._path, self._descriptor):
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
                return
            self._path.unlink(missing_ok=True)
            shutil.rmtree(self.files, ignore_errors=True)
            with contextlib.suppress(OSError):  # others are in it
                self._path.parent.rmdir()
        finally:
            os.close(self._descriptor)

    def _record(self, line: bytes) -> BacklogRecord | None:
        """Return the record of a line, or None if it is none that `everytoken.tracking.sender.send` takes."""
        record: BacklogRecord = _parsed(line)
        match record:
            case {"metrics": list(points)}:
                return record if all(map(_is_point, points)) else None
            case {"params": dict()} | {"tags": dict()} | {"end": str(), "time": int()}:
                return record
            case {"dataset": dict(), "tags_of_dataset": dict()}:
                return record
            case {"file": str(name)} if "\0" not in name:
                own = self.files.parent.resolve() / self.files.name  # nothing else is uploaded
                return record if own in (self.files / name).resolve().parents else None
        return None

    def _lines(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the complete lines from one offset to another."""
        rest = b""
        while start < end:
            block = os.pread(self._descriptor, min(_BLOCK, end - start), start)
            start += len(block)
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                yield line + b"\n"

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
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size, seen = _write(descriptor, _line(asdict(self.header)), 0), Counter[str]()
            for line in self._lines(self._sent, self._size):
                size += _write(descriptor, self._thinned(line, seen) if thin else line, size)
            if thin:
                size += _write(descriptor, _line(self.told()), size)
            temporary.replace(self._path)
        except OSError:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        os.close(self._descriptor)
        self._descriptor, self._size, self._checked = descriptor, size, size
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
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # another process has just removed the empty folder
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_file_of(path, descriptor):
            return Backlog(path, descriptor, header, _write(descriptor, _line(asdict(header)), 0))
        os.close(descriptor)  # another process has taken it for what a kill has left, and removed it


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
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    header = None
    try:
        if _is_file_of(path, descriptor):
            header, start = _opened(path, descriptor)
    finally:
        if header is None:
            os.close(descriptor)
    return None if header is None else Backlog(path, descriptor, header, start)


def _opened(path: Path, descriptor: int) -> tuple[Header | None, int]:
    """Return the header and its length, and cut off half a line; None if a kill came first: then it is removed."""
    first, newline, _ = os.pread(descriptor, _BLOCK, 0).partition(b"\n")
    begin = b'{"store": "'
    if not newline and (first.startswith(begin) or begin.startswith(first)):
        path.unlink()
        return None, 0
    match _parsed(first):
        case {"store": str(store), "run": str(run)} if newline:  # a newer version may say more
            path.with_suffix(".tmp").unlink(missing_ok=True)  # of a rewriting that was killed
            os.ftruncate(descriptor, _whole_lines(descriptor))  # a run that was killed may leave half a line
            return Header(store, run), len(first) + 1
    raise DamagedBacklog(f"line 1 does not name a store and a run: {first[:40]!r}")


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


def _whole_lines(descriptor: int) -> int:
    """Return the size of a file without an incomplete last line."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        last = os.pread(descriptor, end - start, start).rfind(b"\n")
        if last >= 0:
            return start + last + 1
        end = start
    return 0


def _is_file_of(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


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
