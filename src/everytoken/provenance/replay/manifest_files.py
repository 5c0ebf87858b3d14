"""The files of a manifest, of a release or in the published format, as parts that a replay reads.

A release has ``recipe.json`` and ``corpus-manifest/{split}/``, whose rows have address and hash. The published format
of the 1T-token corpus has ``annotated/`` and ``unannotated/`` (or ``corpus-manifest/{split}/``) with parquet files in
the order of their names, columns ``id`` (null where upstream had none), ``safety_score``, ``is_bad`` and
``has_annotation``, and neither address nor hash. Both may have ``text_rescue/{split}/``: texts by the number of the
document in its split (``global_row``). Which of the two a folder is, is told by ``recipe.json`` alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import (
    BOUNDARIES_FILE,
    MANIFEST,
    MANIFEST_FOLDER,
    RECIPE_FILE,
    RESCUE_FOLDER,
    SECOND_SCORES,
    SPLITS,
    manifest_schema,
    open_release,
    parse_object,
    read_bounded,
)
from everytoken.shards import BATCH_ROWS, Shards, file_sha256, in_threads, value_digest

logger = logging.getLogger(__name__)

PUBLISHED_SPLITS = ("annotated", "unannotated")

ROWS = pa.schema(
    [field.with_nullable(field.name not in ("safety_score", "is_bad", "has_annotation")) for field in MANIFEST]
)
"""Columns of a manifest of either kind: those of a release, null where the published format does not say."""


def rows_schema(second: Sequence[str]) -> pa.Schema:
    """Return `ROWS`, with the column `SECOND_SCORES` of a release that has second scores of these names."""
    return pa.schema([*ROWS, manifest_schema(second).field(SECOND_SCORES)]) if second else ROWS


_PUBLISHED = ("id", "safety_score", "is_bad", "has_annotation")
_COPY = "Copy the release again: it is not the one that was made."


class ManifestFile(TypedDict):
    """A file of a manifest; ``first_row`` is the number of its first document in its split."""

    path: str
    rows: int
    first_row: int
    sha256: str


ManifestPart = Mapping[str, ManifestFile | None]
"""The file of each split that is in one part; None where the split has no file of this part."""


class RescueFile(NamedTuple):
    """A file of texts by the number of their document in a split."""

    split: str
    path: str
    sha256: str


def is_release(folder: Path) -> bool:
    """Return whether a folder is a release (else it may be a manifest in the published format)."""
    return (folder / RECIPE_FILE).exists()


def require_manifest(folder: Path) -> None:
    """Check that a folder is a release or has files where the published format has them; no file is read.

    Raises:
        ProvenanceError: it is neither.
    """
    if is_release(folder):
        open_release(folder)
    elif not any(_published_paths(folder, split) for split in PUBLISHED_SPLITS):
        raise ProvenanceError(
            f"{folder.absolute()} is neither a release ({RECIPE_FILE}) nor a manifest of the published format (parquet "
            f"files in {PUBLISHED_SPLITS[0]}/ and {PUBLISHED_SPLITS[1]}/, or in {MANIFEST_FOLDER}/). Give "
            "replay.release the folder of one: --params replay.release=PATH"
        )


def manifest_parts(folder: Path) -> Shards:
    """Return value parts, one for each part of the splits.

    A value is a `ManifestPart`. Their digests say nothing of where the files lie.

    Raises:
        ProvenanceError: the folder is neither a release nor of the published format, or its boundaries say otherwise.
    """
    by_split = _released(folder) if is_release(folder) else _published(folder)
    names = sorted({name for files in by_split.values() for name in files})
    values = [{split: by_split[split].get(name) for split in SPLITS} for name in names]
    return Shards.from_values(
        values, [value_digest([[split, _known(value[split])] for split in SPLITS]) for value in values]
    )


def split_rows(parts: Shards) -> dict[str, int]:
    """Return the rows of each split, of the parts that `manifest_parts` returns."""
    files = {split: [value[split] for value in parts.values if value[split] is not None] for split in SPLITS}
    return {split: sum(file["rows"] for file in of_split) for split, of_split in files.items()}


def _known(file: ManifestFile | None) -> list[object] | None:
    return None if file is None else [file["first_row"], file["rows"], file["sha256"]]


def rescue_files(folder: Path) -> list[RescueFile]:
    """Return the files of rescued texts, by split and name; none where there are none.

    Raises:
        ProvenanceError: a release lists another file of texts.
    """
    sums = open_release(folder).sha256sums if is_release(folder) else None
    found = []
    for split in SPLITS:
        for path in sorted((folder / RESCUE_FOLDER / split).glob("*.parquet")):
            told = file_sha256(path) if sums is None else sums.get(path.relative_to(folder).as_posix())
            if told is None:
                raise ProvenanceError(f"{path} is not in the release's list of files. {_COPY}")
            found.append(RescueFile(split, str(path), told))
    return found


def read_released_manifest(
    value: ManifestPart, second: Sequence[str] = ()
) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Yield split, number of the first document, and rows of the files of one part, in the order of `SPLITS`.

    Rows are those of `rows_schema`.

    Raises:
        ProvenanceError: a file is not the one that was listed, or is no manifest; with file and row.
    """
    schema = rows_schema(second)
    for split in SPLITS:
        file = value[split]
        if file is None:
            continue
        path, number = Path(file["path"]), file["first_row"]
        _require_content(path, file["sha256"])
        try:
            with pq.ParquetFile(path) as opened:
                for batch in opened.iter_batches(BATCH_ROWS):
                    yield split, number, _rows(batch, path, number - file["first_row"], schema)
                    number += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise ProvenanceError(f"{path} is no parquet file of a manifest ({error}). {_COPY}") from error
        if number - file["first_row"] != file["rows"]:
            raise ProvenanceError(f"{path} has {number - file['first_row']:,} rows, expected {file['rows']:,}. {_COPY}")


