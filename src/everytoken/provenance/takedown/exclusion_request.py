"""Which documents a take-down is about: ids and addresses from files, found in the splits; or why they are in none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from everytoken.address import ADDRESS_COLUMNS, Address, Addressed
from everytoken.corpus import Entry, ExcludedAddress, ExcludedId, ExclusionParameters, read_list
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.exposure import Unused, unused_at, unused_with_id
from everytoken.provenance.indexes import DocumentIndex, DocumentPlace
from everytoken.provenance.lookup import DocumentRecords, Places
from everytoken.provenance.takedown.exclusion_lists import is_told, list_path, list_told
from everytoken.shards import LEDGER_FILE, Ledger

_EXCLUSIONS = "exclusions"


@dataclass(frozen=True)
class WantedId:
    """An id as a line of a file has it; ``id_type`` None: of whatever type the documents have."""

    id: str
    id_type: str | None

    def __str__(self) -> str:
        return f"id {self.id!r}"


@dataclass(frozen=True)
class WantedAddress:
    """An address, as a line of a file has it."""

    address: Address

    def __str__(self) -> str:
        return f"address {self.address}"


Wanted = WantedId | WantedAddress


@dataclass(frozen=True)
class ExcludedDocument(Addressed):
    """A document of a split that is to be excluded."""

    place: DocumentPlace
    id: str | None
    id_type: str | None

    def __str__(self) -> str:
        named = "no id" if self.id is None else repr(self.id)
        return f"{self.place.split} {self.place.number:,} ({self.address}, {named})"

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        place = {"split": self.place.split, "number": self.place.number}
        return {**place, "id": self.id, "id_type": self.id_type, **self.address._asdict()}


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Attributes:
        entries: new ones: of what was found, and with ``allow_missing`` of what was not.
        documents: those of a split that are not excluded yet; also those that the configuration names already.
        known: how many of what was asked for were on a list already.
        missing: what is in no split, each with what is known of it.
    """

    entries: tuple[Entry, ...]
    documents: tuple[ExcludedDocument, ...]
    known: int
    missing: tuple[tuple[Wanted, tuple[Unused, ...]], ...]


def read_wanted(ids: Path | None, addresses: Path | None, id_type: str | None) -> list[Wanted]:
    """Read what is to be excluded.

    Args:
        ids: a file of ids, one a line, exact (no space is taken off).
        addresses: a file of addresses, one a line: SOURCE/FILE/ROW, or with tabs between these.
        id_type: JSON type of the ids; None: of whatever type the documents have.

    Raises:
        ProvenanceError: a line is no address, a file is not UTF-8, or there is nothing in them.
    """
    wanted: list[Wanted] = [WantedId(line, id_type) for _, line in _lines(ids)]
    for number, line in _lines(addresses):
        if (address := Address.parse(line)) is None:
            raise ProvenanceError(
                f"{addresses} line {number} is {line!r}; expected an address, SOURCE/FILE/ROW as web/0/17, or with "
                "tabs between the three"
            )
        wanted.append(WantedAddress(address))
    if not wanted:
        raise ProvenanceError(f"{ids or addresses} names no document: give an id or an address a line")
    return list(dict.fromkeys(wanted))


def _lines(path: Path | None) -> list[tuple[int, str]]:
    if path is None:
        return []
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ProvenanceError(f"{path} cannot be read as UTF-8 text ({error})") from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]  # of no other sign: an id may hold it
    return [(number, line) for number, line in enumerate(lines, start=1) if line]


@dataclass(frozen=True)
class InForce:
    """The lists that nothing may fall out of.

    Attributes:
        applied: entries that the data was made with.
        pending: entries that it was not made with yet: of the configuration, and of a take-down that was stopped.
    """

    applied: tuple[Entry, ...]
    pending: tuple[Entry, ...]


def list_in_force(places: Places, configured: ExclusionParameters | None, lists: Path) -> InForce:
    """Return the entries that the data was made with, and those of the configuration.

    Args:
        configured: the list of its parameters; None: they have none.
        lists: folder of the lists that were written (`list_path`).

    Raises:
        ExclusionError: the list of the parameters is not there, or is another one.
    """
    pending = () if configured is None else tuple(read_list(Path(configured.path), configured.sha256))
    made_with, addresses = None, []
    if places.has(_EXCLUSIONS):
        ledger = Ledger.read(places.path(_EXCLUSIONS) / LEDGER_FILE)
        made_with = ledger.recipe["parameters"].get("sha256")
        addresses = [ExcludedAddress(*one[:4]) for part in ledger.parts for one in part.value["addresses"]]
    if is_told(lists):
        told = list_told(lists)
        entries = () if told is None else tuple(read_list(Path(told.path), told.sha256))
        if told is not None and told.sha256 != made_with:
            return InForce((), (*entries, *pending))
        known = {entry.key for entry in entries}
        return InForce(entries, tuple(entry for entry in pending if entry.key not in known))
    if configured is not None and configured.sha256.lower() == made_with:
        return InForce(pending, ())
    if made_with is not None and (path := list_path(lists, made_with)).is_file():
        return InForce(tuple(read_list(path, made_with)), pending)
    return InForce(tuple(addresses), pending)  # the list itself is gone: what it named is still known by address


@dataclass(frozen=True)
class Revocation:
    """What is taken back.

    Attributes:
        documents: those of the streams that come back, as no entry that stays names them. (Held-out ones are in no
            split as long as they are excluded.)
    """

    kept: tuple[Entry, ...]
    revoked: tuple[Entry, ...]
    documents: tuple[ExcludedDocument, ...]


