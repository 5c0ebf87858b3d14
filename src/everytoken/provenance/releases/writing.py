"""A release is written: everything that rebuilds a corpus exactly, and none of its text that may not be there.

==========================  ========================================================================================
``README.md``               dataset card (`everytoken.provenance.releases.card`)
``recipe.json``             parameters, versions, tokenizer, stages (`everytoken.provenance.releases.recipe_file`)
``upstream.json``           pins, licences and files of the sources, and the shard plan
``file_boundaries.json``    by split its parts: first row in the split, rows, bytes, SHA-256, content digest
``corpus-manifest/{split}`` rows of the split without text, same parts and order (`.manifest`)
``text_rescue/{split}``     texts, where the licence allows it (`.rescue`)
``classifications``         the scores by id and by address
``reflections``             texts with their reflections, where the licence allows it; only where there are any
``tokenizer``               ``tokenizer.json``
``verification``            ``streams.json``, and of each stream index, lengths and a CRC-32 a window
``SHA256SUMS``              of every file, for ``sha256sum -c``
==========================  ========================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.corpus import add_statistics
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.card import dataset_card
from everytoken.provenance.releases.checksums import CHECKSUMS_FILE, write_window_checksums
from everytoken.provenance.releases.manifest import ManifestStatistics, Withheld, is_withheld
from everytoken.provenance.releases.parameters import Licence
from everytoken.provenance.releases.release import (
    BOUNDARIES_FILE,
    CARD_FILE,
    CLASSIFICATIONS_FOLDER,
    MANIFEST_FOLDER,
    RECIPE_FILE,
    REFLECTIONS_FOLDER,
    RESCUE_FOLDER,
    SPLITS,
    STREAMS_FILE,
    SUMS_FILE,
    TOKENIZER_PATH,
    UPSTREAM_FILE,
    VERIFICATION_FOLDER,
)
from everytoken.provenance.releases.released_reflections import withheld_of_stream
from everytoken.provenance.releases.released_texts import (
    GivenTexts,
    Rescue,
    find_shared_ids,
    rescued_rows,
    store_digests,
)
from everytoken.reflections.published import ReleasedReflectionCounts
from everytoken.shards import (
    IN_THIS_PROCESS,
    Artifact,
    Built,
    Part,
    RangeMap,
    Shards,
    StoredPart,
    canonical_json,
    file_sha256,
    in_threads,
    link_file,
    statistics_as,
    versioned,
    write_rows,
    write_text,
)
from everytoken.tokens.streams import MANIFEST_FILE, TOKEN_LENGTHS_FILE, WindowCounts
from everytoken.tokens.tokenizer import TOKENIZER_FILE


def licences_of(sources: Sequence[str], licences: Mapping[str, Licence]) -> dict[str, Licence]:
    """Return the licence of each source.

    Raises:
        ProvenanceError: one has none, or one that nobody has looked up; names the source and its parameter.
    """
    known: dict[str, Licence] = {}
    for source in sorted(sources):
        licence, parameter = licences.get(source), f"release.licences.{source}"
        if licence is None:
            raise ProvenanceError(
                f"source {source!r} has no licence: {parameter} is not set. Say under which licence its documents are "
                "published: {name, spdx, url, attribution, text: none | rescue | all}. Nothing was released."
            )
        if not licence.is_known:
            raise ProvenanceError(
                f"the licence of source {source!r} is not known: {parameter} has name {licence.name!r} and spdx "
                f"{licence.spdx!r}. Look it up at {licence.url} and write it there. Nothing was released."
            )
        known[source] = licence
    return known


class ReleaseStatistics(TypedDict):
    """Statistics of `write_release`; ``rescued``: texts that are given, by split and source."""

    rows: int
    by_split: dict[str, ManifestStatistics]
    rescued: dict[str, dict[str, int]]
    classifications: dict[str, int]
    sums_sha256: str


class ReleasedReflectionStatistics(TypedDict, total=False):
    """What `write_release` says of reflections, where it is given any: see `ReleasedReflectionCounts`."""

    reflections: ReleasedReflectionCounts


class _Statistics(ReleaseStatistics, ReleasedReflectionStatistics):
    pass


@versioned("write_release", 2, unrecorded=["memory"], in_ranges=True)
def write_release(
    folder: Path,
    *,
    pretty_name: str,
    languages: Sequence[str],
    homepage: str | None,
    licences: Mapping[str, Licence],
    recipe: bytes,
    upstream: bytes,
    manifests: Mapping[str, Shards],
    texts: Mapping[str, Shards],
    upstream_documents: Shards,
    withheld: Withheld,
    classifications: Artifact,
    tokenizer: Artifact,
    streams: Mapping[str, Artifact],
    memory: int,
    reflections: Shards | None = None,
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Write a release, see above.

    Args:
        folder: of the artifact; also holds temporary files while ids are grouped.
        languages: of the documents, codes of ISO 639 or what else the hub knows.
        recipe: ``recipe.json``, canonical.
        upstream: ``upstream.json``, canonical.
        texts: of each split the parts whose text may be given (`parts_with_text`).
        upstream_documents: the parts of sources of which texts are rescued, as upstream has them.
        memory: bytes for grouping ids; changes time, never a byte.
        reflections: texts with their reflections, parts of `everytoken.reflections.published.released_reflections`.
        ranges: where the texts of parts are read and written.

    Returns:
        Statistics: ``rows``; ``by_split``, counts with ``by_source``; ``rescued``, by split and source;
        ``classifications``, rows of each table and ``withheld``; ``sums_sha256``, of ``SHA256SUMS``.
    """
    _write(folder / RECIPE_FILE, recipe.decode())
    _write(folder / UPSTREAM_FILE, upstream.decode())
    boundaries = {split: _write_manifest(folder / MANIFEST_FOLDER / split, manifests[split]) for split in SPLITS}
    _write(folder / BOUNDARIES_FILE, canonical_json(boundaries))
    policies = {source: licence.text for source, licence in licences.items()}
    with TemporaryDirectory(prefix=".shared-", dir=folder) as scratch:
        shared = find_shared_ids(upstream_documents, memory, folder)
        rescue = Rescue(policies, store_digests(shared, Path(scratch, "ids")))
        del shared
        rescued = {
            split: _write_texts(
                folder / RESCUE_FOLDER / split, texts[split], manifests[split], boundaries[split], rescue, ranges
            )
            for split in SPLITS
        }
    scores = _write_classifications(folder / CLASSIFICATIONS_FOLDER, classifications, withheld)
    _link(tokenizer.path(TOKENIZER_FILE), folder / TOKENIZER_PATH)
    described = {name: _write_stream(folder / VERIFICATION_FOLDER / name, name, streams[name]) for name in streams}
    given = ReleasedReflectionStatistics() if reflections is None else _write_reflections(folder, reflections)
    for name, stream in streams.items():
        described[name] |= withheld_of_stream(name, stream, given.get("reflections"))
    _write(folder / STREAMS_FILE, canonical_json(described))
    by_split = {split: _counts(manifests[split]) for split in SPLITS}
    card = dataset_card(
        pretty_name=pretty_name,
        languages=languages,
        homepage=homepage,
        licences=licences,
        recipe=json.loads(recipe),
        upstream=json.loads(upstream),
        by_split=by_split,
        rescued=rescued,
        classifications=scores,
        streams=described,
        reflections=given.get("reflections"),
    )
    write_text(folder / CARD_FILE, card)
    names = [*_files(folder)]
    sha256 = dict(zip(names, in_threads(file_sha256, [folder / name for name in names]), strict=True))
    write_text(folder / SUMS_FILE, "".join(f"{digest}  {name}\n" for name, digest in sha256.items()))
    sha256[SUMS_FILE] = file_sha256(folder / SUMS_FILE)
    return Built(
        _Statistics(
            rows=sum(counts["rows"] for counts in by_split.values()),
            by_split=by_split,
            rescued=rescued,
            classifications=scores,
            sums_sha256=sha256[SUMS_FILE],
            **given,
        ),
        sha256=sha256,
    )


