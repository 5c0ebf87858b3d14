"""Documents that are not at their address: found by id or text, rescued, or missing with a reason.

A row of the manifest that has no address, or whose address has no document or another text, is looked for

- by id (and its JSON type) among all documents that were read. With a hash, the text must have it. Without one (the
  published format), every document of this id must have the same text: repeated rows are normal upstream, two texts of
  one id cannot be told apart. Of several, the one in the part that most rows of its part come from is taken, then the
  first in plan order;
- with a hash, by the text: as that decides, another id is none the worse;
- in ``text_rescue``, by its number.

What is left is ``gone`` (nothing has its id or text, and what stands at its address, if anything, has another id),
``changed`` (a document with its id, or one at its address whose id cannot be compared as one of the two has none, has
another text) or ``ambiguous`` (its id has several texts). The join is DuckDB's, on disk, in the memory it is given.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.address import ADDRESS_COLUMNS
from everytoken.outofcore import open_database
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.hashed_texts import text_digests, text_hashes
from everytoken.provenance.releases import SPLITS
from everytoken.provenance.replay.faults import (
    FAULT_ROWS,
    FOUND,
    FoundDocuments,
    fault_rows,
    found_places,
    of_another_id,
)
from everytoken.provenance.replay.manifest_files import RescueFile
from everytoken.provenance.replay.row_reader import RowReaders
from everytoken.shards import Built, Rows, Shards, StoredPart, file_sha256, statistics_as, versioned, write_rows

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

RowOutcome = Literal["by_id", "by_text", "rescued", "gone", "changed", "ambiguous"]
OUTCOMES: tuple[RowOutcome, ...] = ("by_id", "by_text", "rescued", "gone", "changed", "ambiguous")
BY_ID, BY_TEXT, RESCUED, GONE, CHANGED, AMBIGUOUS = range(len(OUTCOMES))
FAULTS = OUTCOMES[GONE:]

ROWS_FILE, STARTS_FILE, FAULTS_FILE = "rows.npy", "starts.npy", "faults.parquet"
POSITION, OUTCOME, PART, ROW, UTF8_BYTES = range(5)
"""Columns of ``rows.npy``."""

_BATCH_ROWS = 65_536
_THREAD_BYTES = 128 << 20  # what a thread of DuckDB needs so that it can go to disk
_WANTED = (
    *("split", "number", "id", "id_type", *ADDRESS_COLUMNS, "text_hash"),
    *("found_hash", "found_part", "found_at"),
)


class Outcomes(TypedDict):
    """How many rows have each outcome, by split; those that occur."""

    outcomes: dict[str, dict[RowOutcome, int]]


class MatchStatistics(Outcomes):
    """Statistics of `match_rows`: ``rows`` that were looked for; ``rescue``, split and SHA-256 of each file."""

    rows: int
    rescue: list[list[str]]


@versioned("match_rows", 2, unrecorded=["rescue", "memory"])
def match_rows(
    folder: Path,
    *,
    located: Shards,
    documents: Shards,
    rescue: Sequence[RescueFile],
    rescue_digests: Sequence[tuple[str, str]],
    memory: int,
) -> Built:
    """Look for the documents that are not at their address; excluded ones are not looked for.

    Files: ``rows.npy`` int64 (n, 5), sorted: position of the row of the manifest (over all parts of ``located``), its
    number in `OUTCOMES`, and where its text is: part and row of the documents (``by_id``, ``by_text``, ``ambiguous``)
    or number of the rescue file and row in it (``rescued``), and its UTF-8 bytes; -1 where there is none.
    ``starts.npy`` int64 (parts + 1,), where each part begins. ``faults.parquet``, `FAULT_ROWS`: what is missing.

    Args:
        folder: of the artifact; also holds what does not fit into the memory.
        rescue_digests: split and SHA-256 of each, what the recipe knows of them.
        memory: bytes for DuckDB; the process itself needs about 350 MB more.

    Raises:
        ProvenanceError: a rescue file is not the listed one, has a row twice, or a text that has not its hash; or the
            memory is too little.
    """
    starts = np.cumsum([0, *(part.rows for part in located)], dtype=np.int64)
    np.save(folder / STARTS_FILE, starts)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".spill-") as spill, _database(spill, memory) as database:
        count = _load(database, "wanted", _wanted(located))
        if count:
            _find_ids(database, documents)
            _load(database, "rescue", _rescued(rescue))
            _refuse_repeats(database, rescue)
        table = np.lib.format.open_memmap(folder / ROWS_FILE, mode="w+", dtype=np.int64, shape=(count, 5))
        found = _in_order(database) if count else iter(())
        paths = [document.path for document in documents if isinstance(document, StoredPart)]
        with closing(RowReaders(FOUND)) as readers:
            judged = _judged(found, table, rescue, FoundDocuments(paths, readers))
            written = write_rows(Rows(FAULT_ROWS, judged), folder / FAULTS_FILE)
        table.flush()
    counted = statistics_as(written.statistics, Outcomes, FAULTS_FILE)
    return Built(MatchStatistics(**counted, rows=count, rescue=[list(digest) for digest in rescue_digests]))


@contextmanager
def _database(spill: str, memory: int) -> Iterator[DuckDBPyConnection]:
    import duckdb

    threads = max(1, min(os.cpu_count() or 1, memory // _THREAD_BYTES))
    try:
        with open_database(Path(spill), memory, file=Path(spill, "rows.duckdb"), threads=threads) as connection:
            yield connection
    except duckdb.OutOfMemoryException as error:
        raise ProvenanceError(
            f"finding documents by id needs more than {memory:,} bytes ({_short(error)}). Raise replay.memory, or free "
            "space on the disk of the results"
        ) from error
    except duckdb.Error as error:
        raise ProvenanceError(f"documents cannot be found by id: {_short(error)}") from error


def _short(error: Exception) -> str:
    return str(error).splitlines()[0]


def _load(database: DuckDBPyConnection, name: str, batches: pa.RecordBatchReader) -> int:
    """Make a table of batches; return its rows."""
    database.register("arriving", batches)
    database.execute(f"CREATE TABLE {name} AS SELECT * FROM arriving")
    database.unregister("arriving")
    ((count,),) = database.execute(f"SELECT count(*) FROM {name}").fetchall()
    return int(count)


def _wanted(located: Shards) -> pa.RecordBatchReader:
    """Return the rows that are not at their address and not excluded, with position and part."""
    own = [located.parts[0].schema.field(name) for name in _WANTED] if len(located) else []
    schema = pa.schema([pa.field("position", pa.int64()), pa.field("of_part", pa.int32()), *own])

    def batches() -> Iterator[pa.RecordBatch]:
        position = 0
        for part in located:
            for batch in part.batches([*_WANTED, "at_part", "is_excluded"]):
                is_wanted = pc.and_(batch.column("at_part").is_null(), pc.invert(batch.column("is_excluded")))
                rows = np.flatnonzero(is_wanted.to_numpy(zero_copy_only=False))
                if len(rows):
                    taken = batch.select(_WANTED).take(pa.array(rows))
                    numbers = [pa.array(position + rows), pa.array(np.full(len(rows), part.index, np.int32))]
                    yield pa.RecordBatch.from_arrays([*numbers, *taken.columns], schema=schema)
                position += batch.num_rows

    return pa.RecordBatchReader.from_batches(schema, batches())


def _find_ids(database: DuckDBPyConnection, documents: Shards) -> None:
    """Make the table ``chosen``: for each wanted row whose id or text was read, the best document."""
    same_id = "w.id = c.id AND (w.id_type IS NULL OR w.id_type = c.id_type)"
    columns = (
        "position BIGINT, split TINYINT, of_part INT, part INT, row BIGINT, bytes BIGINT, hash UBIGINT, other BOOL"
    )
    database.execute(f"CREATE TABLE pairs ({columns}, renamed BOOL)")
    for renamed, key, wanted_key, condition in (
        (False, "id", "id", same_id),
        (True, "hash", "text_hash", "w.text_hash = c.hash"),
    ):
        ((wanted,),) = database.execute(f"SELECT count({wanted_key}) FROM wanted").fetchall()
        if not wanted:
            continue
        database.register("arriving", _ids(documents))
        # a semi join and a join, which go to disk where they must: IN and OR would be held in memory
        database.execute(
            "CREATE TABLE candidates AS SELECT id, id_type, hash, part, min(row) AS row, min(bytes) AS bytes "
            f"FROM arriving SEMI JOIN wanted ON arriving.{key} = wanted.{wanted_key} GROUP BY id, id_type, hash, part"
        )
        database.unregister("arriving")
        database.execute(
            "INSERT INTO pairs SELECT w.position, w.split, w.of_part, c.part, c.row, c.bytes, c.hash, "
            f"w.text_hash IS NOT NULL AND w.text_hash <> c.hash, {renamed} FROM wanted w "
            f"JOIN candidates c ON {condition}"
        )
        database.execute("DROP TABLE candidates")
    database.execute(
        "CREATE TABLE home AS SELECT split, of_part, arg_max(part, (count, -part)) AS part FROM "
        "(SELECT split, of_part, part, count(*) AS count FROM pairs WHERE NOT other GROUP BY split, of_part, part) "
        "GROUP BY split, of_part"
    )
    # one number that is least for the best: DuckDB bounds the memory of aggregates over numbers, not over structs
    away = "coalesce(pairs.part <> home.part, true)"
    flags = f"(other::INT * 4 + renamed::INT * 2 + {away}::INT)::HUGEINT"
    database.execute(
        "CREATE TABLE chosen AS SELECT position, min(hash) <> max(hash) AS several, min(rank) AS rank, "
        "arg_min(bytes, rank) AS bytes, arg_min(hash, rank) AS hash FROM "
        f"(SELECT position, bytes, hash, {flags} * {1 << 94} + pairs.part * {1 << 63} + row AS rank "
        "FROM pairs LEFT JOIN home USING (split, of_part)) GROUP BY position"
    )


def _ids(documents: Shards) -> pa.RecordBatchReader:
    """Return of all documents id, its type, hash of the text, part, row in it, bytes of the text."""
    schema = pa.schema(
        [
            ("id", pa.large_string()),
            ("id_type", pa.string()),
            ("hash", pa.uint64()),
            ("part", pa.int32()),
            ("row", pa.int64()),
            ("bytes", pa.int64()),
        ]
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for part in documents:
            row = 0
            for batch in part.batches(["id", "id_type", "text_sha256", "utf8_bytes"]):
                columns = [
                    batch.column("id"),
                    batch.column("id_type"),
                    pa.array(text_hashes(batch.column("text_sha256"), part.name)),
                    pa.array(np.full(batch.num_rows, part.index, np.int32)),
                    pa.array(np.arange(row, row + batch.num_rows)),
                    batch.column("utf8_bytes"),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
                row += batch.num_rows

    return pa.RecordBatchReader.from_batches(schema, batches())


def _rescued(rescue: Sequence[RescueFile]) -> pa.RecordBatchReader:
    """Return split, number, file, row, bytes and hash of the rescued texts."""
    names = ("split", "number", "file", "file_row", "rescue_bytes", "rescue_hash")
    types = (pa.int8(), pa.int64(), pa.int32(), pa.int64(), pa.int64(), pa.uint64())
    schema = pa.schema(list(zip(names, types, strict=True)))

    def batches() -> Iterator[pa.RecordBatch]:
        for number, file in enumerate(rescue):
            row = 0
            for batch in _texts(file):
                texts, rows = batch.column("text").cast(pa.large_string()), batch.num_rows
                columns = [
                    pa.array(np.full(rows, SPLITS.index(file.split), np.int8)),
                    batch.column("global_row").cast(pa.int64()),
                    pa.array(np.full(rows, number, np.int32)),
                    pa.array(np.arange(row, row + rows)),
                    pc.binary_length(texts).cast(pa.int64()),
                    pa.array(text_hashes(text_digests(texts), file.path)),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
                row += rows

    return pa.RecordBatchReader.from_batches(schema, batches())


def _texts(file: RescueFile) -> Iterator[pa.RecordBatch]:
    path = Path(file.path)
    if not path.exists() or file_sha256(path) != file.sha256:
        raise ProvenanceError(f"{path} is not the file that was listed ({file.sha256}). Copy the release again")
    try:
        with pq.ParquetFile(path) as opened:
            for group in range(opened.num_row_groups):
                for batch in opened.iter_batches(1_024, [group], ["global_row", "text"]):
                    if batch.column("global_row").null_count or batch.column("text").null_count:
                        raise ProvenanceError(f"{path} has a null in global_row or text; every rescued row has both")
                    yield batch
    except (OSError, KeyError, pa.ArrowException) as error:
        raise ProvenanceError(f"{path} is no file of rescued texts (global_row, text): {error}") from error


def _refuse_repeats(database: DuckDBPyConnection, rescue: Sequence[RescueFile]) -> None:
    for split, number, file in database.execute(
        "SELECT split, number, max(file) FROM rescue GROUP BY split, number HAVING count(*) > 1 LIMIT 1"
    ).fetchall():
        raise ProvenanceError(
            f"{rescue[file].path}: document {number:,} of {SPLITS[split]} has two rescued texts; keep one of them"
        )


def _in_order(database: DuckDBPyConnection) -> Iterator[pa.RecordBatch]:
    found = database.sql(
        f"SELECT w.*, c.several, c.bytes AS doc_bytes, c.hash AS doc_hash, (c.rank % {1 << 63})::BIGINT AS doc_row, "
        f"(c.rank // {1 << 63} % {1 << 31})::INT AS doc_part, c.rank >= {1 << 96} AS other, "
        f"c.rank // {1 << 95} % 2 = 1 AS renamed, "
        "r.file, r.file_row, r.rescue_bytes, r.rescue_hash "
        "FROM wanted w LEFT JOIN chosen c USING (position) "
        "LEFT JOIN rescue r ON w.split = r.split AND w.number = r.number ORDER BY position"
    )
    yield from found.to_arrow_reader(_BATCH_ROWS)


def _judged(
    found: Iterator[pa.RecordBatch], table: np.ndarray, rescue: Sequence[RescueFile], documents: FoundDocuments
) -> Generator[pa.RecordBatch, None, Outcomes]:
    """Fill ``rows.npy`` front to back; yield the faults."""
    counts = {split: Counter[RowOutcome]() for split in SPLITS}
    filled = 0
    for batch in found:
        outcomes, places = _outcomes(batch, rescue)
        rows = np.flatnonzero(outcomes >= GONE)
        faults = batch.take(pa.array(rows))
        instead = documents.take(*found_places(faults))
        outcomes[rows[of_another_id(faults, instead)]] = GONE
        here = table[filled : filled + batch.num_rows]
        here[:, POSITION], here[:, OUTCOME] = batch.column("position").to_numpy(), outcomes
        here[:, [PART, ROW, UTF8_BYTES]] = places
        filled += batch.num_rows
        splits = batch.column("split").to_numpy()
        for number, split in enumerate(SPLITS):
            of_split = np.bincount(outcomes[splits == number], minlength=len(OUTCOMES)).tolist()
            counts[split].update({OUTCOMES[outcome]: count for outcome, count in enumerate(of_split) if count})
        if len(rows):
            yield fault_rows(faults, [OUTCOMES[outcome] for outcome in outcomes[rows].tolist()], instead)
    return Outcomes(outcomes={split: dict(sorted(one.items())) for split, one in counts.items() if one})


def _outcomes(batch: pa.RecordBatch, rescue: Sequence[RescueFile]) -> tuple[np.ndarray, np.ndarray]:
    """Return of wanted rows the outcome, (n,), and part, row and bytes of the text, (n, 3)."""
    flags = {name: pc.fill_null(batch.column(name), False) for name in ("other", "renamed", "several")}
    other, renamed, several = (flag.to_numpy(zero_copy_only=False) for flag in flags.values())
    has_document, has_rescue, has_hash, has_other_text = (
        batch.column(name).is_valid().to_numpy(zero_copy_only=False)
        for name in ("doc_part", "file", "text_hash", "found_hash")
    )
    good = has_document & ~np.where(has_hash, other, several)
    rescued = ~good & has_rescue
    _require_hashes(batch, np.flatnonzero(rescued & has_hash), rescue)
    ambiguous = ~good & ~rescued & has_document & ~has_hash
    outcomes = np.select(
        [good & ~renamed, good, rescued, ambiguous, has_document | has_other_text],
        [BY_ID, BY_TEXT, RESCUED, AMBIGUOUS, CHANGED],
        GONE,
    )
    names = [("doc_part", "file"), ("doc_row", "file_row"), ("doc_bytes", "rescue_bytes")]
    places = np.full((batch.num_rows, 3), -1, np.int64)
    for place, (of_document, of_rescue) in enumerate(names):
        for chosen, name in ((good | ambiguous, of_document), (rescued, of_rescue)):
            places[chosen, place] = pc.fill_null(batch.column(name), -1).to_numpy()[chosen]
    return outcomes, places


def _require_hashes(batch: pa.RecordBatch, rows: np.ndarray, rescue: Sequence[RescueFile]) -> None:
    """Check that rescued texts have the hashes of the manifest."""
    some = batch.take(pa.array(rows))
    wrong = np.flatnonzero(some.column("rescue_hash").to_numpy() != some.column("text_hash").to_numpy())
    for row in some.take(pa.array(wrong[:1])).to_pylist():
        raise ProvenanceError(
            f"{rescue[row['file']].path} row {row['file_row']:,}: the text of document {row['number']:,} of "
            f"{SPLITS[row['split']]} has the hash {row['rescue_hash']:016x}, the manifest says "
            f"{row['text_hash']:016x}. Copy the release again"
        )
