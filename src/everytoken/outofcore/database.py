"""DuckDB for joins that are larger than memory: bounded, on disk where it must be, without extensions or network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def open_database(
    spill: Path, memory: int, *, file: Path | None = None, threads: int | None = None
) -> DuckDBPyConnection:
    """Open a DuckDB; a context manager that closes it.

    Args:
        spill: folder for what does not fit into the memory.
        memory: bytes that it may take.
        file: that holds the tables; None: memory does.
        threads: how many; None: as many as the machine has.

    Raises:
        duckdb.Error: it cannot be opened; so do its methods, and `duckdb.OutOfMemoryException`.
    """
    import duckdb  # loaded where it is needed

    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory}B",
        "temp_directory": str(spill),
        "preserve_insertion_order": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        **({} if threads is None else {"threads": str(threads)}),
    }
    connection = duckdb.connect(":memory:" if file is None else str(file), config=config)
    connection.execute("SET enable_progress_bar = false")
    return connection
