"""The ledger of a store: what each part holds, how it was made, and one root digest over all.

A ledger is JSON without dates or hosts, so the same parts give the same ledger bytes. Its root digest is over the
content of the parts; its checksum is over all that it says, so that no number in it can be edited unseen. Whoever reads
a ledger computes both again, and the sums: none of them is believed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import orjson

from everytoken.shards.atomic import write_text
from everytoken.shards.digests import value_digest
from everytoken.shards.errors import DamagedStore
from everytoken.shards.former_paths import as_described_today
from everytoken.shards.recipe import fingerprint_today

LEDGER_FILE = "ledger.json"
"""Of stores and of artifacts."""

LEDGER_FORMAT = "everytoken-ledger/2"

_HEAD = 1 << 16
_PARTS = '\n "parts": [\n'
_NAME = re.compile(r"part_\d{5,}")
_REMEDY = "Run the pipeline that makes it again; parts whose content is right are kept."


Record = TypeVar("Record", bound=Mapping[str, object])


def statistics_as(statistics: Mapping[str, Any], kind: type[Record], where: object) -> Record:
    """Return the statistics of a part or an artifact as the record that their writer declares.

    Args:
        kind: a ``TypedDict``.
        where: of the ledger, for messages.

    Raises:
        DamagedStore: they lack a key that such a record always has, so another function wrote them.
    """
    if missing := sorted(_always_there(kind) - statistics.keys()):
        raise DamagedStore(
            f"{where}: its statistics are no {kind.__name__}: they lack {missing}. Another function or version wrote "
            f"them. {_REMEDY}"
        )
    return cast(Record, dict(statistics))


def _always_there(kind: type[Mapping[str, object]]) -> set[str]:
    """Return the required keys of a ``TypedDict``; Python sees no ``NotRequired`` in an annotation that is text."""
    required: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined]
    texts = {key: getattr(kind.__annotations__[key], "__forward_arg__", "") for key in required}
    return {key for key, text in texts.items() if not text.startswith("NotRequired[")}


def ledger_state(folder: Path) -> object:
    """Return what differs when the ledger of a folder was written again; None: there is none."""
    try:
        found = (folder / LEDGER_FILE).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def is_store(folder: Path) -> bool:
    """Return whether a folder with a ledger is a store of parts; the others are artifacts."""
    with (folder / LEDGER_FILE).open("rb") as file:
        return holds_parts(file.read(_HEAD))


def holds_parts(head: bytes) -> bool:
    """Return whether a ledger that begins so is that of a store of parts."""
    return b'"everytoken-ledger/' in head[:_HEAD]


def root_digest(parts: Iterable[tuple[str, str]]) -> str:
    """Return the digest over (name, content digest) of all parts in plan order."""
    return value_digest([list(part) for part in parts])


@dataclass(frozen=True)
class FileRecord:
    """A parquet file of a part: its own, what was set aside while it was made, or that of the part that it extends.

    The SHA-256 is of the file, the content digest of its rows.
    """

    rows: int
    bytes: int
    sha256: str
    content_digest: str


def stub_of(path: Path) -> Path:
    """Return where the stub of a file is: a small one in the place of a large one that is kept elsewhere.

    ``tokens.bin.blocks`` takes the place of ``tokens.bin``. Its first line is JSON and has the bytes of the whole file;
    the rest is the matter of `everytoken.shards.remote.blocks`. What opens ``tokens.bin`` itself finds no such file,
    and never reads zeros where nothing was fetched.
    """
    return path.with_name(f"{path.name}.blocks")


def is_here(path: Path) -> bool:
    """Return whether there is a file, or its stub."""
    return path.is_file() or stub_of(path).is_file()


def files_here(folder: Path, pattern: str) -> list[Path]:
    """Return the paths of a pattern in a folder, in order: of what is there, and of files whose stubs are there."""
    stubs = [path.with_suffix("") for path in folder.glob(stub_of(Path(pattern)).name)]
    return sorted({*folder.glob(pattern), *stubs})


def size_here(path: Path) -> int | None:
    """Return the bytes of a file, or of the one whose stub is there; None: there is neither."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        pass
    try:
        with stub_of(path).open("rb") as file:
            return int(json.loads(file.readline())["bytes"])
    except (FileNotFoundError, NotADirectoryError):
        return None


