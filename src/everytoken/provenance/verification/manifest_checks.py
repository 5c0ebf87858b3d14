"""Whether every row of the manifests of a release is one that its parameters allow, and what their lengths sum up to.

Parts are read in several threads, each in bounded memory. Lengths are compared through the index of the stream.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.address import SHARD_INDEX, file_of
from everytoken.checks import (
    Mismatch,
    NotMadeError,
    fault_text,
    first_difference,
    require_equal,
    require_none,
)
from everytoken.corpus import N_CLASSES
from everytoken.provenance.hashed_texts import text_hash
from everytoken.provenance.indexes import PaddedIndex
from everytoken.provenance.releases import (
    CLASSIFICATIONS_FOLDER,
    SPLITS,
    VERIFICATION_FOLDER,
    Release,
    manifest_schema,
)
from everytoken.provenance.verification.checked_release import CheckedRelease
from everytoken.provenance.verification.documents import (
    RELEASE_FAULTS,
    chosen_parts,
    column_values,
    longest_content,
    require_rule,
    shown_row,
)
from everytoken.seeds import numpy_generator
from everytoken.shards import StoredPart, TableDigest, in_threads
from everytoken.tokens.checks import open_array
from everytoken.tokens.streams import TOKEN_LENGTHS_FILE, StreamKind

_RESCUE = [("global_row", "int64"), ("text", "large_string")]


def check_manifest(checked: CheckedRelease) -> str:
    """Parts of the manifest hold what their columns must, and the content that the boundaries say."""
    release, faults = checked.release, []
    rows = excluded = missing = 0
    chosen = chosen_parts(release, checked.sampled, checked.seed)
    for split in SPLITS:
        parts = release.manifest(split).parts
        wanted = [part for i in chosen[split] if isinstance(part := parts[i], StoredPart) and part.path.is_file()]
        missing += len(chosen[split]) - len(wanted)
        for outcome in in_threads(_PartCheck(release, split), wanted):
            if isinstance(outcome, str):
                faults.append(outcome)
            else:
                rows, excluded = rows + outcome[0], excluded + outcome[1]
                checked.read[split] += 1
    require_none(faults)
    taken_down = f", {excluded:,} taken down" if excluded else ""
    without = f"; not checked: parts that are missing ({missing:,}), see checksums" if missing else ""
    columns = len(manifest_schema(release.second_scores))
    return f"{rows:,} rows in {checked.read.total():,} parts{taken_down}, {columns} columns, no text{without}"


@dataclass(frozen=True)
class _PartCheck:
    """Checks one part; returns its rows and how many are taken down, or what is wrong: the other parts are read too."""

    release: Release
    split: str

    @cached_property
    def _longest(self) -> int | None:
        return longest_content(self.release, self.split)

    @cached_property
    def _shards(self) -> set[tuple[str, int]]:
        return {file_of(shard) for shard in self.release.upstream["plan"]["shards"]}

    def __call__(self, part: StoredPart) -> tuple[int, int] | str:
        try:
            return self._counts(part)
        except RELEASE_FAULTS as error:
            said = fault_text(error)
            return said if str(part.path) in said else f"{part.path}: {said}"

    def _counts(self, part: StoredPart) -> tuple[int, int]:
        found = [(field.name, field.type) for field in part.schema]
        expected = [(field.name, field.type) for field in manifest_schema(self.release.second_scores)]
        if found != expected:
            wanted = [name for name, kind in expected if (name, kind) not in found]
            differ = [f"{name}: {kind}" for name, kind in found if (name, kind) not in expected]
            raise Mismatch(str(part.path), f"the columns {wanted or [name for name, _ in expected]}", str(differ))
        digest, rows, excluded = TableDigest(part.schema), 0, 0
        for batch in part.batches():
            digest.update(batch)
            self._check_rows(part, rows, batch)
            excluded += pc.sum(batch.column("is_excluded")).as_py() or 0
            rows += batch.num_rows
        if (content := digest.hexdigest()) != part.digest:
            raise Mismatch(str(part.path), f"content {part.digest[:16]} as in file_boundaries.json", content[:16])
        return rows, excluded

    def _check_rows(self, part: StoredPart, first: int, batch: pa.RecordBatch) -> None:
        score, is_bad = column_values(batch, "safety_score"), column_values(batch, "is_bad")
        annotated, length = column_values(batch, "has_annotation"), batch.column("token_length")
        threshold = self.release.parameters("subsampling")["annotation_threshold"]
        least = N_CLASSES if threshold is None else threshold
        where = "nowhere" if threshold is None else f"where safety_score is at least {threshold}, and only there"
        is_annotated = self.split == "annotated"
        has_id, has_type = (batch.column(name).is_valid().to_numpy(zero_copy_only=False) for name in ("id", "id_type"))
        wrong = {
            f"a safety_score from 0 to {N_CLASSES - 1}": (score < 0) | (score >= N_CLASSES),
            f"is_bad {where}": is_bad.astype(bool) != (score >= least),
            f"has_annotation to be {is_annotated}": annotated.astype(bool) != is_annotated,
            "an address in a file of the plan": ~_are_of_plan(batch, self._shards) | (column_values(batch, "row") < 0),
            "id_type where there is an id": has_id & ~has_type,
        }
        if self.split == "held_out":
            wrong["no token_length: nothing of it is encoded"] = length.is_valid().to_numpy(zero_copy_only=False)
        else:
            tokens = length.fill_null(-1).to_numpy(zero_copy_only=False)
            allowed = "of at least 0" if self._longest is None else f"from 0 to {self._longest:,}"
            most = np.iinfo(np.int32).max if self._longest is None else self._longest
            wrong[f"a token_length {allowed}"] = (tokens < 0) | (tokens > most)
        require_rule(wrong, lambda i: f"{part.path} row {first + i:,} ({shown_row(batch.slice(i, 1).to_pylist()[0])})")


def _are_of_plan(batch: pa.RecordBatch, shards: set[tuple[str, int]]) -> np.ndarray:
    """Return which rows come from a file of the plan, bool (rows,)."""
    coded = batch.column("source").dictionary_encode()
    files = column_values(batch, SHARD_INDEX).astype(np.int64)
    right = np.zeros(batch.num_rows, bool)
    for number, source in enumerate(coded.dictionary.to_pylist()):
        own = [shard for name, shard in shards if name == source]
        right |= (coded.indices.to_numpy(zero_copy_only=False) == number) & np.isin(files, own)
    return right


def check_documents(checked: CheckedRelease, *, kind: StreamKind) -> str | None:
    """The manifest has the documents of a stream: its index can be made of them, and has the lengths of the stream."""
    release, longest = checked.release, longest_content(checked.release, kind.split)
    if not checked.full or kind.name not in release.streams:
        return None
    read, parts = checked.read[kind.split], len(release.boundaries[kind.split]["parts"])
    if read < parts:
        raise NotMadeError(f"only {read:,} of {parts:,} parts of {kind.split} could be read, see manifest")
    index = checked.documents.index(kind.name)
    if not isinstance(index, PaddedIndex):
        remainder = release.streams[kind.name]["statistics"]["remainder_tokens"]
        tokens, windows = index.windows * index.window + remainder, f"{index.windows:,} windows of {index.window:,}"
        return f"{tokens:,} tokens with EOS = {windows} and {remainder:,} left over"
    path = checked.folder / VERIFICATION_FOLDER / kind.name / TOKEN_LENGTHS_FILE
    stored, lengths = open_array(path, index.windows, np.int32), index.lengths[index.order]
    if (window := first_difference(stored, lengths)) is not None:
        place = f"{path}: window {window:,} holds {kind.split} document {index.order[window]:,}"
        raise Mismatch(place, f"its token_length {lengths[window]}", str(stored[window]))
    at_cap, most = int(np.count_nonzero(lengths == longest)), int(lengths.max(initial=0))
    share = f"{at_cap:,} ({at_cap / max(1, len(lengths)):.1%}) at the cap of {longest:,}"
    return f"{len(lengths):,} documents, the longest {most:,} tokens; {share}"


def check_classifications(checked: CheckedRelease) -> str:
    """Every score of the classifications is a class; else only rows are counted."""
    rows: Counter[str] = Counter()
    for path in sorted((checked.folder / CLASSIFICATIONS_FOLDER).glob("*.parquet")):
        table = path.stem.rsplit("_", 1)[0]
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            rows[table] += 0 if checked.full else file.metadata.num_rows
            for batch in file.iter_batches(columns=["safety_score"]) if checked.full else ():
                score = column_values(batch, "safety_score")
                if (wrong := (score < 0) | (score >= N_CLASSES)).any():
                    i = int(np.argmax(wrong))
                    place = f"{path} row {rows[table] + i:,}"
                    raise Mismatch(place, f"a class from 0 to {N_CLASSES - 1}", str(score[i]))
                rows[table] += batch.num_rows
    return ", ".join(f"{count:,} rows of {table}" for table, count in sorted(rows.items())) or "no rows"


def check_reflections(checked: CheckedRelease) -> str:
    """Count the rows of the reflections that the release has."""
    files = sorted((checked.folder / "reflections").rglob("*.parquet"))
    return f"{sum(pq.read_metadata(file).num_rows for file in files):,} rows" if files else "none are made"


def check_rescue(checked: CheckedRelease) -> str:
    """Texts are of documents whose licence allows it, with their number, and are those of the manifest."""
    release = checked.release
    files = [(split, path) for split in SPLITS for path in release.text_rescue(split) if path.is_file()]
    if not files:
        return "no text"
    sources = release.upstream["sources"].items()
    allowed = {name for name, source in sources if source["licence"]["text"] != "none"}
    if checked.sampled is not None:
        drawn = numpy_generator(checked.seed, len(files)).permutation(len(files))[: checked.sampled]
        files = [files[i] for i in sorted(drawn.tolist())]
    rows = sum(in_threads(lambda file: _check_rescued(release, file[0], file[1], allowed), files))
    return f"{rows:,} documents with their text, all of sources whose licence allows it: {', '.join(sorted(allowed))}"


def _check_rescued(release: Release, split: str, path: Path, allowed: set[str]) -> int:
    """Check one file of rescued texts against the part of the manifest of its name; return its rows."""
    boundaries = release.boundaries[split]["parts"]
    index = next((i for i, part in enumerate(boundaries) if part["name"] == path.stem), None)
    if index is None:
        raise Mismatch(str(path), f"the name of a part of {split}", path.stem)
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
            require_rule(wrong, partial(_rescued_row, path, rows, places + first))
            rows, last = rows + batch.num_rows, int(places[-1]) if batch.num_rows else last
    return rows


def _rescued_row(path: Path, before: int, numbers: np.ndarray, i: int) -> str:
    return f"{path} row {before + i:,} (global_row {numbers[i]:,})"
