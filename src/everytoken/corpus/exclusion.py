"""Which documents are taken down: a list names them by id or by address, and every part is searched for them.

The list is a file of JSON lines, each ``{"id", "id_type", "reason"}`` (every document with this id) or ``{"source",
"shard_index", "row", "reason"}`` (the document at this address). It is pinned by its SHA-256.

What is found in a part of the scored documents is its *exclusions*: ``{"addresses": [[source, shard_index, row,
reason], ...]}`` in row order, mostly none. What is made from that part takes these values, not the list: so a longer
list makes again what holds a document that it names, and nothing else. Where the texts are not (a replay), an entry has
a fifth member, the document's ``token_length``.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from everytoken.address import ADDRESS_COLUMNS, Address, Addressed, address_at, address_rows
from everytoken.corpus.errors import ExclusionError
from everytoken.shards import Part, canonical_json, versioned, write_text

DEFAULT_REASON = "excluded"

_SEARCHED_ROWS = 1 << 18  # rows whose keys are held at a time
_ID_KEYS = {"id", "id_type", "reason"}
_ADDRESS_KEYS = {*ADDRESS_COLUMNS, "reason"}


class ExclusionParameters(BaseModel):
    """The list of documents that are taken down.

    ``path``: of the file. ``sha256``: of its content: another list is another corpus.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]


@dataclass(frozen=True, order=True)
class ExcludedId:
    """Every document with this id; ``id_type`` is the JSON type of the id, so that 1 and "1" stay two."""

    id: str
    id_type: str
    reason: str

    @property
    def key(self) -> str:
        """What the entry names."""
        return f"{self.id_type}\0{self.id}"

    def __str__(self) -> str:
        return f"id {self.id!r}"


@dataclass(frozen=True, order=True)
class ExcludedAddress(Addressed):
    """The document at this address."""

    reason: str

    @property
    def key(self) -> str:
        """What the entry names."""
        return f"{self.source}\0{self.shard_index}\0{self.row}"

    def __str__(self) -> str:
        return str(self.address)


Entry = ExcludedId | ExcludedAddress


class Exclusions(TypedDict):
    """The documents of a part that are taken down, see the module docstring."""

    addresses: list[list[str | int]]


@versioned("find_excluded", 1, unrecorded=["path"])
def find_excluded(part: Part, *, path: str | None, sha256: str | None) -> Exclusions:
    """Return the exclusions of one part of the scored documents.

    Args:
        path: of the list; None: there is none, and nothing is read.

    Raises:
        ExclusionError: the list is not there, is another one, or has a line that is no entry.
    """
    if path is None or sha256 is None:
        return Exclusions(addresses=[])
    ids, addresses = _keys(path, sha256.lower())
    found: list[list[str | int]] = []
    for table in _key_columns(part):
        by_id, by_address = _listed(table, ids, addresses)
        for row in np.flatnonzero((by_id >= 0) | (by_address >= 0)).tolist():
            entry = addresses[1][by_address[row]] if by_address[row] >= 0 else ids[1][by_id[row]]
            found.append([*address_at(table, row), entry])
    return Exclusions(addresses=found)


def excluded_addresses(exclusions: Part | None) -> dict[Address, int | None]:
    """Return the addresses in the exclusions of a part, each with its ``token_length`` where the entry has one."""
    if exclusions is None:
        return {}
    found = exclusions.value["addresses"]
    return {Address(*entry[:3]): entry[4] if len(entry) > 4 else None for entry in found}


def excluded_rows(batch: pa.RecordBatch, addresses: Mapping[Address, Any]) -> npt.NDArray[np.bool_]:
    """Return which rows of a batch with ``source``, ``shard_index`` and ``row`` are excluded, bool (rows,)."""
    if not addresses:
        return np.zeros(batch.num_rows, np.bool_)
    return np.fromiter((address in addresses for address in address_rows(batch)), np.bool_, batch.num_rows)


def list_text(entries: Iterable[Entry]) -> tuple[str, str]:
    """Return a list in its one form, an entry a line, sorted, nothing named twice; and its SHA-256."""
    by_key = {entry.key: entry for entry in sorted(entries, key=_order, reverse=True)}
    text = "".join(f"{canonical_json(asdict(entry))}\n" for entry in sorted(by_key.values(), key=_order))
    return text, hashlib.sha256(text.encode()).hexdigest()


