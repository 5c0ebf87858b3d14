"""Artifacts: outputs that are one thing, not parts - a tokenizer, a token stream, a checkpoint - with the promises of
parts.
 An artifact is a folder that appears whole under its name, with a ``ledger.json`` inside: recipe, fingerprint,
SHA-256 of every file, statistics, and a root digest. Saving an artifact whose folder has the wanted fingerprint and
unchanged files does nothing.
 What a run merely measured (seconds, tokens per second, versions) stands in the ledger under ``measured`` and is no
part of the digest: it may differ between two runs that agree on everything else.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from everytoken.progress import progress, working
from everytoken.shards.atomic import atomic_folder, lock_folder, remove_temporaries, sole_writer, write_text
from everytoken.shards.digests import file_sha256, plain_json, value_digest
from everytoken.shards.engines import Engine, Inline, RangeMap, in_threads
from everytoken.shards.errors import DamagedStore, IncompleteStore, ShardsError
from everytoken.shards.former_paths import as_described_today
from everytoken.shards.ledger import LEDGER_FILE, Record, is_store, ledger_state, read_ledger, size_here, statistics_as
from everytoken.shards.locked_inputs import stored_in, unchanging
from everytoken.shards.recipe import Recipe, fingerprint_today

logger = logging.getLogger(__name__)

_FORMAT = "everytoken-artifact/1"


@dataclass(frozen=True)
class Built:
    """What an artifact function returns: statistics (deterministic, in the digest) and measurements (not in it).

    ``sha256``: of the files, by name, that the function hashed, as `HashedFile` does; others are read again.
    ``content_digests``: of the tables, by name, that it wrote with `write_rows`; others are read again.
    """

    statistics: Mapping[str, Any]
    measured: Mapping[str, Any] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)
    content_digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Artifact:
    """A planned (recipe) or a made (folder, ledger) artifact.

    Attributes:
        switched_off: it holds nothing, as nobody asked for it: saving it is not worth a line of the log.
    """

    recipe: Recipe | None = None
    folder: Path | None = None
    ledger: Mapping[str, Any] = field(default_factory=dict, repr=False)
    switched_off: bool = False

    def path(self, name: str) -> Path:
        """Return the path of a file of the artifact.

        Raises:
            IncompleteStore: the artifact is only planned.
            DamagedStore: it has no such file.
        """
        if self.folder is None:
            raise self._planned()
        self._require_file(name)
        return self.folder / name

    def _require_file(self, name: str) -> None:
        if name not in self._made("files"):
            raise DamagedStore(f"{self.shown} has no file {name!r}, only {sorted(self.ledger['files'])}")

    def verify(self) -> None:
        """Check that the files are those that were written, by their SHA-256.

        Raises:
            DamagedStore: one is not.
        """
        if self.folder is None:
            raise self._planned()
        if (path := _changed(self.folder, self.ledger["files"])) is not None:
            raise DamagedStore(
                f"{path} is not the file that was written (its SHA-256 differs). Run the pipeline that makes it "
                "again: damaged artifacts are rebuilt."
            )

    @property
    def is_made(self) -> bool:
        """Whether it is more than planned."""
        return self.folder is not None

    @property
    def shown(self) -> object:
        """Where it is, for messages."""
        return self.folder

    @property
    def root_digest(self) -> str:
        """Digest over the content of all files and the statistics."""
        return str(self._made("root_digest"))

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry["bytes"] for entry in self._made("files").values())

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing: no file, and no number or text that says something."""
        return not self._made("files") and not any(self.statistics.values())

    @property
    def statistics(self) -> Mapping[str, Any]:
        """What the function said about its output."""
        return dict(self._made("statistics"))

    def statistics_as(self, kind: type[Record]) -> Record:
        """Return `statistics` as the ``TypedDict`` that the function declares for them.

        Raises:
            DamagedStore: they lack a key, so another function made the artifact.
        """
        return statistics_as(self.statistics, kind, self.shown)

    @property
    def measured(self) -> Mapping[str, Any]:
        """What was measured while it was made."""
        return dict(self._made("measured"))

    def _made(self, key: str) -> Any:
        if not self.is_made:
            raise self._planned()
        return self.ledger[key]

    def _planned(self) -> IncompleteStore:
        name = self.recipe.name if self.recipe else "?"
        return IncompleteStore(
            f"the artifact planned with {name} is not made yet; save it, then use what its store loads"
        )


