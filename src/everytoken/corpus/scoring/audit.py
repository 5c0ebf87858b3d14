"""An audit of scores: a seeded sample of every predicted class, to be labelled by people who do not see the score.

The *population* is each id once a part (its first row; every null id for itself), as the statistics of scored parts
count it; an id in several parts is in it once for each. A document for which nothing tells a score is in no class and
not in it. Of class k with N_k documents, in part order, ranks are drawn without replacement from 0..N_k - 1 by a
generator of ``(seed, k)``, and found by cumulative counts: only parts that hold a drawn document are read (and those
of which statistics say too little, see `population`). The sample is therefore the same for any batch size, and a larger
one of the same seed holds the smaller.
Memory: the counts of all parts, the columns ``id`` and score of one part, and the drawn texts.

A folder holds one audit::

    sample.jsonl   a document a line in the order of labelling, without its score
    key.jsonl      the score of each item
    label.html     the page to label them on
    audit.json     what was drawn of what, digests of the files; written last
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt

from everytoken import __version__
from everytoken.address import ADDRESS_COLUMNS
from everytoken.arrays import Flags, Integers
from everytoken.corpus.documents import CLASS_NAMES, N_CLASSES
from everytoken.corpus.errors import ScoringError
from everytoken.corpus.scoring.one_score_per_id import distinct_rows, first_of_ids
from everytoken.corpus.statistics import ClassesBySource
from everytoken.html_pages import page_with
from everytoken.seeds import numpy_generator
from everytoken.shards import Part, Shards, reading, stored_in, unchanging, write_text

MAX_CHARACTERS = 20_000  # of a document
MAX_PAGE_CHARACTERS = 20_000_000  # of all documents

_TEMPLATE = "audit_page.html"

AUDIT_FORMAT = "everytoken-audit/1"
SAMPLE_FILE, KEY_FILE, PAGE_FILE, AUDIT_FILE = "sample.jsonl", "key.jsonl", "label.html", "audit.json"

_SAMPLE_COLUMNS = ("id", "id_type", "source", "stratum", *ADDRESS_COLUMNS[1:], "text")
_KEY_COLUMNS = ("safety_score", "safety_probs")


class AuditParameters(BaseModel):
    """Which documents are drawn for labelling.

    Attributes:
        seed: of the draw of every class, and of the order of the items.
        per_class: documents of each predicted class; a class that has fewer gives all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: NonNegativeInt
    per_class: PositiveInt


@dataclass(frozen=True)
class Audit:
    """A drawn sample; ``sample`` and ``key`` have an entry an item, in the order of labelling."""

    parameters: AuditParameters
    scored_documents: str  # root digest
    population: tuple[int, ...]  # documents of each predicted class
    without_score: int  # documents that are in no class
    sample: tuple[Mapping[str, Any], ...]
    key: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class _Place:
    predicted: int
    part: int
    number: int  # among the documents of this class in the part


def draw_audit(scored: Shards, parameters: AuditParameters) -> Audit:
    """Draw the sample.

    Raises:
        ScoringError: there is no document with a score; or a part holds other classes than its statistics say.
        DamagedStore: a part that is read is not the one that was written.
        StoreBusy: scored documents are being written.
    """
    with reading(stored_in([scored])):
        counts, without_score = population(scored)
        places = _places(counts, parameters)
        if not places:
            raise ScoringError(
                f"scored_documents has no document with a score ({without_score:,} without), so there is nothing to "
                "audit. Score the documents, or give the table of published scores that knows their ids."
            )
        items: dict[int, list[int]] = defaultdict(list)
        for item, place in enumerate(places):
            items[place.part].append(item)
        rows: dict[int, dict[str, Any]] = {}
        for number, of_part in sorted(items.items()):
            part = scored.parts[number]
            found = _find(part, counts[number], [places[item] for item in of_part])
            wanted = sorted(zip(found, of_part, strict=True))
            values = _read(part, [row for row, _ in wanted])
            rows.update(zip((item for _, item in wanted), values, strict=True))
    numbered = [{"item": item + 1, **rows[item]} for item in range(len(places))]
    return Audit(
        parameters,
        scored.root_digest,
        tuple(counts.sum(axis=0).tolist()),
        without_score,
        tuple({name: row[name] for name in ("item", *_SAMPLE_COLUMNS)} for row in numbered),
        tuple({name: row[name] for name in ("item", *_KEY_COLUMNS)} for row in numbered),
    )


