"""Records on their way to the store: sent by a thread, waited for a little, kept in a backlog where the store is lost.

The run writes a record into its backlog and waits until the store has it, but for at most 2 seconds in any minute;
nothing that the store does can end it.
A record that the backlog cannot take is sent within the same time or left out.
`deliver` sends what earlier runs could not.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everytoken.tracking.backlog import (
    FOLDER,
    Backlog,
    BacklogRecord,
    DamagedBacklog,
    Header,
    claimed,
    created,
    waiting,
)
from everytoken.tracking.store_health import persistent, reason, sqlite_file

if TYPE_CHECKING:
    from everytoken.tracking.store import TrackingStore

logger = logging.getLogger(__name__)

_WAIT_SECONDS, _WAIT_WINDOW = 2.0, 60.0  # the run waits for the store so long, of so long
_PAUSE_SECONDS = 5.0  # between tries of a lost store
_STALLED_SECONDS = 15.0  # at the end of a run: nothing was sent for so long
_END_SECONDS = 300.0
_LAST_TRY_SECONDS = 2.0  # at the end of a run whose store is lost
_AWAY = "Move the file out of the folder, or delete it, to give its records up"


@dataclass(frozen=True)
class Delivery:
    """What became of the backlog of one run.

    Attributes:
        run: its id.
        sent: records that the store has now.
        left: records that it does not have; None if its file cannot be read.
        problem: why.
    """

    run: str
    sent: int
    left: int | None
    problem: str

    def __str__(self) -> str:
        if self.left is None:
            return self.problem
        left = f", {self.left} kept: {self.problem}" if self.left else ""
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
        persistent(lambda: send(self._store, self._run_id, record, self._backlog.files))

    def _send_unkept(self, unkept: _Unkept) -> None:
        def attempt() -> None:
            if unkept.file is not None and not unkept.file.exists():  # `send` would take it for one that was sent
                raise FileNotFoundError(f"{unkept.record['file']} was removed before it was sent")
            send(self._store, self._run_id, unkept.record, Path(temporary))

        with tempfile.TemporaryDirectory() as temporary:
            if unkept.file is not None:
                link = Path(temporary, unkept.record["file"])
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(unkept.file.absolute())  # the artifact has the name of the link
            persistent(attempt)

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


def deliver(store: TrackingStore, seconds: float = float("inf")) -> Iterator[Delivery]:
    """Send what runs that have ended could not; stop after ``seconds``. Safe to be killed, repeated, run twice.

    A run that has not ended delivers its own, and what another process delivers is left to that.
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
            if delivery.sent or delivery.left:
                yield delivery


def _delivered(store: TrackingStore, backlog: Backlog, name: str, deadline: float) -> Delivery:
    run, sent, problem = backlog.header.run, 0, ""
    try:
        if not _has(store, run):
            problem = (
                f"they belong to {backlog.header.store}, and {store.shown} does not know the run; deliver with "
                f"MLFLOW_TRACKING_URI set to where that store is now, or delete {name} and "
                f"{backlog.files.name} in {FOLDER} to give these records up"
            )
        while not problem and not backlog.is_empty:
            record = backlog.next_record()
            persistent(lambda: send(store, run, record, backlog.files))  # noqa: B023
            backlog.sent()
            sent += 1
            if time.monotonic() > deadline:
                problem = "a start waits no longer; run: everytoken tracking deliver"
    except DamagedBacklog as error:
        with contextlib.suppress(OSError):  # then the lines that were sent stay, and count
            backlog.cut()
        problem = f"{FOLDER}/{name}, line {backlog.line}: {error}. Delete the line to deliver what follows. {_AWAY}"
    except Exception as error:  # MLflow, SQLAlchemy, requests and plugins each raise what they like
        problem = reason(error)
    finally:
        left = backlog.records_left()
        with contextlib.suppress(OSError):  # what was sent stays, and may be sent twice
            backlog.close()
    return Delivery(run, sent, left, problem)


def _has(store: TrackingStore, run_id: str) -> bool:
    """Return whether a store has a run; its id is known nowhere else, so the address may have changed since."""
    from mlflow.exceptions import MlflowException

    try:
        store.client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False
    return True


def send(store: TrackingStore, run_id: str, record: BacklogRecord, files: Path) -> None:
    """Give the store one record. What was sent before changes nothing."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

    database = sqlite_file(store.uri)
    if database is not None and not database.exists():  # SQLite would create an empty one
        raise FileNotFoundError(f"{database.name} is no longer in its folder")
    client = store.client
    if "metrics" in record:
        client.log_batch(run_id, metrics=[Metric(*point) for point in record["metrics"]])
    elif "params" in record:
        client.log_batch(run_id, params=[Param(*pair) for pair in record["params"].items()])
    elif "tags" in record:
        client.log_batch(run_id, tags=[RunTag(*pair) for pair in record["tags"].items()])
    elif "dataset" in record:
        tags = [InputTag(*pair) for pair in record["tags_of_dataset"].items()]
        client.log_inputs(run_id, [DatasetInput(Dataset(**record["dataset"]), tags)])
    elif "file" in record:
        file = files / record["file"]
        if file.exists():  # else it was sent by a process that was killed before it could say so
            folder = Path(record["file"]).parent.as_posix()
            client.log_artifact(run_id, str(file), None if folder == "." else folder)
    else:
        client.set_terminated(run_id, record["end"], record["time"])