def plan_artifact(function: Callable[..., Built], **inputs: Any) -> Artifact:
    """Plan ``function(folder, **inputs) -> Built``. Inputs: parameters, loaded `Shards` and loaded `Artifact`s."""
    return Artifact(Recipe(function, inputs))


def _changed(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> Path | None:
    """Return the first file that is not what was written, by size and SHA-256; None when all are."""

    def is_same(name: str) -> bool:
        path, entry = folder / name, files[name]
        return path.exists() and path.stat().st_size == entry["bytes"] and file_sha256(path) == entry["sha256"]

    hashed = in_threads(is_same, files)
    with closing(hashed):
        same = progress(hashed, len(files), f"{folder.name}: reading what is there", "file")
        return next((folder / name for name, holds in zip(files, same, strict=False) if not holds), None)


@dataclass(frozen=True)
class _WrittenFile:
    """A file that a function wrote, and what is known of it without reading it."""

    name: str
    path: Path
    sha256: str | None
    content_digest: str | None


def _file_entry(file: _WrittenFile) -> dict[str, Any]:
    entry = {"bytes": file.path.stat().st_size, "sha256": file.sha256 or file_sha256(file.path)}
    if file.path.suffix == ".parquet":
        # loaded here: what makes no tables does without
        from everytoken.shards.table_digests import stored_content

        entry["content_digest"] = file.content_digest or stored_content(file.path)[1]
    return entry


def _entries(folder: Path, function: str, built: Built, ranges: RangeMap) -> dict[str, dict[str, Any]]:
    paths = sorted(folder.rglob("*"))
    for path in paths:
        if path.is_symlink() or path == folder / LEDGER_FILE:
            raise ShardsError(
                f"{function} wrote {path.name}: an artifact may hold no link and no {LEDGER_FILE} of its own"
            )
    names = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    files = [
        _WrittenFile(name, path, built.sha256.get(name), built.content_digests.get(name))
        for name, path in names.items()
    ]
    left = sum(file.path.stat().st_size for file in files if file.sha256 is None)
    ranges = ranges.unless_small(left)
    entries = in_threads(_file_entry, files) if ranges.workers == 1 else ranges(_file_entry, files)
    return dict(zip(names, entries, strict=True))


def artifact_checksum(ledger: Mapping[str, Any]) -> str:
    """Return the digest over everything that the ledger of an artifact says."""
    return value_digest({key: value for key, value in ledger.items() if key != "checksum"})


def artifact_root_digest(files: Mapping[str, Mapping[str, Any]], statistics: Mapping[str, Any]) -> str:
    """Return the digest over the content of all files (of tables, not of their bytes) and the statistics.

    Args:
        files: ``{"sha256", "content_digest" of a table}`` by name, as in a ledger.
    """
    contents = [[name, entry.get("content_digest", entry["sha256"])] for name, entry in sorted(files.items())]
    return value_digest([contents, statistics])


def parse_artifact_ledger(path: Path) -> dict[str, Any]:
    """Return the ledger of an artifact; its form is checked, and its checksum is computed again.

    Raises:
        DamagedStore: it is none, or its checksum is not that of what it says.
        FileNotFoundError: there is no such file.
    """
    return _parsed(path.read_bytes(), path)


def _parsed(content: bytes, path: object) -> dict[str, Any]:
    try:
        ledger: dict[str, Any] = json.loads(content)
        if (summed := artifact_checksum(ledger)) != (said := ledger["checksum"]):
            raise DamagedStore(
                f"{path} sums up to {summed}, it says {said}: it was edited. Run the pipeline that makes it again"
            )
        fault = _fault_of_form(ledger)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        fault = f"{type(error).__name__}: {error}"
    if fault is not None:
        raise DamagedStore(f"{path} is no ledger of an artifact ({fault}). Run the pipeline that makes it again")
    return ledger


def _fault_of_form(ledger: Mapping[str, Any]) -> str | None:
    """Return what in a ledger has not the form in which one is written; None where all has."""
    if ledger["format"] != _FORMAT:
        return f"format {ledger['format']!r}, this version reads {_FORMAT!r}"
    for name, entry in ledger["files"].items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            return f"the file {name!r} is outside the folder"
        texts = [entry["sha256"], entry.get("content_digest", "")]
        if type(entry["bytes"]) is not int or not all(isinstance(text, str) for text in texts):
            return f"the file {name!r} has no size and SHA-256"
    recipe = ledger["recipe"]
    texts = [ledger["root_digest"], ledger["fingerprint"], recipe["function"]]
    maps = [ledger["statistics"], ledger["measured"], recipe["parameters"]]
    if not all(isinstance(text, str) for text in texts) or type(recipe["version"]) is not int:
        return "digests and the function are text, its version is a number"
    if not all(isinstance(one, dict) for one in maps):
        return "statistics, measured and parameters are objects"
    return None


def require_root_digest(path: object, ledger: Mapping[str, Any]) -> None:
    """Check that the root digest is that of the files and statistics in the ledger: it can be computed from them.

    Raises:
        DamagedStore: it is not.
    """
    if (root := artifact_root_digest(ledger["files"], ledger["statistics"])) != ledger["root_digest"]:
        raise DamagedStore(
            f"{path}: its root digest is {ledger['root_digest'][:16]}, expected {root[:16]} of the files that it "
            "lists: it was edited. Run the pipeline that makes it again"
        )


def read_artifact_ledger(path: Path) -> dict[str, Any]:
    """Return the ledger of an artifact; all that follows from its records is computed again.

    Raises:
        DamagedStore: see `parse_artifact_ledger` and `require_root_digest`.
        FileNotFoundError: there is no such file.
    """
    return artifact_ledger_of(path.read_bytes(), path)


def artifact_ledger_of(content: bytes, where: object) -> dict[str, Any]:
    """Return the ledger of these bytes, as `read_artifact_ledger` does; ``where`` is for messages."""
    ledger = _parsed(content, where)
    require_root_digest(where, ledger)
    fingerprint = fingerprint_today(ledger["fingerprint"], ledger["recipe"], [])
    return {**ledger, "recipe": as_described_today(ledger["recipe"]), "fingerprint": fingerprint}


def read_any_ledger(folder: Path) -> dict[str, Any]:
    """Return the ledger of a folder as plain JSON, of a store of parts or of an artifact; both are checked.

    Raises:
        DamagedStore: it has no whole ledger.
        FileNotFoundError: it has none.
    """
    return (read_ledger if is_store(folder) else read_artifact_ledger)(folder / LEDGER_FILE)


def artifact_ledger_text(ledger: Mapping[str, Any]) -> str:
    """Return the ledger of an artifact in the one form in which it is written."""
    return json.dumps(ledger, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def is_artifact_ledger(content: bytes) -> bool:
    """Return whether a ledger is that of an artifact; one that is cut or empty counts as a damaged one."""
    try:
        found = json.loads(content)
    except ValueError:
        return True
    return isinstance(found, dict) and str(found.get("format")).startswith("everytoken-artifact/")


class ArtifactStore:
    """A folder that holds one artifact."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def name(self) -> str:
        """Of the folder."""
        return self.root.name

    @property
    def shown(self) -> str:
        """Where it is, for messages."""
        return str(self.root)

    def state(self) -> object:
        """Return what differs after the ledger was written again; None: there is none."""
        return ledger_state(self.root)

    def exists(self) -> bool:
        """Return whether the artifact is there with all its files (by name and size; saving checks content)."""
        if not (self.root / LEDGER_FILE).exists():
            return False
        files = self._read()["files"]
        return all(size_here(self.root / name) == entry["bytes"] for name, entry in files.items())

    def _read(self) -> dict[str, Any]:
        return read_artifact_ledger(self.root / LEDGER_FILE)

    def load(self) -> Artifact:
        """Return the made artifact.

        Raises:
            IncompleteStore: it is not there, or not whole.
            DamagedStore: its ledger is not what was written.
        """
        if not self.exists():
            raise IncompleteStore(f"{self.root} has not been made, or lacks files. Run the pipeline that makes it.")
        return Artifact(folder=self.root, ledger=self._read())

    def save(self, planned: Artifact, engine: Engine | None = None) -> Artifact:
        """Make the artifact unless the folder holds it already; return the made one.

        Args:
            engine: where a function that is declared ``in_ranges`` runs them; None: in this process.

        Raises:
            StoreBusy: another process is writing it.
            ShardsError: the artifact is not a planned one, its function returned no `Built`, or the folder holds
                something else, which would be deleted.
        """
        recipe = planned.recipe
        if recipe is None:
            raise ShardsError(f"{self.root}: only a planned artifact can be saved")
        fingerprint, level = recipe.fingerprint([]), logging.DEBUG if planned.switched_off else logging.INFO
        root = self.root.resolve()  # a link to a folder on another disk stays a link
        root.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(root)
        with sole_writer(lock):
            remove_temporaries(root.parent, root.name)
            if self._holds(fingerprint):
                logger.log(level, "%s is there", self.root.name)
                return self.load()
            logger.log(level, "%s: making it with %s", self.root.name, recipe.name)
            self.check_replaceable()
            with unchanging(recipe.parameters.values()), atomic_folder(root) as folder:
                ranges = RangeMap(engine or Inline())
                given = {"ranges": ranges} if recipe.in_ranges else {}
                rows = sum(getattr(data, "rows", 0) for data in stored_in(recipe.parameters.values()))
                with working(self.root.name, rows or None, "row", reads=True):
                    built = recipe.function(folder, **recipe.parameters, **given)
                if not isinstance(built, Built):
                    raise ShardsError(f"{recipe.place} returned a {type(built).__name__}, not Built")
                files = _entries(folder, recipe.place, built, ranges)
                statistics = plain_json(built.statistics, f"{recipe.place}: statistics")
                ledger = {
                    "format": _FORMAT,
                    "fingerprint": fingerprint,
                    "recipe": recipe.description,
                    "root_digest": artifact_root_digest(files, statistics),
                    "files": files,
                    "statistics": statistics,
                    "measured": plain_json(built.measured, f"{recipe.place}: measured"),
                }
                ledger["checksum"] = artifact_checksum(ledger)
                write_text(folder / LEDGER_FILE, artifact_ledger_text(ledger))
            return self.load()

    def check_replaceable(self) -> None:
        """Check that saving would delete nothing but an artifact.

        Raises:
            ShardsError: the folder holds something else.
        """
        if not self.root.exists() or not any(self.root.iterdir()):
            return
        if not self._has_artifact_ledger():
            raise ShardsError(
                f"{self.root} holds files that are no artifact, and making one there would delete them. "
                f"Give the artifact another folder, or remove this one. (It has no {LEDGER_FILE} that tells otherwise.)"
            )
        foreign = [path.name for path in sorted(self.root.iterdir()) if path.name not in self._own_names()]
        if foreign:
            raise ShardsError(
                f"{self.root} is an artifact and also holds {foreign[:5]}, which making it again would delete. Move "
                "these elsewhere."
            )

    def _own_names(self) -> set[str]:
        """Return the names in the folder that its ledger knows; all, when the ledger is damaged."""
        try:
            files = self._read()["files"]
        except DamagedStore:
            return {path.name for path in self.root.iterdir()}
        return {LEDGER_FILE, *(Path(name).parts[0] for name in files)}

    def _has_artifact_ledger(self) -> bool:
        ledger = self.root / LEDGER_FILE
        return ledger.exists() and is_artifact_ledger(ledger.read_bytes())

    def _holds(self, fingerprint: str) -> bool:
        if not (self.root / LEDGER_FILE).exists():
            return False
        try:
            ledger = self._read()
        except DamagedStore as error:
            logger.warning("%s; it is made again", error)
            return False
        if ledger["fingerprint"] != fingerprint:
            return False
        if (path := _changed(self.root, ledger["files"])) is not None:
            logger.warning("%s is not what was written; the artifact is made again", path)
        return path is None