class _Unscored(TypedDict, total=False):
    distinct_without_score: int


def population(scored: Shards) -> tuple[Integers, int]:
    """Return the documents of each class in each part, int64 (parts, 6), and how many have no score.

    All from the statistics of the parts, see `everytoken.corpus.scoring.score.ClassCounts`.
    """
    counts = np.zeros((len(scored), N_CLASSES), np.int64)
    for number, statistics in enumerate(scored.statistics_as(ClassesBySource)):
        for of_source in statistics["by_source"].values():
            counts[number] += [of_source["distinct_by_class"][str(k)] for k in range(N_CLASSES)]
    # a model leaves none without
    return counts, sum(part.get("distinct_without_score", 0) for part in scored.statistics_as(_Unscored))


def _scores(part: Part) -> tuple[Flags, npt.NDArray[np.int8], Flags]:
    """Return for each row whether it is the first of its id, its score, and whether it has one."""
    scores = [np.empty(0, np.int8)]
    has_score = [np.empty(0, np.bool_)]
    with unchanging([part]):
        is_first = first_of_ids(distinct_rows(part).of_row)
        for batch in part.batches(_KEY_COLUMNS):
            scores.append(batch.column("safety_score").to_numpy())
            has_score.append(batch.column("safety_probs").is_valid().to_numpy(zero_copy_only=False))
    return is_first, np.concatenate(scores), np.concatenate(has_score)


def _places(counts: Integers, parameters: AuditParameters) -> list[_Place]:
    """Return where the drawn documents are, in the order of labelling."""
    ends = np.cumsum(counts, axis=0)  # (parts, 6)
    places = []
    for k in range(N_CLASSES):
        size = int(counts[:, k].sum())
        for rank in _without_replacement(size, parameters.per_class, numpy_generator(parameters.seed, k)):
            part = int(np.searchsorted(ends[:, k], rank, side="right"))
            places.append(_Place(k, part, rank - int(ends[part, k] - counts[part, k])))
    order = numpy_generator(parameters.seed, N_CLASSES).permutation(len(places))
    return [places[number] for number in order.tolist()]


def _without_replacement(size: int, n: int, generator: np.random.Generator) -> list[int]:
    """Return the first n (at most ``size``) numbers of a random order of range(size).

    Fisher and Yates' shuffle, of which only the entries that moved are kept: memory O(n) for any size.
    """
    moved: dict[int, int] = {}
    drawn = []
    for i in range(min(n, size)):
        j = int(generator.integers(i, size))
        drawn.append(moved.get(j, j))
        moved[j] = moved.get(i, i)
    return drawn


def _find(part: Part, counts: Integers, places: Sequence[_Place]) -> list[int]:
    """Return the row of each place in the part."""
    is_first, score, has_score = _scores(part)
    in_population = is_first & has_score
    found = np.bincount(score[in_population], minlength=N_CLASSES)
    if found.tolist() != counts.tolist():
        raise ScoringError(
            f"{part.name} of scored_documents: its statistics count {counts.tolist()} documents of the classes 0 to "
            f"{N_CLASSES - 1}, its rows {found.tolist()}. They are of another version of the scoring: "
            "run kedro run --pipelines annotation again."
        )
    rows = {k: np.flatnonzero(in_population & (score == k)) for k in {place.predicted for place in places}}
    return [int(rows[place.predicted][place.number]) for place in places]


