"""Whether every row of the manifests of a release is one that its parameters allow, and what their lengths sum up to.

Parts are read in several threads, each in bounded memory; the lengths of the annotated documents are held (20 bytes a
document with their order: as much as writing their stream takes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.address import SHARD_INDEX, file_of
from everytoken.corpus import N_CLASSES
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.hashed_texts import text_hash
from everytoken.provenance.releases import CLASSIFICATIONS_FOLDER, MANIFEST, SPLITS, VERIFICATION_FOLDER, Release
from everytoken.provenance.verification.file_checks import open_array
from everytoken.provenance.verification.file_threads import in_threads
from everytoken.provenance.verification.findings import NotCheckedError, require_equal, require_none
from everytoken.provenance.verification.manifest_rows import (
    column_values,
    longest_content,
    shown_row,
    window_order,
)
from everytoken.seeds import numpy_generator
from everytoken.shards import DamagedStore, StoredPart, TableDigest
from everytoken.tokens.streams import STREAM_KINDS, TOKEN_LENGTHS_FILE, StreamKind

_RESCUE = [("global_row", "int64"), ("text", "large_string")]


@dataclass(frozen=True)
class PartFacts:
    """What one part of the manifest holds; ``lengths``, int32 (rows,), of documents that have a window each."""

    rows: int
    tokens: int
    longest: int
    at_cap: int
    excluded: int
    lengths: np.ndarray


def check_manifest(release: Release, chosen: Mapping[str, Sequence[int]], into: dict[str, list[PartFacts]]) -> str:
    """Parts of the manifest hold what their columns must, and the content that the boundaries say.

    Args:
        release: the release.
        chosen: numbers of the parts to read, by split.
        into: gets what they hold.
    """
    rows, missing, faults = 0, 0, []
    for split in SPLITS:
        parts = release.manifest(split).parts
        wanted = [part for i in chosen[split] if isinstance(part := parts[i], StoredPart) and part.path.is_file()]
        missing += len(chosen[split]) - len(wanted)
        check = _PartCheck(release, split)
        for outcome in in_threads(check, wanted):
            if isinstance(outcome, str):
                faults.append(outcome)
            else:
                into.setdefault(split, []).append(outcome)
                rows += outcome.rows
    require_none(faults)
    every = [facts for found in into.values() for facts in found]
    excluded = sum(facts.excluded for facts in every)
    taken_down = f", {excluded:,} taken down" if excluded else ""
    without = f"; not checked: parts that are missing ({missing:,}), see checksums" if missing else ""
    return f"{rows:,} rows in {len(every):,} parts{taken_down}, {len(MANIFEST)} columns, no text{without}"


class _PartCheck:
    """Checks one part; returns its facts, or what is wrong."""

    def __init__(self, release: Release, split: str) -> None:
        self._split = split
        self._longest = longest_content(release, split)
        kinds = (STREAM_KINDS[name] for name in release.streams if name in STREAM_KINDS)
        self._have_windows = any(kind.layout == "padded" and kind.split == split for kind in kinds)
        self._threshold = release.parameters("subsampling")["annotation_threshold"]
        plan = release.upstream["plan"]["shards"]
        self._shards = {file_of(shard) for shard in plan}

    def __call__(self, part: StoredPart) -> PartFacts | str:
        try:
            return self._facts(part)
        except Exception as error:  # of any kind, see `finding`; the other parts are read
            return str(error) if isinstance(error, ProvenanceError | DamagedStore) else f"{part.path}: {error}"

    def _facts(self, part: StoredPart) -> PartFacts:
        found = pa.schema([(field.name, field.type) for field in part.schema])
        expected = pa.schema([(field.name, field.type) for field in MANIFEST])
        if not found.equals(expected):
            differ = [f"{a.name}: {a.type}" for a in found if a not in list(expected)]
            missing = [f"{b.name}: {b.type}" for b in expected if b not in list(found)]
            raise ProvenanceError(f"{part.path}: expected the columns {missing or expected.names}, found {differ}")
        digest, lengths = TableDigest(part.schema), [np.empty(0, np.int32)]
        rows = tokens = longest = at_cap = excluded = 0
        for batch in part.batches():
            digest.update(batch)
            self._check_rows(part, rows, batch)
            if self._longest is not None and batch.num_rows:
                own = batch.column("token_length").to_numpy()
                tokens += int(own.sum(dtype=np.int64))
                longest = max(longest, int(own.max()))
                at_cap += int(np.count_nonzero(own == self._longest))
                if self._have_windows:
                    lengths.append(own)
            excluded += pc.sum(batch.column("is_excluded")).as_py() or 0
            rows += batch.num_rows
        if (content := digest.hexdigest()) != part.digest:
            raise ProvenanceError(
                f"{part.path}: expected content {part.digest[:16]} as in file_boundaries.json, found {content[:16]}"
            )
        return PartFacts(rows, tokens, longest, at_cap, excluded, np.concatenate(lengths))

    def _check_rows(self, part: StoredPart, first: int, batch: pa.RecordBatch) -> None:
        score, is_bad = column_values(batch, "safety_score"), column_values(batch, "is_bad")
        annotated, length = column_values(batch, "has_annotation"), batch.column("token_length")
        of_plan = _are_of_plan(batch, self._shards)
        wrong = {
            f"a safety_score from 0 to {N_CLASSES - 1}": (score < 0) | (score >= N_CLASSES),
            f"is_bad where safety_score is at least {self._threshold}, and only there": (
                is_bad.astype(bool) != (score >= self._threshold)
            ),
            f"has_annotation to be {self._split == 'annotated'}": (
                annotated.astype(bool) != (self._split == "annotated")
            ),
            "an address in a file of the plan": ~of_plan | (column_values(batch, "row") < 0),
            "id_type where there is an id": batch.column("id").is_valid().to_numpy(zero_copy_only=False)
            & batch.column("id_type").is_null().to_numpy(zero_copy_only=False),
        }
        if self._longest is None:
            wrong["no token_length: nothing of it is encoded"] = length.is_valid().to_numpy(zero_copy_only=False)
        else:
            tokens = length.fill_null(-1).to_numpy(zero_copy_only=False)
            wrong[f"a token_length from 0 to {self._longest:,}"] = (tokens < 0) | (tokens > self._longest)
        for rule, rows in wrong.items():
            if rows.any():
                i = int(np.argmax(rows))
                raise ProvenanceError(f"{part.path} row {first + i:,} ({shown_row(batch, i)}): expected {rule}")


def _are_of_plan(batch: pa.RecordBatch, shards: set[tuple[str, int]]) -> np.ndarray:
    """Return which rows come from a file of the plan, bool (rows,)."""
    coded = batch.column("source").dictionary_encode()
    files = column_values(batch, SHARD_INDEX).astype(np.int64)
    right = np.zeros(batch.num_rows, bool)
    for number, source in enumerate(coded.dictionary.to_pylist()):
        own = [shard for name, shard in shards if name == source]
        right |= (coded.indices.to_numpy(zero_copy_only=False) == number) & np.isin(files, own)
    return right


def check_document_lengths(release: Release, kind: StreamKind, facts: Mapping[str, list[PartFacts]]) -> str:
    """Lengths of documents that have a window each, in the order of these, are those of ``token_lengths.npy``."""
    _require_read(release, kind.split, facts)
    path = release.path / VERIFICATION_FOLDER / kind.name / TOKEN_LENGTHS_FILE
    lengths = np.concatenate([np.empty(0, np.int32), *(part.lengths for part in facts.get(kind.split, []))])
    stored = open_array(path, len(lengths), np.int32)
    order = window_order(release, kind, len(lengths))
    step = 1 << 20
    for start in range(0, len(lengths), step):
        expected, found = lengths[order[start : start + step]], stored[start : start + step]
        if (wrong := found != expected).any():
            i = int(np.argmax(wrong))
            document = int(order[start + i])
            raise ProvenanceError(
                f"{path}: window {start + i:,} holds {kind.split} document {document:,}: expected its token_length "
                f"{expected[i]}, found {found[i]}"
            )
    at_cap, longest = sum(part.at_cap for part in facts[kind.split]), int(lengths.max()) if len(lengths) else 0
    share = at_cap / len(lengths) if len(lengths) else 0.0
    cap = longest_content(release, kind.split)
    return f"{len(lengths):,} documents, the longest {longest:,} tokens; {at_cap:,} ({share:.1%}) at the cap of {cap:,}"


def check_packed(release: Release, kind: StreamKind, facts: Mapping[str, list[PartFacts]]) -> str:
    """Tokens of all documents of a packed stream with their EOS are those of the windows, and the remainder."""
    _require_read(release, kind.split, facts)
    window = release.parameters("tokenization")["seq_length"] + 1
    statistics = release.streams[kind.name]["statistics"]
    parts = facts.get(kind.split, [])
    tokens = sum(part.tokens + part.rows for part in parts)
    windows, remainder = statistics["windows"], statistics["remainder_tokens"]
    what = f"{release.path}: tokens with EOS of the {kind.split} documents"
    require_equal(what, tokens, windows * window + remainder)
    return f"{tokens:,} tokens with EOS = {windows:,} windows of {window:,} and {remainder:,} left over"


def _require_read(release: Release, split: str, facts: Mapping[str, list[PartFacts]]) -> None:
    """Raise where a part of the manifest could not be read, which is a fault of its own."""
    if (read := len(facts.get(split, []))) < (parts := len(release.boundaries[split]["parts"])):
        raise NotCheckedError(f"only {read:,} of {parts:,} parts of {split} could be read, see manifest")


def check_classifications(release: Release, *, full: bool) -> str:
    """Every score of the classifications is a class; else only rows are counted."""
    rows: Counter[str] = Counter()
    for path in sorted((release.path / CLASSIFICATIONS_FOLDER).glob("*.parquet")):
        table = path.stem.rsplit("_", 1)[0]
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            rows[table] += 0 if full else file.metadata.num_rows
            for batch in file.iter_batches(columns=["safety_score"]) if full else ():
                score = column_values(batch, "safety_score")
                if (wrong := (score < 0) | (score >= N_CLASSES)).any():
                    i = int(np.argmax(wrong))
                    raise ProvenanceError(
                        f"{path} row {rows[table] + i:,}: expected a class from 0 to {N_CLASSES - 1}, found {score[i]}"
                    )
                rows[table] += batch.num_rows
    return ", ".join(f"{count:,} rows of {table}" for table, count in sorted(rows.items())) or "no rows"


def check_rescue(release: Release, sampled: int | None, seed: int) -> str:
    """Texts are of documents whose licence allows it, with their number, and are those of the manifest.

    Args:
        release: the release.
        sampled: how many files are read; None: all.
        seed: of which they are.
    """
    files = [(split, path) for split in SPLITS for path in release.text_rescue(split) if path.is_file()]
    if not files:
        return "no text"
    sources = release.upstream["sources"].items()
    allowed = {name for name, source in sources if source["licence"]["text"] != "none"}
    if sampled is not None:
        files = [files[i] for i in sorted(numpy_generator(seed, len(files)).permutation(len(files))[:sampled].tolist())]
    rows = sum(in_threads(lambda file: _check_rescued(release, file[0], file[1], allowed), files))
    return f"{rows:,} documents with their text, all of sources whose licence allows it: {', '.join(sorted(allowed))}"


def _check_rescued(release: Release, split: str, path: Path, allowed: set[str]) -> int:
    """Check one file of rescued texts against the part of the manifest of its name; return its rows."""
    boundaries = release.boundaries[split]["parts"]
    index = next((i for i, part in enumerate(boundaries) if part["name"] == path.stem), None)
    if index is None:
        raise ProvenanceError(f"{path}: there is no part {path.stem} of {split}")
    first = boundaries[index]["first_row"]
    own = release.manifest(split).parts[index].table(["source", "text_hash", "is_excluded"])
    source, hashes, excluded = own.column("source"), own.column("text_hash").to_numpy(), own.column("is_excluded")
    given = pc.is_in(source, pa.array(sorted(allowed), source.type)).to_numpy(zero_copy_only=False)
    rows, last = 0, -1
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        require_equal(f"{path}: columns", [(f.name, str(f.type)) for f in file.schema_arrow], _RESCUE)
        for batch in file.iter_batches():
            texts = np.fromiter(map(text_hash, batch.column("text").to_pylist()), np.uint64, batch.num_rows)
            places = column_values(batch, "global_row") - first
            outside = (places < 0) | (places >= own.num_rows) | (np.diff(places, prepend=last) <= 0)
            inside = np.clip(places, 0, max(0, own.num_rows - 1))
            wrong = {
                f"global_row to be the next one of {first:,} to {first + own.num_rows - 1:,}": outside,
                f"a source whose licence allows text ({', '.join(sorted(allowed))})": ~given[inside],
                "no text of a document that was taken down": excluded.to_numpy(zero_copy_only=False)[inside],
                "the text whose hash the manifest has": texts != hashes[inside],
            }
            for rule, flags in wrong.items():
                if flags.any():
                    i = int(np.argmax(flags))
                    raise ProvenanceError(
                        f"{path} row {rows + i:,} (global_row {places[i] + first:,}): expected {rule}"
                    )
            rows, last = rows + batch.num_rows, int(places[-1]) if batch.num_rows else last
    return rows
