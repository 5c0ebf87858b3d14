"""Whether the store takes runs, checked before any work: MLflow itself retries for minutes and ends in tracebacks."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from everytoken.redaction import redacted
from everytoken.tracking.errors import TrackingError

SQLITE = "sqlite:///"
_SQLITE_AS_IT_IS = "sqlite+pysqlite:///"
_SQLITE_PREFIXES = (SQLITE, _SQLITE_AS_IT_IS)

_T = TypeVar("_T")

_PROBE_SECONDS = 5.0
_TRIES = 4
_LOCK_SECONDS = 60.0  # another process may be writing


def sqlite_uri(folder: Path, configured: str) -> str:
    """Return the URI of a database that is named relative to ``folder`` (an absolute name wins over it).

    SQLAlchemy decodes ``%20`` in a path and ends it at ``?``, so these two are encoded in the folder;
    ``configured`` is a part of a URI already. MLflow would create the parent folder of a ``sqlite:///`` path
    without decoding it; naming the driver as well keeps it from that.
    """
    encoded = str(folder).replace("%", "%25").replace("?", "%3F")
    path = str(Path(encoded) / configured)
    return f"{_SQLITE_AS_IT_IS if '%' in path else SQLITE}{path}"


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a SQLite URI, or None for one in memory, one with SQLite's own options, and any other URI."""
    prefix = next((prefix for prefix in _SQLITE_PREFIXES if uri.startswith(prefix)), None)
    if prefix is None:
        return None
    path = unquote(uri.removeprefix(prefix).partition("?")[0])
    return None if path in ("", ":memory:") or path.startswith("file:") else Path(path)


def without_password(uri: str) -> str:
    """Return ``uri`` as it may be shown and logged."""
    return redacted(uri)


def require_server(uri: str, origin: str) -> None:
    """Check that an http(s) server answers; any other URI passes.

    Raises:
        TrackingError: if it does not within 5 seconds, or answers that it is out of order (5xx).
    """
    if not uri.lower().startswith(("http:", "https:")):
        return
    from mlflow.exceptions import MlflowException
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request  # with the proxies, certificates and logins of MLflow itself

    shown = without_password(uri)
    remedy = (
        f"Start the server (mlflow server --host ... --port ...), or correct {origin}; without the environment "
        f"variable the address in mlflow.yml holds, and sqlite:///mlflow.db there needs no server."
    )
    try:
        credentials = get_default_host_creds(uri)  # type: ignore[no-untyped-call]
        answer = http_request(  # type: ignore[no-untyped-call]
            credentials, "/health", "GET", max_retries=0, timeout=_PROBE_SECONDS, raise_on_status=False
        )
    except (MlflowException, OSError) as error:  # those of requests are OSErrors
        raise TrackingError(f"{shown}, from {origin}: no MLflow server answers. {remedy}") from error
    if answer.status_code >= 500:
        raise TrackingError(f"{shown}, from {origin}: the server is out of order, HTTP {answer.status_code}. {remedy}")


def require_writable(database: Path) -> None:
    """Check that a SQLite file is one, and can be written: a write that is taken back.

    Raises:
        TrackingError: if it cannot.
    """
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=_LOCK_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            connection.execute(f"PRAGMA user_version = {version}")  # opens the journal too, which needs the folder
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            connection.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        raise TrackingError(
            f"{database}: runs cannot be recorded in this database: {error}. {_remedy(error)}"
        ) from error


def _remedy(error: sqlite3.DatabaseError) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return "It is damaged: put a backup in its place, or move it away and a new one is made."
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "Another process holds it: end that, and run again."
    return "Make the file and its folder writable and see that the disk is not full, or name another in mlflow.yml."


def persistent(call: Callable[[], _T]) -> _T:
    """Call again what failed, a few times within a second.

    Two processes that write at once can both find that a row is missing and both insert it; one of them fails.
    """
    for attempt in range(1, _TRIES):
        try:
            return call()
        except Exception:  # each kind of store has its own
            time.sleep(0.05 * 2**attempt)
    return call()


def reason(error: Exception) -> str:
    """Return the beginning of an error, without a password."""
    return without_password((str(error).splitlines() or [type(error).__name__])[0])[:160]