class HeldFile(Protocol):
    """A file that is kept elsewhere, with a copy here while it is needed."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def place(self) -> Path:
        """Where its copy is, when it is there."""

    @property
    def shown(self) -> str:
        """Where it is kept, for messages."""

    def at_hand(self) -> AbstractContextManager[Path]:
        """Give the path of its copy, which stays while the block runs."""

    def verify(self) -> None:
        """Check that its copy is what was written; DamagedStore where it is not."""


@dataclass(frozen=True)
class PartRecord:
    """One part: content, and the fingerprint of the recipe that made it. ``sha256`` is empty for a value.

    Of a part that extends another, bytes and SHA-256 are of its own file, and the content digest is of all its columns:
    the same as if it held them.
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    content_digest: str
    fingerprint: str
    inputs: tuple[str, ...]
    statistics: Mapping[str, Any]
    value: Any = None
    set_aside: FileRecord | None = None
    extended: FileRecord | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON; ``extended`` is there only where the part extends another."""
        told = {**vars(self), "set_aside": None if self.set_aside is None else vars(self.set_aside)}
        del told["extended"]
        return told if self.extended is None else {**told, "extended": vars(self.extended)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PartRecord:
        """Return the record of a parsed JSON object."""
        files = {name: FileRecord(**data[name]) for name in ("set_aside", "extended") if data.get(name) is not None}
        return PartRecord(**{**data, "inputs": tuple(data["inputs"]), **files})


_RECORD, _FILE = ({field.name for field in fields(kind)} for kind in (PartRecord, FileRecord))


@dataclass(frozen=True)
class Ledger:
    """All parts of a complete store, in plan order. ``holds`` is ``rows`` or ``values``."""

    holds: str
    recipe: Mapping[str, Any]
    parts: tuple[PartRecord, ...]

    @property
    def root_digest(self) -> str:
        """Digest over the names and content digests of all parts."""
        return root_digest((part.name, part.content_digest) for part in self.parts)

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        """Bytes of all part files."""
        return sum(part.bytes for part in self.parts)

    @property
    def checksum(self) -> str:
        """Digest over everything that the ledger says."""
        return value_digest([LEDGER_FORMAT, self.holds, self.recipe, [part.to_json() for part in self.parts]])

    def write(self, path: Path) -> None:
        """Write the ledger as JSON, atomically."""
        head = {
            "format": LEDGER_FORMAT,
            "holds": self.holds,
            "root_digest": self.root_digest,
            "checksum": self.checksum,
            "rows": self.rows,
            "bytes": self.bytes,
            "recipe": self.recipe,
        }
        lines = ",\n".join(json.dumps(part.to_json(), ensure_ascii=False, sort_keys=True) for part in self.parts)
        text = json.dumps(head, ensure_ascii=False, indent=1, sort_keys=True)[:-2]
        write_text(path, f"{text},{_PARTS}{lines}\n]}}\n")

    @staticmethod
    def read(path: Path) -> Ledger:
        """Read a ledger; see `read_ledger` for what is checked.

        Raises:
            DamagedStore: not a ledger, or not the one that was written.
            FileNotFoundError: there is none.
        """
        return ledger_of(path.read_bytes(), path)


def ledger_of(content: bytes, where: object) -> Ledger:
    """Return the ledger of these bytes; see `read_ledger`.

    Raises:
        DamagedStore: not a ledger, or not the one that was written.
    """
    data = _parsed(content, where)
    return Ledger(data["holds"], data["recipe"], tuple(PartRecord.from_json(part) for part in data["parts"]))


def read_ledger(path: Path) -> dict[str, Any]:
    """Return the JSON of a ledger, without a record for each part.

    What follows from the records is computed again: checksum, root digest, rows, bytes, and the digests of values.
    That takes 0.4 s for 20,000 parts.

    Raises:
        DamagedStore: not a ledger, or not the one that was written.
        FileNotFoundError: there is none.
    """
    return _parsed(path.read_bytes(), path)


def _parsed(content: bytes, path: object) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(content)
        if data["format"] != LEDGER_FORMAT:
            raise DamagedStore(f"{path} has format {data['format']!r}, this version reads {LEDGER_FORMAT!r}. {_REMEDY}")
        parts = data["parts"]
        said = [data[key] for key in ("checksum", "root_digest", "rows", "bytes")]
        root = root_digest((part["name"], part["content_digest"]) for part in parts)
        sums = [root, *(sum(part[key] for part in parts) for key in ("rows", "bytes"))]
        summed = [_checksum([LEDGER_FORMAT, data["holds"], data["recipe"], parts], data["checksum"]), *sums]
        if summed != said:
            raise DamagedStore(f"{path}: its parts sum up to {summed}, it says {said}: it was edited. {_REMEDY}")
        for part in parts:
            _check_record(part)
        recipe = as_described_today(data["recipe"])
        if recipe["parameters"] != data["recipe"]["parameters"]:
            for part in parts:
                part["fingerprint"] = fingerprint_today(part["fingerprint"], data["recipe"], part["inputs"])
        return {**data, "recipe": recipe}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedStore(f"{path} is not a ledger ({type(error).__name__}: {error}). {_REMEDY}") from error


def _check_record(part: dict[str, Any]) -> None:
    if set(part) | {"extended"} != _RECORD or not _NAME.fullmatch(part["name"]):
        raise ValueError(f"a part has the name {part.get('name')!r} and the keys {sorted(part)}")
    if not part["sha256"] and value_digest(part["value"]) != part["content_digest"]:
        raise ValueError(f"the value of {part['name']} has another digest than its record")
    for kind in ("set_aside", "extended"):
        if (file := part.get(kind)) is not None and set(file) != _FILE:
            raise ValueError(f"{kind} of {part['name']} has the keys {sorted(file)}")
    if (extended := part.get("extended")) is not None and extended["rows"] < part["rows"]:
        raise ValueError(f"{part['name']} has {part['rows']} rows, the part that it extends {extended['rows']}")
    if (aside := part["set_aside"]) is None:
        return
    if (rows := part["statistics"]["rows_in"]) != part["rows"] + aside["rows"]:
        raise ValueError(f"{part['name']}: rows_in is {rows}, the part and what was set aside have other rows")


def _checksum(content: list[Any], said: str) -> str:
    """Return the digest of ``content``.

    orjson writes it in a fifth of the time, and in the same form but for floats with exponents. Where its text has the
    digest that is ``said``, it is the text that was digested.
    """
    try:
        if hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest() == said:
            return said
    except TypeError:  # integers of more than 64 bits, halves of surrogate pairs
        pass
    return value_digest(content)
