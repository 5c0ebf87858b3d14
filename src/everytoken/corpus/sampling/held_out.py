"""Which documents are held out: the hash of a document's own address decides, whatever else is in the corpus.

A document is held out when `everytoken.seeds.uniform_hash` of ``(held_out_seed, source, shard_index, row)`` is under
``held_out_share``. Every pass over the documents asks this of every row, so the part of the key that rows share is
hashed once.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from everytoken.address import address_rows
from everytoken.corpus.documents import N_CLASSES


class HeldOutRule(BaseModel):
    """Which documents are held out, and how tokens are estimated: what needs no scores.

    Attributes:
        chars_per_token: characters (code points) of one estimated token.
        max_tokens_per_document: cap of the estimate of one document.
        held_out_seed: of the held-out split; not the seed of the draw, so that other draws keep the same held-out
            documents.
        held_out_share: share of the documents that are held out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    chars_per_token: Annotated[FiniteFloat, Field(gt=0)]
    max_tokens_per_document: Annotated[FiniteFloat, Field(gt=0)]
    held_out_seed: int
    held_out_share: Annotated[float, Field(ge=0, lt=1)]


class HeldOutParameters(HeldOutRule):
    """What the held-out split of scored documents reads: another draw, or other strata, keep it as it is.

    Attributes:
        annotation_threshold: lowest safety score of a row above; null where documents are not scored, and none is.
    """

    annotation_threshold: Annotated[int, Field(ge=0, lt=N_CLASSES)] | None

    def is_above(self, scores: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
        """Return which scores are at or above the threshold, shape (rows,)."""
        threshold = N_CLASSES if self.annotation_threshold is None else self.annotation_threshold
        return np.asarray(scores >= threshold)


def held_out_rows(batch: pa.RecordBatch, parameters: HeldOutRule) -> npt.NDArray[np.bool_]:
    """Return which rows of a batch of documents are held out, shape (rows,), by their addresses."""
    if parameters.held_out_share == 0 or batch.num_rows == 0:
        return np.zeros(batch.num_rows, np.bool_)
    hashes: dict[tuple[str, int], hashlib._Hash] = {}
    digests = []
    for source, shard_index, row in address_rows(batch):
        started = hashes.get((source, shard_index))
        if started is None:
            started = hashlib.sha256(f"{parameters.held_out_seed}\x1f{source}\x1f{shard_index}\x1f".encode())
            hashes[source, shard_index] = started
        own = started.copy()
        own.update(b"%d" % row)
        digests.append(own.digest())
    first_53_bits = np.frombuffer(b"".join(digests), ">u8")[::4] >> np.uint64(11)
    return np.asarray(first_53_bits.astype(np.float64) / 2.0**53 < parameters.held_out_share)
