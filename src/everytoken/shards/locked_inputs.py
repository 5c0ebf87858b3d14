"""Inputs stay what they were recorded as, while something is made from them.
 An output is recorded as made from the digests of its inputs. That is only true when the inputs have that content at
the moment they are read, so they are locked against writers and verified by SHA-256 first, whatever was checked
before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from everytoken.shards.atomic import lock_folder, readers
from everytoken.shards.engines import in_threads
from everytoken.shards.recipe import by_field


def stored_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the stored parts and made artifacts in parameters or inputs, also inside lists, mappings and chains of
    maps.
    """
    for value in values:
        if _is_stored_part(value) or (hasattr(value, "verify") and getattr(value, "is_made", False)):
            yield value
        elif hasattr(value, "inputs") and hasattr(value, "recipe"):  # a planned part
            yield from stored_in(value.inputs)
            yield from stored_in(value.recipe.parameters.values())
        elif hasattr(value, "parts"):
            yield from stored_in(value.parts)
        elif fields := by_field(value):
            yield from stored_in(fields.values())
        elif isinstance(value, Mapping):
            yield from stored_in(value.values())
        elif isinstance(value, list | tuple):
            yield from stored_in(value)


@contextmanager
def unchanging(values: Iterable[Any]) -> Iterator[None]:
    """Lock and verify all stored data in ``values`` (artifacts, shards, parameters that hold them) while the block
    runs.

    Raises:
        StoreBusy: another process writes one of them.
        DamagedStore: one is not what its ledger says.
    """
    stored = list(stored_in(values))
    with reading(stored):
        for _ in in_threads(lambda data: data.verify(), stored):
            pass
        yield


@contextmanager
def reading(stored: Iterable[Any]) -> Iterator[None]:
    """Lock stored parts and artifacts against writers while the block runs; whoever reads them verifies them.

    Files that are kept elsewhere are never written again: their names have their digests.
    """
    with readers(_lock_of(data) for data in stored if getattr(data, "held", None) is None):
        yield


def _lock_of(data: Any) -> Path:
    return data.path.parent if _is_stored_part(data) else lock_folder(data.folder.resolve())


def _is_stored_part(value: Any) -> bool:
    # told by what it has: its module loads pyarrow, which those need not wait for who have artifacts alone
    return hasattr(value, "verify") and hasattr(value, "sha256")