def parts_with_text(documents: Shards, manifest: Shards, licences: Mapping[str, Licence]) -> Shards:
    """Return the parts that have rows of a source of which a release may hold text: the others are not read."""
    given = {source for source, licence in licences.items() if licence.text != "none"}
    by_part = zip(documents, manifest.statistics_as(ManifestStatistics), strict=True)
    return Shards(tuple(part for part, counts in by_part if given & set(counts["by_source"])))


def release_metrics(release: Artifact) -> dict[str, object]:
    """Return the numbers of a release: bytes, documents by split, texts given, ids withheld, documents excluded."""
    held = release.statistics_as(ReleaseStatistics)
    by_split, texts = held["by_split"], held["rescued"]
    return {
        "bytes": release.bytes,
        "documents": {"total": held["rows"], **{split: by_split[split]["rows"] for split in SPLITS}},
        "texts_given": {split: sum(texts[split].values()) for split in SPLITS},
        "withheld": {
            "ids": sum(counts["withheld"] for counts in by_split.values()),
            "classifications": held["classifications"]["withheld"],
        },
        "excluded": sum(counts["excluded"] for counts in by_split.values()),
    }


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text + "\n")


def _files(folder: Path) -> Iterator[str]:
    """Yield the paths of all files, sorted."""
    yield from sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    link_file(source, target)


def _write_manifest(folder: Path, manifest: Shards) -> dict[str, object]:
    """Link the parts of a manifest; return what ``file_boundaries.json`` says of the split."""
    parts, first_row = [], 0
    for part in manifest:
        assert isinstance(part, StoredPart), "manifests are loaded from a store"
        _link(part.path, folder / f"{part.name}.parquet")
        parts.append(
            {
                "name": part.name,
                "first_row": first_row,
                "rows": part.rows,
                "bytes": part.path.stat().st_size,
                "sha256": part.sha256,
                "content_digest": part.digest,
            }
        )
        first_row += part.rows
    return {"rows": first_row, "parts": parts}


