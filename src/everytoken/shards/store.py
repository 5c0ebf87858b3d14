"""The shard store: runs a lazy map part by part into a folder, in parallel, atomically, and makes only what is missing.

A folder of parts::

    part_00000.parquet ...             one file a part (none where parts are values)
    part_00000.set_aside.parquet ...   what was set aside while that part was made, where anything was
    part_00000.extended.parquet ...    a link to the part that it extends, where it extends one
    ledger.json                        written last; there only when every part is
    .making/                           while parts are being made: one record a part, the old ledger, errors
 A part is kept when a record of it, in the ledger or in ``.making``, has the wanted fingerprint *and* the file still
has the SHA-256 of that record. Everything else is made. So a crash at any moment, a lost or damaged file, a changed
parameter, function version or input part each redo exactly what they touch. The ledger is moved into ``.making``
before the first part changes: there is no moment at which a complete ledger lies next to other parts.
 A part that extends another is as whole as any. The file of the other is linked, or copied where there can be no
link. So the part stays readable when the other store is made again or removed. A link that is lost or damaged is made
again from the input, and the part is kept.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from everytoken.progress import progress, tick, working
from everytoken.redaction import redacted
from everytoken.shards.atomic import remove_temporaries, sole_writer, write_text
from everytoken.shards.digests import file_sha256, plain_json, value_digest
from everytoken.shards.engines import Engine, in_threads
from everytoken.shards.errors import DamagedStore, Failure, IncompleteStore, PartsFailed, ShardsError
from everytoken.shards.ledger import LEDGER_FILE, FileRecord, HeldFile, Ledger, PartRecord, ledger_state
from everytoken.shards.locked_inputs import reading, stored_in, unchanging
from everytoken.shards.part_progress import PartCounts, counting
from everytoken.shards.parts import Rows, StoredPart, Unchanged, ValuePart, extended_path
from everytoken.shards.recipe import Recipe
from everytoken.shards.shards import PlannedPart, Shards
from everytoken.shards.writing import link_part, link_stored, set_aside_path, write_rows

logger = logging.getLogger(__name__)

_MAKING = ".making"
_COUNTS = "counts"  # in it: how far each part is


class Elsewhere(Protocol):
    """Where a store keeps the files of its parts, if not in its folder."""

    def has(self, name: str, record: PartRecord | FileRecord) -> bool:
        """Return whether a file is there."""

    def file(self, name: str, record: PartRecord | FileRecord) -> HeldFile:
        """Return a file that is there."""

    @property
    def take(self) -> Callable[[Path, str, str], None]:
        """What brings a local file there, by path, name and SHA-256, and removes the local one."""


@dataclass(frozen=True)
class _Task:
    name: str
    index: int
    inputs: tuple[Any, ...]
    number: int  # among those that are made


@dataclass(frozen=True)
class _MakePart:
    """Makes one part and its record: what a worker runs."""

    root: Path
    recipe: Recipe
    holds: str
    take: Callable[[Path, str, str], None] | None = None

    def __call__(self, task: _Task) -> PartRecord:
        with counting(self.root / _MAKING / _COUNTS, task.number, reads=self.holds == "values"):
            return self._record(task)

    def _record(self, task: _Task) -> PartRecord:
        part = PlannedPart(task.name, task.index, self.recipe, task.inputs)
        for stored in stored_in(task.inputs):
            stored.verify()
        made = part.make()
        inputs = tuple(source.digest for source in task.inputs)
        if self.holds == "values":
            value = plain_json(made, f"the value of {task.name}")
            record = PartRecord(task.name, 1, 0, "", value_digest(value), part.digest, inputs, {}, value)
        else:
            path = _part_path(self.root, task.name)
            if isinstance(made, Rows):
                written = write_rows(made, path)
            elif isinstance(made, Unchanged):
                written = link_part(made, path)
            else:
                raise ShardsError(f"{self.recipe.place} returned a {type(made).__name__}, not Rows")
            record = PartRecord(
                name=task.name,
                **asdict(written.part),
                fingerprint=part.digest,
                inputs=inputs,
                statistics=written.statistics,
                set_aside=written.set_aside,
                extended=written.extended,
            )
            for path, file in _files(self.root, record) if self.take is not None else ():
                self.take(path, path.name, file.sha256)  # type: ignore[misc]
        write_text(self.root / _MAKING / f"{task.name}.json", json.dumps(record.to_json(), ensure_ascii=False))
        return record


def _rows_of(inputs: tuple[Any, ...]) -> int:
    """Return the rows of the longest part among inputs; 0 where there is none."""
    return max((part.rows for part in inputs if isinstance(part, StoredPart)), default=0)


def _part_path(root: Path, name: str) -> Path:
    return root / f"{name}.parquet"


def _files(root: Path, record: PartRecord) -> Iterator[tuple[Path, PartRecord | FileRecord]]:
    """Yield each file of a part, and what its record says of it."""
    path = _part_path(root, record.name)
    yield path, record
    for file, path_of in ((record.set_aside, set_aside_path), (record.extended, extended_path)):
        if file is not None:
            yield path_of(path), file


def _stored(root: Path, index: int, record: PartRecord, elsewhere: Elsewhere | None) -> Iterator[StoredPart]:
    """Yield a part, and then the rows that were set aside while it was made, if any were."""
    path = _part_path(root, record.name)

    def stored(path: Path, file: PartRecord | FileRecord, extended: StoredPart | None = None) -> StoredPart:
        held = None if elsewhere is None else elsewhere.file(path.name, file)
        place = path if held is None else held.place
        return StoredPart(record.name, index, place, file.rows, file.content_digest, file.sha256, extended, held)

    extended = None if record.extended is None else stored(extended_path(path), record.extended)
    yield stored(path, record, extended)
    if record.set_aside is not None:
        yield stored(set_aside_path(path), record.set_aside)


def _holds(path: Path, file: PartRecord | FileRecord, elsewhere: Elsewhere | None) -> bool:
    if not path.exists():
        return elsewhere is not None and elsewhere.has(path.name, file)
    if path.stat().st_size == file.bytes and file_sha256(path) == file.sha256:
        return True
    logger.warning("%s is not what was written; it is made again", path)
    return False


def _linked_again(path: Path, sha256: str, inputs: Iterable[Any]) -> bool:
    """Link the input that a part extends, where one has this SHA-256; return whether it has."""
    for part in inputs:
        for file in (part, part.extended) if isinstance(part, StoredPart) else ():
            if file is not None and file.sha256 == sha256:
                link_stored(file, path)
                return file_sha256(path) == sha256
    return False


class Store:
    """A folder of parts with a ledger.

    Args:
        elsewhere: where the files of parts are kept; None: in the folder.
    """

    def __init__(self, root: Path, elsewhere: Elsewhere | None = None) -> None:
        self.root = root
        self._elsewhere = elsewhere

    @property
    def shown(self) -> str:
        """Its folder, for messages."""
        return str(self.root)

    def state(self) -> object:
        """Return what differs when the ledger was written again; None: there is none."""
        return ledger_state(self.root)

    @property
    def _making(self) -> Path:
        return self.root / _MAKING

    def exists(self) -> bool:
        """Return whether the ledger is complete and every part is there (by name and size; saving checks content)."""
        return (self.root / LEDGER_FILE).exists() and not self._missing(self.ledger())

    def ledger(self) -> Ledger:
        """Read the ledger.

        Raises:
            IncompleteStore: there is none; the message says how far the store is and how to finish it.
            DamagedStore: it is not the one that was written.
        """
        try:
            return Ledger.read(self.root / LEDGER_FILE)
        except FileNotFoundError:
            raise IncompleteStore(
                f"{self.root} {self._state()}. Run the pipeline that makes it; it goes on where it stopped."
            ) from None

    def _state(self) -> str:
        """Return how far a store without a ledger is."""
        if not self._making.is_dir():
            return "has not been made"
        made = {path.stem for path in self._making.glob("part_*.json")}
        try:
            earlier = Ledger.read(self._making / LEDGER_FILE)
        except (FileNotFoundError, DamagedStore):  # saving warns of a damaged one, and makes its parts again
            return f"is not complete ({len(made)} parts made so far)"
        left = {part.name for part in earlier.parts}.difference(made, self._missing(earlier))
        return (
            f"is being remade: {len(left)} parts of an earlier run are there (and kept if the parameters are again "
            f"those that made them), {len(made)} made so far"
        )

    def _missing(self, ledger: Ledger) -> list[str]:
        if ledger.holds == "values":
            return []
        if (elsewhere := self._elsewhere) is not None:
            files = ((part.name, path, held) for part in ledger.parts for path, held in _files(self.root, part))
            return list(dict.fromkeys(name for name, path, held in files if not elsewhere.has(path.name, held)))
        sizes = {path.name: path.stat().st_size for path in self.root.glob("part_*.parquet")}
        return [
            part.name
            for part in ledger.parts
            if any(sizes.get(path.name) != held.bytes for path, held in _files(self.root, part))
        ]

    def load(self) -> Shards:
        """Return the parts.

        Raises:
            IncompleteStore: not all parts are there.
        """
        return self.shards_of(self.ledger(), self.root)

    def shards_of(self, ledger: Ledger, where: object) -> Shards:
        """Return the parts of a ledger; ``where`` names the store in messages.

        Raises:
            IncompleteStore: not all parts are there.
        """
        if missing := self._missing(ledger):
            raise IncompleteStore(
                f"{where} lacks {len(missing)} of {len(ledger.parts)} parts, or their size is not the recorded one "
                f"(first: {missing[0]}). Run the pipeline that makes it: only these are made again."
            )
        if ledger.holds == "values":
            values = [ValuePart(p.name, i, p.value, p.content_digest) for i, p in enumerate(ledger.parts)]
            return Shards(tuple(values), holds="values", ledger=ledger)
        stored = [list(_stored(self.root, i, record, self._elsewhere)) for i, record in enumerate(ledger.parts)]
        aside = tuple(part for _, *set_aside in stored for part in set_aside)
        return Shards(tuple(part for part, *_ in stored), ledger=ledger, set_aside=aside)

    def save(self, planned: Shards, engine: Engine) -> Ledger:
        """Make the parts that are missing or made otherwise; return the ledger.

        Raises:
            PartsFailed: some parts failed; the others are made and kept.
            StoreBusy: another process is writing this store.
            ShardsError: the parts are not planned ones, or the folder holds part files of something else.
        """
        recipe = planned.recipe
        if recipe is None:
            raise ShardsError(f"{self.root}: only planned parts can be saved; these are stored already")
        self.root.mkdir(parents=True, exist_ok=True)
        with sole_writer(self.root):
            self._refuse_foreign_files()
            self._clear_dead_writers()
            tasks = [part for part in planned.parts if isinstance(part, PlannedPart)]
            wanted = {part.name: part.digest for part in planned.parts}
            kept = self._kept(wanted, planned.holds, {task.name: task.inputs for task in tasks})
            left = (task for task in tasks if task.name not in kept)
            todo = [_Task(task.name, task.index, task.inputs, number) for number, task in enumerate(left)]
            is_clean = not todo and not self._stale(kept, planned.holds)
            if is_clean and self._is_current(kept, wanted, planned.holds, recipe):
                if wanted:
                    logger.info("%s: all %d parts are there", self.root.name, len(wanted))
                return self.ledger()
            if wanted:  # else it is of something that is switched off
                logger.info("%s: %d of %d parts to make", self.root.name, len(todo), len(wanted))
            self._making.mkdir(exist_ok=True)
            if (self.root / LEDGER_FILE).exists():
                (self.root / LEDGER_FILE).replace(self._making / LEDGER_FILE)
            with unchanging(recipe.parameters.values()), reading(stored_in(task.inputs for task in todo)):
                take = None if self._elsewhere is None else self._elsewhere.take
                make = _MakePart(self.root, recipe, planned.holds, take)
                kept |= self._make(make, todo, engine, total=len(wanted))
            for path in self._stale(kept, planned.holds):
                path.unlink()
            ledger = Ledger(planned.holds, recipe.description, tuple(kept[name] for name in wanted))
            ledger.write(self.root / LEDGER_FILE)
            shutil.rmtree(self._making)
            return ledger

    def _stale(self, records: dict[str, PartRecord], holds: str) -> list[Path]:
        """Return the files of parts that are in none of these records."""
        of_rows = records.values() if holds == "rows" else ()
        known = {path for record in of_rows for path, _ in _files(self.root, record)}
        return [path for path in self.root.glob("part_*.parquet") if path not in known]

    def _refuse_foreign_files(self) -> None:
        if (self.root / LEDGER_FILE).exists() or self._making.exists() or not any(self.root.glob("part_*.parquet")):
            return
        raise ShardsError(
            f"{self.root} holds part files and no ledger: nothing says what they are, and making parts there would "
            "delete them. Give the store another folder, or remove these files."
        )

    def _clear_dead_writers(self) -> None:
        remove_temporaries(self.root)
        if self._making.is_dir():
            remove_temporaries(self._making)
            for path in self._making.glob("*.error.txt"):
                path.unlink()

    def _records(self) -> Iterator[PartRecord]:
        """Yield every record there is, the newest of a part last.

        A ledger or record that cannot be read counts as none: what it described is made again.
        """
        for path in (self.root / LEDGER_FILE, self._making / LEDGER_FILE):
            try:
                yield from Ledger.read(path).parts
            except FileNotFoundError:
                pass
            except DamagedStore as error:
                logger.warning("%s", error)
        for path in sorted(self._making.glob("part_*.json")):
            try:
                yield PartRecord.from_json(json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, KeyError, TypeError) as error:
                logger.warning("%s is no record (%s); the part is made again", path, error)

    def _kept(self, wanted: dict[str, str], holds: str, inputs: dict[str, tuple[Any, ...]]) -> dict[str, PartRecord]:
        """Return the records whose fingerprint is the wanted one and whose content is still what they say."""
        candidates = {
            record.name: record
            for record in self._records()
            if wanted.get(record.name) == record.fingerprint and (record.sha256 == "") == (holds == "values")
        }
        right = in_threads(lambda record: self._is_right(record, inputs[record.name]), candidates.values())
        shown = progress(right, len(candidates), f"{self.root.name}: reading what is there")
        return {name: record for (name, record), ok in zip(candidates.items(), shown, strict=True) if ok}

    def _is_right(self, record: PartRecord, inputs: tuple[Any, ...]) -> bool:
        if record.sha256 == "":
            return value_digest(record.value) == record.content_digest
        return all(
            _holds(path, file, self._elsewhere)
            or (file is record.extended and _linked_again(path, file.sha256, inputs))
            for path, file in _files(self.root, record)
        )

    def _is_current(self, kept: dict[str, PartRecord], wanted: dict[str, str], holds: str, recipe: Recipe) -> bool:
        if self._making.is_dir() or not (self.root / LEDGER_FILE).exists():
            return False
        ledger = self.ledger()
        return ledger == Ledger(holds, recipe.description, tuple(kept[name] for name in wanted))

    def _make(self, make: _MakePart, todo: list[_Task], engine: Engine, total: int) -> dict[str, PartRecord]:
        made: dict[str, PartRecord] = {}
        failures: dict[str, Failure] = {}
        done = PartCounts(self._making / _COUNTS, [_rows_of(task.inputs) for task in todo])
        with (
            ExitStack() as ended,
            working(self.root.name, done.total, done.unit, found=done, note=done.further),
            closing(engine.run(make, todo)) as outcomes,  # type: ignore[type-var]
        ):
            ended.callback(done.remove)
            for task, outcome in outcomes:
                done.finish(task.number)
                tick()
                if isinstance(outcome, Failure):
                    failures[task.name] = outcome
                    write_text(self._making / f"{task.name}.error.txt", redacted(outcome.traceback))
                    logger.error("%s/%s failed: %s", self.root, task.name, outcome.error)
                else:
                    made[task.name] = outcome
        if failures:
            raise PartsFailed(str(self.root), dict(sorted(failures.items())), total)
        return made
