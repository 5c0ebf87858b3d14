"""The hash of a text as manifests have it: the first 8 bytes of the SHA-256 of its UTF-8, a big-endian number.

That is enough to notice a changed document, and nothing of its text.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.provenance.errors import ProvenanceError

_BYTES = 32
_WORDS = 4  # of 8 bytes each


def text_hash(text: str) -> int:
    """Return the hash of a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def text_hashes(digests: pa.BinaryArray, where: str) -> npt.NDArray[np.uint64]:
    """Return the hashes of texts by their SHA-256 (``text_sha256`` of documents), uint64 (rows,).

    Args:
        digests: 32 bytes each, none null.

    Raises:
        ProvenanceError: one has another length.
    """
    lengths = pc.fill_null(pc.binary_length(digests), 0).to_numpy(zero_copy_only=False)
    if (lengths != _BYTES).any():
        raise ProvenanceError(f"{where}: text_sha256 has not 32 bytes. Run the pipeline ingestion again.")
    _, offsets, data = digests.buffers()
    start = np.frombuffer(offsets, np.int32)[digests.offset] if len(digests) else 0
    values = np.frombuffer(data or b"", ">u8", _WORDS * len(digests), start).reshape(-1, _WORDS)
    return values[:, 0].astype(np.uint64)


def text_digests(texts: pa.Array) -> pa.BinaryArray:
    """Return the SHA-256 of the UTF-8 of each text, as ``text_sha256`` of documents has it, (rows,)."""
    return pa.array([hashlib.sha256(text).digest() for text in texts.cast(pa.large_binary()).to_pylist()], pa.binary())