def _write_reflections(folder: Path, reflections: Shards) -> ReleasedReflectionStatistics:
    """Link the parts with reflections; return their counts."""
    for part in reflections:
        assert isinstance(part, StoredPart), "reflections are loaded from a store"
        if part.rows:
            _link(part.path, folder / REFLECTIONS_FOLDER / f"{part.name}.parquet")
    return {"reflections": add_statistics(reflections.statistics_as(ReleasedReflectionCounts))}


def _write_texts(
    folder: Path, texts: Shards, manifest: Shards, boundaries: Mapping[str, Any], rescue: Rescue, ranges: RangeMap
) -> dict[str, int]:
    """Write the texts of a split that are given; return their number by source."""
    by_name = {part.name: part for part in manifest}
    first_rows = {part["name"]: part["first_row"] for part in boundaries["parts"]}
    parts = [_ListedPart(part, by_name[part.name], first_rows[part.name]) for part in texts]
    size = sum(part.size for part in texts if isinstance(part, StoredPart))
    total: dict[str, int] = {}
    for counts in ranges.unless_small(size)(_WriteTexts(folder, rescue), parts):
        total = add_statistics([total, counts])
    return total


@dataclass(frozen=True)
class _ListedPart:
    """A part of a split, the same part of its manifest, and the number of its first row in the split."""

    documents: Part
    manifest: Part
    first_row: int

    @property
    def name(self) -> str:
        return self.documents.name


@dataclass(frozen=True)
class _WriteTexts:
    """Writes the texts of a part that are given; returns their number by source."""

    folder: Path
    rescue: Rescue

    def __call__(self, part: _ListedPart) -> dict[str, int]:
        rows = rescued_rows(part.documents, part.manifest, part.first_row, self.rescue)
        if rows is None:
            return {}
        self.folder.mkdir(parents=True, exist_ok=True)
        written = write_rows(rows, self.folder / f"{part.name}.parquet")
        return statistics_as(written.statistics, GivenTexts, part.name)["by_source"]


def _write_classifications(folder: Path, classifications: Artifact, withheld: Withheld) -> dict[str, int]:
    """Link the tables of scores, without the rows whose id is withheld; return their rows."""
    counts = {"classifications": 0, "by_address": 0, "by_use": 0, "withheld": 0}
    for name in sorted(classifications.ledger["files"]):
        path, table = classifications.path(name), name.rsplit("_", 1)[0]
        if table == "classifications":
            kept, left_out = _without_withheld(path, withheld, folder / name)
            counts["withheld"] += left_out
        else:
            kept = pq.read_metadata(path).num_rows
            _link(path, folder / name)
        counts[table] += kept
    return counts


def _without_withheld(path: Path, withheld: Withheld, target: Path) -> tuple[int, int]:
    """Write a table without the rows whose id is withheld; return the rows that stay and those that do not."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        groups = range(file.num_row_groups)
        ids = ["id", "id_type"]
        left_out = sum(int(is_withheld(_group(file, group, ids), withheld).sum()) for group in groups)
        kept = file.metadata.num_rows - left_out
        if not left_out:
            _link(path, target)
            return kept, 0
        target.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(target, file.schema_arrow, compression="zstd", write_page_checksum=True) as writer:
            for group in groups:
                batch = _group(file, group, None)
                some = batch.filter(pa.array(~is_withheld(batch, withheld)))
                writer.write_batch(some, row_group_size=max(1, some.num_rows))
    return kept, left_out


def _group(file: pq.ParquetFile, group: int, columns: list[str] | None) -> pa.RecordBatch:
    table = file.read_row_group(group, columns).combine_chunks()
    return table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], table.schema)


def _write_stream(folder: Path, name: str, stream: Artifact) -> dict[str, object]:
    """Write what tells whether a rebuilt stream is this one; return what ``streams.json`` says of it."""
    files = stream.ledger["files"]
    for kept in (f"{name}.idx", TOKEN_LENGTHS_FILE, MANIFEST_FILE):
        if kept in files:
            _link(stream.path(kept), folder / kept)
    if f"{name}.bin" in files:
        folder.mkdir(parents=True, exist_ok=True)
        size, windows = files[f"{name}.bin"]["bytes"], stream.statistics_as(WindowCounts)["windows"]
        if windows:
            write_window_checksums(stream.path(f"{name}.bin"), size // windows, folder / CHECKSUMS_FILE)
        else:
            np.save(folder / CHECKSUMS_FILE, np.empty(0, "<u4"))
    return {"root_digest": stream.root_digest, "statistics": stream.statistics, "files": dict(files)}


def _counts(manifest: Shards) -> ManifestStatistics:
    none = ManifestStatistics(rows=0, tokens=0, without_id=0, withheld=0, excluded=0, by_source={})
    return add_statistics([none, *manifest.statistics_as(ManifestStatistics)])