def _read(part: Part, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the columns of increasing rows; what lies between them is skipped where it is more than a batch."""
    batch: pa.RecordBatch | None = None
    start = 0
    for row in rows:
        if batch is None or row >= start + batch.num_rows:
            batch, start = next(part.batches([*_SAMPLE_COLUMNS, *_KEY_COLUMNS], first_row=row)), row
        yield from batch.slice(row - start, 1).to_pylist()


def write_audit(audit: Audit, folder: Path) -> dict[str, Any]:
    """Write the audit into a folder, and return what ``audit.json`` says. The same audit may be written again.

    Raises:
        ScoringError: the folder holds an audit of another sample, which somebody may have labelled.
    """
    texts = {SAMPLE_FILE: _lines(audit.sample), KEY_FILE: _lines(audit.key)}
    described = {
        "format": AUDIT_FORMAT,
        "version": __version__,
        **audit.parameters.model_dump(mode="json"),
        "scored_documents": audit.scored_documents,
        "population": list(audit.population),
        "drawn": np.bincount([row["safety_score"] for row in audit.key], minlength=N_CLASSES).tolist(),
        "without_score": audit.without_score,
        "sha256": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_another(folder / AUDIT_FILE, described)
    for name, text in texts.items():
        write_text(folder / name, text)
    write_text(folder / PAGE_FILE, label_page(audit.sample, described["sha256"][SAMPLE_FILE], CLASS_NAMES))
    write_text(folder / AUDIT_FILE, json.dumps(described, indent=1) + "\n")
    return described


def audit_lines(described: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was drawn of what, from ``audit.json``, as a table of text."""
    yield f"{'predicted':<16}{'population':>14}{'drawn':>8}"
    for k, (size, drawn) in enumerate(zip(described["population"], described["drawn"], strict=True)):
        fewer = f"  all there are; {described['per_class']:,} wanted" if drawn < described["per_class"] else ""
        yield f"{k} {CLASS_NAMES[k]:<14}{size:>14,}{drawn:>8,}{fewer}"
    if described["without_score"]:
        yield f"{described['without_score']:,} documents without a score are in no class"


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def _refuse_another(path: Path, described: Mapping[str, Any]) -> None:
    if not path.exists():
        return
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
        same = there["sha256"] == described["sha256"]
        which = f"seed {there['seed']}, {there['per_class']} a class of {there['scored_documents'][:16]}"
    except (ValueError, KeyError, TypeError) as error:
        same, which = False, f"{path.name} cannot be read: {error}"
    if not same:
        raise ScoringError(
            f"{path.parent} holds another audit ({which}; this one is seed {described['seed']}, "
            f"{described['per_class']} a class of {described['scored_documents'][:16]}), and labels may belong to it. "
            "Give another folder with --out, or remove that one."
        )


def label_page(sample: Sequence[Mapping[str, Any]], digest: str, class_names: Sequence[str]) -> str:
    """Return the page on which people label a sample: one file of HTML that asks no network.

    The documents enter it as text nodes only.

    Args:
        sample: the items; of long texts the page holds the first `MAX_CHARACTERS`, of many the first characters that
            make `MAX_PAGE_CHARACTERS` together, and says how many more there are.
        digest: SHA-256 of the sample: labels that a browser keeps belong to it, and saved labels name it.
    """
    most = min(MAX_CHARACTERS, MAX_PAGE_CHARACTERS // max(1, len(sample)))
    data = {"sample": digest, "classes": list(class_names), "items": [_shown_item(row, most) for row in sample]}
    return page_with(__package__, _TEMPLATE, data)


def _shown_item(row: Mapping[str, Any], most: int) -> dict[str, Any]:
    text = row["text"]
    shown = {name: value for name, value in row.items() if name not in ("text", "id_type")}
    return {**shown, "text": text[:most], "characters": len(text)}
