r"""Near duplicates by MinHash: texts that share most of their runs of words.

A text is the set of its *shingles*: every run of ``shingle_words`` consecutive words (``\w+`` of the case-folded
text; a text of fewer words is one shingle). MinHash gives it ``num_permutations`` numbers, so that two texts agree in
each of them with the probability of their Jaccard similarity J (shared shingles over all shingles of both). The
numbers are cut into ``bands`` of r = num_permutations / bands; each band is a *bucket*. Two texts share a bucket with
the probability ``1 - (1 - J**r) ** bands``: a steep S in J with its middle near ``(1 / bands) ** (1 / r)``, which is
0.71 for 128 permutations in 16 bands.

The rule: **a document is a near duplicate when an earlier document (in plan order) is in one of its buckets**; it is
recorded as one of the earliest such document. No clusters are made. When B is close to A and C close to B, both go, C
as a near duplicate of B, although B goes too and C may be farther from A: what was dropped decides nothing, so one
grouping finds all, in any order of work. Each document that goes leads, by the recorded ones, to one that stays
(unless a later filter drops that). Clusters by transitive closure would drop a document also for one that comes
*after* it, and would grow families of boilerplate together. The similarity of a pair is not computed: that would need
all texts at hand; `NearRules.threshold` says what the rules find.

Texts without spaces between words (Chinese, Japanese, Thai) have few and long words here: only what lies between
punctuation is compared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypedDict

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from everytoken.shards import Part, Rows, versioned

if TYPE_CHECKING:
    from datasketch import MinHash

BUCKETS = pa.schema([pa.field("buckets", pa.list_(pa.field("item", pa.binary(), False)), nullable=True)])
BUCKET_BYTES = 16  # 128 bits: two buckets by accident are no case to think of

_BATCH_ROWS = 1_024
_SHINGLES_AT_ONCE = 4_096  # times num_permutations 4-byte numbers in memory
_WORD = re.compile(r"\w+")


class NearRules(BaseModel):
    """What counts as a near duplicate; see the module docstring.

    Attributes:
        num_permutations: numbers of a MinHash signature.
        bands: buckets of a document; divides ``num_permutations``. More bands find less similar texts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_permutations: PositiveInt
    bands: PositiveInt
    shingle_words: PositiveInt
    seed: int = Field(ge=0, lt=2**32)

    @model_validator(mode="after")
    def _whole_bands(self) -> NearRules:
        if self.num_permutations % self.bands:
            raise ValueError(
                f"num_permutations {self.num_permutations} is no multiple of bands {self.bands}; "
                f"the rows of a band must be a whole number"
            )
        return self

    @property
    def threshold(self) -> float:
        """Similarity in the middle of the S: about half of the pairs that similar are found."""
        return float((1 / self.bands) ** (self.bands / self.num_permutations))


class SketchCounts(TypedDict):
    """Statistics of `find_buckets`."""

    rows: int
    without_words: int


@versioned("find_buckets", 1)
def find_buckets(part: Part, *, near: NearRules | None) -> Rows:
    """Return the buckets of each document of a part, in order; null for a text without words, which is never near."""
    return Rows(BUCKETS, _batches(part, near))


def _batches(part: Part, near: NearRules | None) -> Generator[pa.RecordBatch, None, SketchCounts]:
    rows = without_words = 0
    if near is not None:
        empty = _empty_signature(near)
        for batch in part.batches(["text"]):
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                texts = batch.column("text").slice(start, _BATCH_ROWS)
                buckets = [buckets_of(text.as_py(), near, empty) for text in texts]
                rows += len(buckets)
                without_words += buckets.count(None)
                yield pa.record_batch([pa.array(buckets, BUCKETS.field(0).type)], BUCKETS)
    return SketchCounts(rows=rows, without_words=without_words)


def buckets_of(text: str, near: NearRules, empty: MinHash | None = None) -> list[bytes] | None:
    """Return the bucket of each band of a text, or None for a text without words.

    Args:
        empty: the signature of nothing with these rules, which is costly to make for each text.
    """
    signature = (empty or _empty_signature(near)).copy()
    shingles = _shingles(text, near.shingle_words)
    while some := list(islice(shingles, _SHINGLES_AT_ONCE)):
        signature.update_batch(some)
    if signature.is_empty():
        return None
    values, rows = signature.hashvalues.astype("<u4"), near.num_permutations // near.bands
    return [
        hashlib.blake2b(
            band.to_bytes(4, "little") + values[band * rows : (band + 1) * rows].tobytes(), digest_size=BUCKET_BYTES
        ).digest()
        for band in range(near.bands)
    ]


def _empty_signature(near: NearRules) -> MinHash:
    from datasketch import MinHash  # imported here: it takes 0.6 s, and most runs sketch nothing
    from datasketch.hashfunc import sha1_hash32

    return MinHash(num_perm=near.num_permutations, seed=near.seed, hashfunc=sha1_hash32, scheme="affine32")


def _shingles(text: str, words: int) -> Iterator[bytes]:
    found = _WORD.findall(text.casefold())
    if found:
        for start in range(max(1, len(found) - words + 1)):
            yield " ".join(found[start : start + words]).encode("utf-8", "surrogatepass")