def _require_content(path: Path, sha256: str) -> None:
    try:
        found = file_sha256(path)
    except OSError as error:
        raise ProvenanceError(f"{path} cannot be read ({error}). {_COPY}") from error
    if found != sha256:
        raise ProvenanceError(f"{path} has SHA-256 {found}, expected {sha256}. {_COPY}")


def _rows(batch: pa.RecordBatch, path: Path, first: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of a file with the columns of `rows_schema`."""
    names, needed = batch.schema.names, {*_PUBLISHED, SECOND_SCORES} & set(schema.names)
    if missing := [name for name in schema.names if name in needed and name not in names]:
        raise ProvenanceError(
            f"{path} has the columns {names}, not {missing}: it is no manifest. Give replay.release a folder with "
            f"files of {[name for name in schema.names if name in needed]}"
        )
    columns = []
    for field in schema:
        if field.name not in names:
            default = False if field.name == "is_excluded" else None
            columns.append(pa.array([default] * batch.num_rows, field.type))
            continue
        try:
            column = batch.column(field.name)
            if isinstance(column.type, pa.UuidType):
                column = pa.array([None if value is None else str(value) for value in column.to_pylist()])
            column = column.cast(field.type)
        except pa.ArrowException as error:
            raise ProvenanceError(
                f"{path}: column {field.name} is of the type {batch.schema.field(field.name).type}, which is no "
                f"{field.type} ({error}). Choose a manifest that has one"
            ) from error
        if not field.nullable and column.null_count:
            row = first + pc.index(column.is_null(), True).as_py()
            raise ProvenanceError(f"{path} row {row:,}: {field.name} is null; every document has one")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def second_scores_of(folder: Path) -> list[str]:
    """Return the names of the second scores that a manifest has; none in the published format."""
    return open_release(folder).second_scores if is_release(folder) else []


def _released(folder: Path) -> dict[str, dict[str, ManifestFile]]:
    boundaries = open_release(folder).boundaries
    return {
        split: {
            part["name"]: ManifestFile(
                path=str(folder / MANIFEST_FOLDER / split / f"{part['name']}.parquet"),
                rows=part["rows"],
                first_row=part["first_row"],
                sha256=part["sha256"],
            )
            for part in boundaries[split]["parts"]
        }
        for split in SPLITS
    }


def _published(folder: Path) -> dict[str, dict[str, ManifestFile]]:
    require_manifest(folder)
    found: dict[str, dict[str, ManifestFile]] = {split: {} for split in SPLITS}
    for split in PUBLISHED_SPLITS:
        paths, first = _published_paths(folder, split), 0
        for path, (rows, sha256) in zip(paths, in_threads(_facts, paths), strict=True):
            found[split][path.stem] = ManifestFile(path=str(path), rows=rows, first_row=first, sha256=sha256)
            first += rows
    _check_boundaries(folder, found)
    return found


def _published_paths(folder: Path, split: str) -> list[Path]:
    place = next((at for at in (folder / split, folder / MANIFEST_FOLDER / split) if at.is_dir()), None)
    return [] if place is None else sorted(place.glob("*.parquet"))


def _facts(path: Path) -> tuple[int, str]:
    try:
        return pq.read_metadata(path).num_rows, file_sha256(path)
    except (OSError, pa.ArrowException) as error:
        raise ProvenanceError(f"{path} is no parquet file ({error}). {_COPY}") from error


def _check_boundaries(folder: Path, found: Mapping[str, Mapping[str, ManifestFile]]) -> None:
    """Compare rows and order with ``file_boundaries.json``, where that is one that this version can read."""
    path = folder / BOUNDARIES_FILE
    if not path.exists():
        return
    try:
        told = {
            split: [(Path(part["name"]).stem, part["first_row"], part["rows"]) for part in boundaries["parts"]]
            for split, boundaries in parse_object(read_bounded(path), str(path)).items()
            if split in SPLITS
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ProvenanceError):
        logger.warning("%s has another form than expected: documents are numbered in the order of names", path)
        return
    for split, parts in told.items():
        here = [(name, file["first_row"], file["rows"]) for name, file in found[split].items()]
        for expected, file in zip(parts, [*here, *[None] * len(parts)], strict=False):
            if expected != file:
                raise ProvenanceError(
                    f"{path}: {split} has {expected} (name, first row, rows), found {file} among its files. {_COPY}"
                )
