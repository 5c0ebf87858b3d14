"""The ledger of a store: what each part holds, how it was made, and one root digest over all.

A ledger is JSON without dates or hosts, so the same parts give the same ledger bytes. Its root digest is over the
content of the parts; its checksum is over all that it says, so that no number in it can be edited unseen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from everytoken.shards.atomic import write_text
from everytoken.shards.digests import value_digest
from everytoken.shards.errors import DamagedStore

LEDGER_FILE = "ledger.json"
"""Of stores and of artifacts."""

FORMAT = "everytoken-ledger/2"

_HEAD = 1 << 16
_PARTS = b'\n "parts": [\n'


def is_store(folder: Path) -> bool:
    """Return whether a folder with a ledger is a store of parts; the others are artifacts."""
    with (folder / LEDGER_FILE).open("rb") as file:
        return b'"everytoken-ledger/' in file.read(_HEAD)


def root_digest(parts: Iterable[tuple[str, str]]) -> str:
    """Return the digest over (name, content digest) of all parts in plan order."""
    return value_digest([list(part) for part in parts])


@dataclass(frozen=True)
class SetAsideRecord:
    """The file of the rows that were set aside while a part was made."""

    rows: int
    bytes: int
    sha256: str
    content_digest: str


@dataclass(frozen=True)
class PartRecord:
    """One part: content, and the fingerprint of the recipe that made it. ``sha256`` is empty for a value."""

    name: str
    rows: int
    bytes: int
    sha256: str
    content_digest: str
    fingerprint: str
    inputs: tuple[str, ...]
    statistics: Mapping[str, Any]
    value: Any = None
    set_aside: SetAsideRecord | None = None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PartRecord:
        """Return the record of a parsed JSON object."""
        aside = data["set_aside"]
        made = {"inputs": tuple(data["inputs"]), "set_aside": None if aside is None else SetAsideRecord(**aside)}
        return PartRecord(**{**data, **made})


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
        return value_digest([FORMAT, self.holds, self.recipe, [asdict(part) for part in self.parts]])

    def write(self, path: Path) -> None:
        """Write the ledger as JSON, atomically."""
        head = {
            "format": FORMAT,
            "holds": self.holds,
            "root_digest": self.root_digest,
            "checksum": self.checksum,
            "rows": self.rows,
            "bytes": self.bytes,
            "recipe": self.recipe,
        }
        lines = ",\n".join(json.dumps(asdict(part), ensure_ascii=False, sort_keys=True) for part in self.parts)
        text = json.dumps(head, ensure_ascii=False, indent=1, sort_keys=True)[:-2]
        write_text(path, f"{text},{_PARTS.decode()}{lines}\n]}}\n")

    @staticmethod
    def read_head(path: Path) -> dict[str, Any]:
        """Return what a ledger says before its parts: root_digest, rows, bytes, recipe; its checksum is not looked at.

        The ledger of 20,000 parts has megabytes; who asks for its sums needs none of them.

        Raises:
            DamagedStore: not a ledger.
        """
        head = b""
        try:
            with path.open("rb") as file:
                while _PARTS not in head and (block := file.read(_HEAD)):
                    head += block
            found: dict[str, Any] = json.loads(head.split(_PARTS)[0].rstrip().rstrip(b",") + b"}")
        except (OSError, ValueError) as error:
            raise DamagedStore(f"{path} is no ledger of parts ({error}); run the pipeline that makes it") from error
        return found

    @staticmethod
    def read(path: Path) -> Ledger:
        """Read a ledger and check its checksum and sums.

        Raises:
            DamagedStore: not a ledger, or not the one that was written.
        """
        remedy = "Run the pipeline that makes it again; parts whose content is right are kept."
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise DamagedStore(f"{path} has format {data['format']!r}, this version reads {FORMAT!r}. {remedy}")
            parts = tuple(PartRecord.from_json(part) for part in data["parts"])
            ledger = Ledger(data["holds"], data["recipe"], parts)
            said = [data[key] for key in ("checksum", "root_digest", "rows", "bytes")]
            summed = [ledger.checksum, ledger.root_digest, ledger.rows, ledger.bytes]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedStore(f"{path} is not a ledger ({type(error).__name__}: {error}). {remedy}") from error
        if summed != said:
            raise DamagedStore(f"{path}: its parts sum up to {summed}, it says {said}: it was edited. {remedy}")
        return ledger
