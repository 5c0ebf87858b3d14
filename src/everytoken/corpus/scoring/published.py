"""Scores that somebody published: parquet tables, joined to the documents on disk, in bounded memory.

A table has ``safety_score`` (0 to 5) and ``safety_probs`` (6 numbers), and says of which document by

- ``id``, compared with the document's id as text; where the table has ``id_type`` too, that must be equal as well; or
- ``source``, ``shard_index`` and ``row``, the document's address, and where the table has it ``part``, the number of
  the part. What is more exact has the say. `everytoken.corpus.scoring.classifications` writes such tables for what no
  id tells.

A row that no table knows has score 0 and no probabilities, and is counted. The join is DuckDB's, which spills to the
artifact's own folder: its memory is a parameter. Its result is in the order of the documents, so that each part reads
its own range.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, TypedDict

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from everytoken.corpus.dedup import load_mapped
from everytoken.corpus.documents import N_CLASSES, SCORE_FIELDS
from everytoken.corpus.errors import ScoringError
from everytoken.corpus.ingestion import Upstream
from everytoken.corpus.scoring.one_score_per_id import distinct_rows, first_of_ids
from everytoken.corpus.scoring.score import ClassCounts, probability_lists
from everytoken.corpus.scoring.score_tables import (
    SCORE_BATCH_ROWS,
    check_entries,
    connected,
    group_tables,
    matching_scores,
)
from everytoken.corpus.statistics import ClassesBySource
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.shards import Artifact, Built, Part, Rows, Shards, versioned

_SCORES, _PROBABILITIES, _STARTS = "scores.npy", "probabilities.npy", "starts.npy"
NO_SCORE = -1


class PublishedScorer(BaseModel):
    """Scores from parquet files instead of a model.

    Attributes:
        max_missing_share: largest share of rows without a score; more, and the table is not of this corpus.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["published"]
    upstream: Upstream
    max_missing_share: float = Field(ge=0, le=1)


@versioned("join_published", 2, unrecorded=["files", "memory"])
def join_published(
    folder: Path, *, documents: Shards, files: Sequence[UpstreamFile], digests: Sequence[str], memory: int
) -> Built:
    """Find the score of every document in the published tables.

    Files: ``scores.npy`` int8 (documents,), -1 where no table knows the document; ``probabilities.npy`` float32
    (documents, 6); ``starts.npy`` int64 (parts + 1,), where each part begins. All can be mapped into memory.

    Args:
        files: of the tables, sorted by path.
        memory: bytes for DuckDB; the process itself needs about 350 MB more.

    Returns:
        Statistics: root digest of the ``documents``; digest of each of the ``tables``; ``rows``, ``scored`` (rows that
        a table knows), ``missing`` and, by the columns that name documents, ``entries`` (rows of the tables).

    Raises:
        ScoringError: a file without these columns, a score or probability that is none, a document that is there
            twice, or too little memory.
        RowError: a file cannot be had, or is not the planned one.
    """
    started = time.perf_counter()
    before = [file.require(digest) for file, digest in zip(files, digests, strict=True)]
    groups = group_tables(files)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".spill-") as spill, connected(spill, memory) as duckdb:
        entries = {"+".join(tables.key): check_entries(duckdb, tables) for tables in groups}
        scored = _write_in_order(folder, documents.rows, matching_scores(duckdb, documents, groups))
    for file, status in zip(files, before, strict=True):
        if file.status() != status:
            raise ScoringError(f"{file.location} was written to while it was joined. Run again.")
    np.save(folder / _STARTS, np.cumsum([0, *(part.rows for part in documents)], dtype=np.int64))
    statistics = PublishedStatistics(
        documents=documents.root_digest,
        tables={file.path: digest for file, digest in zip(files, digests, strict=True)},
        rows=documents.rows,
        scored=scored,
        missing=documents.rows - scored,
        entries=entries,
    )
    return Built(statistics, {"seconds": time.perf_counter() - started})


class PublishedStatistics(TypedDict):
    """Statistics of `join_published`."""

    documents: str
    tables: dict[str, str]
    rows: int
    scored: int
    missing: int
    entries: dict[str, int]


def require_scores_known(joined: Artifact, documents: Shards, max_missing_share: float) -> None:
    """Check that the scores were joined to these documents, and that the tables know enough of them.

    Raises:
        ScoringError: they were not, or more than ``max_missing_share`` of the rows have no score.
    """
    said = joined.statistics_as(PublishedStatistics)
    rows, missing = said["rows"], said["missing"]
    if said["documents"] != documents.root_digest:
        raise ScoringError(
            f"the published scores were joined to documents {said['documents'][:16]}, these are "
            f"{documents.root_digest[:16]}. Run the whole annotation pipeline: it joins them again."
        )
    if missing > max_missing_share * rows:
        raise ScoringError(
            f"the published scores know {rows - missing:,} of {rows:,} documents; {missing:,} ({missing / rows:.2%}) "
            f"have none, max_missing_share allows {max_missing_share:.2%}. Check that the table is of this corpus and "
            f"that its ids are the documents' (id_columns of the source), or raise scorer.max_missing_share: documents "
            f"without a score count as class 0."
        )


