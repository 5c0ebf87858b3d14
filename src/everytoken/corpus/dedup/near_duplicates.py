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

import re
from collections.abc import Generator, Sequence
from hashlib import blake2b, sha1
from itertools import accumulate
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from everytoken.shards import Part, Rows, versioned

BUCKETS = pa.schema([pa.field("buckets", pa.list_(pa.field("item", pa.binary(), False)), nullable=True)])
BUCKET_BYTES = 16  # 128 bits: two buckets by accident are no case to think of

_BATCH_ROWS = 1_024
_SHINGLES_AT_ONCE = 4_096  # times num_permutations 4-byte numbers in memory
_WORD = re.compile(r"\w+")
_Numbers = npt.NDArray[np.uint32]


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
        sketch = _Sketch(near)
        for batch in part.batches(["text"]):
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                texts = batch.column("text").slice(start, _BATCH_ROWS).to_pylist()
                buckets = sketch.buckets(texts)
                rows += len(buckets)
                without_words += buckets.count(None)
                yield pa.record_batch([pa.array(buckets, BUCKETS.field(0).type)], BUCKETS)
    return SketchCounts(rows=rows, without_words=without_words)


def buckets_of(text: str, near: NearRules) -> list[bytes] | None:
    """Return the bucket of each band of a text, or None for a text without words."""
    return _Sketch(near).buckets([text])[0]


class _Sketch:
    """The MinHash of datasketch (``affine32`` over ``sha1_hash32``), for many texts at once.

    A shingle's number is h, the first four bytes of its SHA-1, little-endian, mixed by the finalizer of MurmurHash3.
    Number k of a signature is the least ``a[k] * h + b[k]`` modulo 2**32 over all shingles.
    """

    def __init__(self, near: NearRules) -> None:
        from datasketch import MinHash  # imported here: it takes 0.6 s, and most runs sketch nothing

        a, b = MinHash(num_perm=near.num_permutations, seed=near.seed, scheme="affine32").permutations
        self._a, self._b, self._words = a.astype(np.uint32), b.astype(np.uint32), near.shingle_words
        width = 4 * near.num_permutations // near.bands
        self._bands = [
            (band.to_bytes(4, "little"), slice(band * width, (band + 1) * width)) for band in range(near.bands)
        ]

    def buckets(self, texts: Sequence[str]) -> list[list[bytes] | None]:
        """Return the buckets of each text; None for one without words."""
        hashed = [_shingle_hashes(text, self._words) for text in texts]
        mixed = _mixed(np.frombuffer(b"".join(hashed), "<u4").astype(np.uint32))
        found: list[list[bytes] | None] = []
        start = 0
        for own in hashed:
            stop = start + len(own) // 4
            found.append(self._buckets(mixed[start:stop]) if stop > start else None)
            start = stop
        return found

    def _buckets(self, shingles: _Numbers) -> list[bytes]:
        least = self._least(shingles[:_SHINGLES_AT_ONCE])
        for start in range(_SHINGLES_AT_ONCE, len(shingles), _SHINGLES_AT_ONCE):
            least = np.minimum(least, self._least(shingles[start : start + _SHINGLES_AT_ONCE]))
        values = least.astype("<u4").tobytes()
        return [blake2b(prefix + values[band], digest_size=BUCKET_BYTES).digest() for prefix, band in self._bands]

    def _least(self, shingles: _Numbers) -> _Numbers:
        least: _Numbers = (shingles[:, None] * self._a + self._b).min(axis=0)
        return least


def _mixed(numbers: _Numbers) -> _Numbers:
    """Return the finalizer of MurmurHash3 of each number, modulo 2**32."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        numbers = (numbers ^ (numbers >> np.uint32(shift))) * np.uint32(factor)
    return numbers ^ (numbers >> np.uint32(16))


def _shingle_hashes(text: str, words: int) -> bytes:
    """Return the first four bytes of the SHA-1 of each shingle of a text, one after the other."""
    joined = " ".join(_WORD.findall(text.casefold())).encode("utf-8", "surrogatepass")
    if not joined:
        return b""
    starts = [0, *accumulate(len(word) + 1 for word in joined.split(b" "))]
    ends = starts[words:] or starts[-1:]
    return b"".join([sha1(joined[start : end - 1]).digest()[:4] for start, end in zip(starts, ends, strict=False)])
