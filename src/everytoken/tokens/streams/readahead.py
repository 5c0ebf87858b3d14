"""Generators, one after the other, computed ahead in threads: reading parquet and ordering rows leave the GIL."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

_T = TypeVar("_T")


def read_ahead(generators: Iterable[Generator[_T, None, Any]], ahead: int) -> Generator[_T, None, None]:
    """Yield all of the first generator, then all of the second, and so on.

    ``ahead`` of them are under way at a time, each in a thread until its next item is there, and not further: so many
    items are held, and what the generators hold themselves. All are closed when this one ends, is closed or fails; an
    error comes out in the place of the item that it prevented.
    """
    remaining = iter(generators)
    running: deque[tuple[Generator[_T, None, Any], Future[_T | None]]] = deque()

    with ThreadPoolExecutor(ahead, "read-ahead") as pool:

        def start() -> None:
            if (generator := next(remaining, None)) is not None:
                running.append((generator, pool.submit(next, generator, None)))

        try:
            for _ in range(ahead):
                start()
            while running:
                generator, future = running[0]
                if (item := future.result()) is None:
                    running.popleft()
                    start()
                    continue
                running[0] = generator, pool.submit(next, generator, None)
                yield item
        finally:
            wait([future for _, future in running])
            for generator, _ in running:
                generator.close()