def write_list(entries: Iterable[Entry], path: Path) -> str:
    """Write a list in its one form; return its SHA-256."""
    text, sha256 = list_text(entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return sha256


def read_list(path: Path, sha256: str | None = None) -> Iterator[Entry]:
    """Read a list, entry by entry.

    Args:
        sha256: which it must have; None: any.

    Raises:
        ExclusionError: it is not there, is another one, or has a line that is no entry.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ExclusionError(
            f"there is no list of excluded documents {path} that can be read ({error}); bring the file that "
            "`everytoken exclude` wrote back to its place, or give the path where it is now (subsampling.exclude.path)"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256.lower():
        raise ExclusionError(
            f"{path} has SHA-256 {found}, expected {sha256.lower()}: it is another list, and would be another corpus. "
            "Bring the list that was meant, or pin this one (subsampling.exclude.sha256)"
        )
    for number, line in enumerate(BytesIO(content), start=1):
        if line.strip():
            yield _entry(path, number, line)


def _entry(path: Path, number: int, line: bytes) -> Entry:
    try:
        record = orjson.loads(line)
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__}")
        if set(record) == _ID_KEYS and all(isinstance(value, str) for value in record.values()):
            return ExcludedId(**record)
        if set(record) == _ADDRESS_KEYS and isinstance(record["reason"], str) and _is_address(Address.of(record)):
            return ExcludedAddress(**record)
        raise ValueError(f"an object with {sorted(record)}")
    except ValueError as error:  # also of a line that is no JSON
        raise ExclusionError(
            f"{path} line {number} is no entry of a list of excluded documents ({error}); expected an object with the "
            f"texts {sorted(_ID_KEYS)}, or with {sorted(_ADDRESS_KEYS)}"
        ) from error


def _is_address(address: Address) -> bool:
    is_number = all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in address[1:])
    return is_number and isinstance(address.source, str)


def _order(entry: Entry) -> tuple[Any, ...]:
    return (isinstance(entry, ExcludedAddress), *asdict(entry).values())


_Keys = tuple[pa.Array, Sequence[str]]


@lru_cache(maxsize=2)
def _keys(path: str, sha256: str) -> tuple[_Keys, _Keys]:
    """Return keys and reasons of the ids and of the addresses of a list. A process reads it once and holds it: of ids
    of 30 bytes 170 bytes an entry, 290 while it is read.
    """
    ids: dict[str, str] = {}
    addresses: dict[str, str] = {}
    for entry in read_list(Path(path), sha256):
        of_kind = ids if isinstance(entry, ExcludedId) else addresses
        of_kind.setdefault(entry.key, sys.intern(entry.reason))
    return _of_kind(ids), _of_kind(addresses)


def _of_kind(reasons: Mapping[str, str]) -> _Keys:
    return pa.array(reasons, pa.large_string()), list(reasons.values())


def _key_columns(part: Part) -> Iterator[pa.Table]:
    """Yield ids and addresses of a part in tables of a bounded number of rows."""
    held: list[pa.RecordBatch] = []
    for batch in part.batches(["id", "id_type", *ADDRESS_COLUMNS]):
        held.append(batch)
        if sum(one.num_rows for one in held) >= _SEARCHED_ROWS:
            yield pa.Table.from_batches(held).combine_chunks()
            held = []
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _listed(table: pa.Table, ids: _Keys, addresses: _Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return for each row the number of its id and of its address in the list, -1 where it has none."""
    texts = {name: table[name].cast(pa.large_string()) for name in ("id_type", "id", *ADDRESS_COLUMNS)}
    return _places(texts, ("id_type", "id"), ids), _places(texts, ADDRESS_COLUMNS, addresses)


def _places(texts: Mapping[str, Any], names: Sequence[str], keys: _Keys) -> npt.NDArray[np.int64]:
    if not len(keys[0]):
        return np.full(len(texts[names[0]]), -1)
    import pyarrow.compute as pc  # it costs 0.07 s, and `everytoken trace` needs none of it

    separator = pa.scalar("\0", pa.large_string())
    joined = pc.binary_join_element_wise(*(texts[name] for name in names), separator)  # null where a member is
    found = pc.fill_null(pc.index_in(joined, keys[0], skip_nulls=True), -1)
    return np.asarray(found.to_numpy().astype(np.int64))