class JoinedStatistics(ClassesBySource):
    """Statistics of `join_part`."""

    rows: int
    null_ids: int
    missing: dict[str, int]
    distinct_without_score: int
    same_id_other_text: int


@versioned("join_part", 2)
def join_part(part: Part, *, published: Artifact) -> Rows:
    """Append the published scores to the documents of a part; no entry: score 0 and null probabilities.

    Returns:
        Statistics: ``rows``; ``null_ids``; ``missing``, the rows without a score by reason (``no_id``, ``no_entry``);
        ``distinct_without_score``, each id of these once; ``same_id_other_text``
        and ``by_source`` as in `everytoken.corpus.scoring.score.score_part`.
    """
    return Rows.extending(part, SCORE_FIELDS, joined_scores(part, published))


def joined_scores(part: Part, published: Artifact) -> Generator[pa.RecordBatch, None, JoinedStatistics]:
    """Yield `SCORE_FIELDS` of the documents of a part; return the statistics of `join_part`."""
    start, stop = load_mapped(published.path(_STARTS))[part.index : part.index + 2].tolist()
    if stop - start != part.rows:
        raise ScoringError(
            f"{part.name} has {part.rows:,} rows, the published scores were joined to {stop - start:,}. "
            f"Join them again to these documents."
        )
    all_scores, all_probabilities = load_mapped(published.path(_SCORES)), load_mapped(published.path(_PROBABILITIES))
    distinct = distinct_rows(part)
    is_first = first_of_ids(distinct.of_row)
    classes = ClassCounts()
    no_id = no_entry = distinct_without_score = done = 0
    for batch in part.batches(["id", "source"]):
        here = slice(start + done, start + done + batch.num_rows)
        scores = np.array(all_scores[here])
        there = scores != NO_SCORE
        scores[~there] = 0
        without_id = batch.column("id").is_null().to_numpy(zero_copy_only=False)
        no_id += int(np.count_nonzero(~there & without_id))
        no_entry += int(np.count_nonzero(~there & ~without_id))
        first = is_first[done : done + batch.num_rows]
        distinct_without_score += int(np.count_nonzero(~there & first))
        classes.add(batch.column("source"), scores, first & there)
        lists = probability_lists(np.array(all_probabilities[here]), there)
        yield pa.RecordBatch.from_arrays([pa.array(scores), lists], schema=pa.schema(SCORE_FIELDS))
        done += batch.num_rows
    return {
        "rows": done,
        "null_ids": distinct.null_ids,
        "missing": {"no_id": no_id, "no_entry": no_entry},
        "distinct_without_score": distinct_without_score,
        "same_id_other_text": distinct.same_id_other_text,
        "by_source": classes.by_source(),
    }


def _write_in_order(folder: Path, rows: int, found: Iterator[pa.RecordBatch]) -> int:
    """Write scores and probabilities of all rows front to back; return how many have one.

    The files are not mapped into memory: what was written would count as memory of this process.
    """
    scored = written = 0
    with (folder / _SCORES).open("wb") as scores, (folder / _PROBABILITIES).open("wb") as probabilities:
        _write_header(scores, np.dtype(np.int8), (rows,))
        _write_header(probabilities, np.dtype(np.float32), (rows, N_CLASSES))
        for batch in chain(found, [None]):
            positions = np.empty(0, np.int64) if batch is None else batch.column("position").to_numpy()
            stop = rows if batch is None else int(positions[-1]) + 1 if len(positions) else written
            for start in range(
                written, stop, SCORE_BATCH_ROWS
            ):  # there may be a long gap before a row that has a score
                n = min(SCORE_BATCH_ROWS, stop - start)
                of_rows, probs_of_rows = np.full(n, NO_SCORE, np.int8), np.zeros((n, N_CLASSES), np.float32)
                if batch is not None:
                    low, high = np.searchsorted(positions, (start, start + n)).tolist()
                    some = batch.slice(low, high - low)
                    some = some.filter(some.column("probabilities").is_valid())  # null says that there is no score
                    here = some.column("position").to_numpy() - start
                    of_rows[here] = some.column("score").to_numpy()
                    lists = some.column("probabilities").flatten().to_numpy().reshape(-1, N_CLASSES)
                    probs_of_rows[here] = lists
                    scored += len(here)
                scores.write(of_rows.data)
                probabilities.write(probs_of_rows.data)
            written = stop
    return scored


def _write_header(file: IO[bytes], kind: np.dtype[Any], shape: tuple[int, ...]) -> None:
    description = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, description)