def find_revoked(
    wanted: Sequence[Wanted] | None,
    index: DocumentIndex,
    in_force: InForce,
    configured: Sequence[Entry],
    *,
    is_done: bool = False,
) -> Revocation:
    """Find which entries are taken back, and which documents with them.

    Args:
        wanted: ids and addresses of entries; None: all entries.
        configured: entries of the configuration, which would take the documents down again.
        is_done: whether a run was stopped after it took them off the list: then they may be on none.

    Raises:
        ProvenanceError: no entry names what is wanted, or the configuration names it.
    """
    entries = {entry.key: entry for entry in (*in_force.applied, *in_force.pending)}
    revoked: dict[str, Entry] = dict(entries) if wanted is None else {}
    for one in wanted or ():
        found = {key: entry for key, entry in entries.items() if _names(one, entry)}
        if not found and not is_done:
            raise ProvenanceError(
                f"{one} is on no list in force: nothing was changed. A document comes back by the id or the address "
                "that its entry has"
            )
        revoked |= found
    for entry in configured:
        if entry.key in revoked:
            raise ProvenanceError(
                f"{entry} is on the list that the configuration names (subsampling.exclude), which would take it down "
                "again: nothing was changed. Take subsampling.exclude out of conf and of --params; the list in force "
                "stays in force without it"
            )
    kept = {key: entry for key, entry in entries.items() if key not in revoked}
    documents = {one.place: one for entry in revoked.values() for one in _documents(index, _wanted(entry))}
    back = [one for one in documents.values() if kept.keys().isdisjoint(_keys_of(one))]
    ordered = sorted(back, key=lambda document: (document.place.split, document.place.number))
    return Revocation(tuple(kept.values()), tuple(revoked.values()), tuple(ordered))


def _names(wanted: Wanted, entry: Entry) -> bool:
    if isinstance(wanted, WantedId):
        return isinstance(entry, ExcludedId) and entry.id == wanted.id and wanted.id_type in (None, entry.id_type)
    return isinstance(entry, ExcludedAddress) and _wanted(entry) == wanted


def _keys_of(document: ExcludedDocument) -> set[str]:
    address = ExcludedAddress(*document.address, "").key
    return {address} if document.id is None else {address, ExcludedId(document.id, str(document.id_type), "").key}


def find_documents(
    wanted: Sequence[Wanted],
    index: DocumentIndex,
    records: DocumentRecords,
    in_force: InForce,
    reason: str,
    allow_missing: bool,
) -> Request:
    """Find what is to be excluded.

    Args:
        records: of the environment: says why a document is in no split, and which are excluded already.
        in_force: what it names need not be in a split any more.
        allow_missing: whether what is in no split goes on the list too.

    Raises:
        ProvenanceError: an id belongs to documents whose ids have several JSON types.
    """
    known = {entry.key for entry in (*in_force.applied, *in_force.pending)}
    known_ids = {entry.id for entry in (*in_force.applied, *in_force.pending) if isinstance(entry, ExcludedId)}
    entries: dict[str, Entry] = {}
    found: list[ExcludedDocument] = []
    missing: list[tuple[Wanted, tuple[Unused, ...]]] = []
    known_already = 0
    for one in wanted:
        here = _documents(index, one)
        entry = _entry(one, here, reason)
        if entry.key in known or (isinstance(one, WantedId) and one.id_type is None and one.id in known_ids):
            known_already += 1
            continue
        unused = () if here else tuple(_unused(records, one))
        if not here:
            missing.append((one, unused))
        if here or allow_missing:
            entries[entry.key] = entry
            found += here
    for pending in in_force.pending:
        found += _documents(index, _wanted(pending))
    new = {one.place: one for one in found if one.address not in records.excluded}
    ordered = sorted(new.values(), key=lambda document: (document.place.split, document.place.number))
    return Request(tuple(entries.values()), tuple(ordered), known_already, tuple(missing))


def _wanted(entry: Entry) -> Wanted:
    if isinstance(entry, ExcludedId):
        return WantedId(entry.id, entry.id_type)
    return WantedAddress(entry.address)


def _documents(index: DocumentIndex, wanted: Wanted) -> list[ExcludedDocument]:
    if isinstance(wanted, WantedId):
        places = index.find_id(wanted.id, wanted.id_type)
    else:
        places = index.find_address(wanted.address)
    columns = ("id", "id_type", *ADDRESS_COLUMNS)
    return [ExcludedDocument(place=place, **index.record(place.split, place.number, columns)) for place in places]


def _entry(wanted: Wanted, found: Sequence[ExcludedDocument], reason: str) -> Entry:
    if isinstance(wanted, WantedAddress):
        return ExcludedAddress(*wanted.address, reason)
    types = sorted({str(document.id_type) for document in found})
    if len(types) > 1:
        raise ProvenanceError(
            f"the id {wanted.id!r} belongs to documents whose ids are of the JSON types {types}: {found[0]}, and "
            "others. Say which is meant (--id-type), or give addresses (--addresses)"
        )
    return ExcludedId(wanted.id, wanted.id_type or (types[0] if types else "string"), reason)


def _unused(records: DocumentRecords, wanted: Wanted) -> Iterable[Unused]:
    if isinstance(wanted, WantedAddress):
        return [unused_at(records, wanted.address)]
    return unused_with_id(records, wanted.id, set())
