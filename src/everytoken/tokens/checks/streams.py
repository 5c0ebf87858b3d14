"""Checks of a Megatron stream: its index, its lengths or its loss mask, its sidecar, and every window."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from everytoken.checks import Checks, Mismatch, first_difference, made_by
from everytoken.shards import is_here
from everytoken.tokens.checks.arrays import open_array
from everytoken.tokens.checks.reflections import check_spliced
from everytoken.tokens.checks.stored import CheckedFolder, Level, OpenedStream, StreamClaims
from everytoken.tokens.checks.windows import (
    Seen,
    check_ids,
    check_padding,
    check_window_lengths,
    new_digest,
    sampled,
    scan,
)
from everytoken.tokens.encoding import TOMBSTONES
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams import (
    LOSS_MASK_FILE,
    REFLECTION_LENGTHS_FILE,
    SIDECAR_FILE,
    TOKEN_LENGTHS_FILE,
    check_masks,
    open_indexed,
    open_loss_mask,
    with_name,
)

_CHUNK = 1 << 20


def map_stream(prefix: Path, statistics: StreamClaims | None = None) -> OpenedStream:
    """Map a stream with its lengths or its loss mask; of windows, unless its sequences have several lengths.

    Args:
        prefix: path without ``.bin`` and ``.idx``.
        statistics: of its ledger; None: it must be of windows.

    Raises:
        StreamError: a file is missing or damaged, or they are not of one stream.
    """
    tokens = open_indexed(prefix)
    lengths_path, masks_path = prefix.parent / TOKEN_LENGTHS_FILE, prefix.parent / LOSS_MASK_FILE
    padded, masked = is_here(lengths_path), is_here(masks_path)
    first, last = (int(tokens.lengths[0]), int(tokens.lengths[-1])) if len(tokens) else (0, 0)
    one_length = len(tokens.tokens) == len(tokens) * first and first == last  # what is between is for `check`
    if padded and masked:
        raise StreamError(f"{prefix.parent} has {TOKEN_LENGTHS_FILE} and {LOSS_MASK_FILE}; a stream has one of them")
    of_windows = statistics is None or padded or masked or "windows" in statistics or one_length
    windows = tokens.windows() if of_windows else None
    lengths = open_array(lengths_path, len(tokens), np.int32) if padded else None
    masks = open_loss_mask(masks_path, len(tokens), windows.shape[1] - 1) if masked and windows is not None else None
    return OpenedStream(tokens, windows, lengths, masks)


def _open(stored: CheckedFolder) -> dict[str, int]:
    stream = map_stream(stored.prefix, stored.statistics)
    tokens, windows = stream.tokens, stream.windows
    if (said := stored.statistics.get("windows", len(tokens))) != len(tokens):
        raise Mismatch(str(stored.prefix), f"{said:,} windows as its ledger says", f"{len(tokens):,}")
    stored.stream = stream
    if windows is None:
        return {"sequences": len(tokens), "tokens": len(tokens.tokens)}
    return {"windows": len(tokens), "tokens each": windows.shape[1], "bytes a token": windows.dtype.itemsize}


class _Windows:
    """Checks windows of a stream that it is given, and counts what is in them."""

    def __init__(self, stream: OpenedStream, statistics: StreamClaims) -> None:
        tokenizer = statistics.get("tokenizer") or {}
        self.vocab_size, self.eos_id = tokenizer.get("vocab_size"), statistics.get("eos_id", tokenizer.get("eos_id"))
        self._stream, self._only_eos = stream, TOMBSTONES in statistics
        self.seen, self.counted = Seen(), 0

    def check(self, numbers: np.ndarray, tokens: np.ndarray) -> None:
        """Check windows by their numbers, (n,), and tokens, (n, window); `StreamError` names the first fault."""
        where, stream = self._stream.tokens.prefix, self._stream
        if stream.lengths is not None and len(numbers):
            lengths = stream.lengths[numbers]
            check_window_lengths(where, numbers, lengths, tokens.shape[1])
            self.eos_id = int(tokens[0, lengths[0]]) if self.eos_id is None else self.eos_id
            check_padding(where, numbers, tokens, lengths, self.eos_id)
        if stream.masks is not None:
            masks = stream.masks[numbers]
            self.counted += check_masks(where, numbers, tokens, masks, self.eos_id, clears_eos_alone=self._only_eos)
        check_ids(where, numbers, tokens, self.vocab_size, self.eos_id, self.seen)


def check_sample(stream: OpenedStream, statistics: StreamClaims) -> dict[str, int]:
    """Look at a seeded sample of the windows of a stream, the first and the last; return how many.

    Raises:
        StreamError: names window, position, what was expected and found.
    """
    assert stream.windows is not None
    numbers = sampled(stream.windows)
    _Windows(stream, statistics).check(numbers, stream.windows[numbers])
    return {"windows looked at": len(numbers)}


def _check_some(stored: CheckedFolder) -> dict[str, int] | None:
    stream = made_by("sizes", stored.stream)
    return None if stream.windows is None else check_sample(stream, stored.statistics)


def _check_index(stored: CheckedFolder) -> dict[str, int]:
    """Sequences follow each other without gaps; in a stream of windows each is a window and a document."""
    stream = made_by("sizes", stored.stream)
    tokens = stream.tokens
    tokens.check()
    for start in range(0, 0 if stream.windows is None else len(tokens), _CHUNK):
        own = np.arange(start, min(len(tokens), start + _CHUNK))
        window = np.full(len(own), tokens.lengths[0])
        for what, entries, expected in (
            ("length", tokens.lengths, window),
            ("document boundary", tokens.document_index, own),
        ):
            found = entries[start : start + len(own)]
            if (i := first_difference(found, expected)) is not None:
                raise Mismatch(f"{tokens.prefix}.idx window {start + i:,}", f"{what} {expected[i]}", str(found[i]))
    return {"sequences": len(tokens), "documents": len(tokens.document_index) - 1}


def _check_lengths(stored: CheckedFolder) -> dict[str, int] | None:
    path, content = stored.prefix.parent / TOKEN_LENGTHS_FILE, 0
    if not path.exists():
        return None
    stream = made_by("sizes", stored.stream)
    assert stream.lengths is not None and stream.windows is not None
    for start in range(0, len(stream.lengths), _CHUNK):
        lengths = stream.lengths[start : start + _CHUNK]
        check_window_lengths(path, np.arange(start, start + len(lengths)), lengths, stream.windows.shape[1])
        content += int(lengths.sum(dtype=np.int64))
    if (said := stored.statistics.get("tokens", content)) != content:
        raise Mismatch(str(path), f"{said:,} tokens of content in all as the ledger says", f"{content:,}")
    return {"tokens of content": content}


def _check_sidecar(stored: CheckedFolder) -> dict[str, int] | None:
    path, row = stored.prefix.parent / SIDECAR_FILE, 0
    if not path.exists() or not path.with_name(TOKEN_LENGTHS_FILE).exists():
        return None
    lengths = made_by("sizes", stored.stream).lengths
    assert lengths is not None
    if (reflections := path.with_name(REFLECTION_LENGTHS_FILE)).exists():
        lengths = lengths - open_array(reflections, len(lengths), np.int32)
    with pq.ParquetFile(path) as file:
        if (rows := file.metadata.num_rows) != len(lengths):
            raise Mismatch(str(path), f"{len(lengths):,} rows", f"{rows:,}")
        for batch in file.iter_batches(columns=["token_length"]):
            found = batch.column(0).to_numpy(zero_copy_only=False)
            expected = lengths[row : row + len(found)]
            if (i := first_difference(found, expected)) is not None:
                said = f"token_length {expected[i]} as in {TOKEN_LENGTHS_FILE}"
                raise Mismatch(f"{path} row {row + i:,}", said, str(found[i]))
            row += len(found)
    return {"rows": row}


def _check_windows(stored: CheckedFolder) -> dict[str, int] | None:
    return None if made_by("sizes", stored.stream).windows is None else _check_tokens(stored, "windows")


def _check_sequences(stored: CheckedFolder) -> dict[str, int] | None:
    if stored.stream is None or stored.stream.windows is not None:
        return None
    return _check_tokens(stored, "tokens")


def _check_tokens(stored: CheckedFolder, what: str) -> dict[str, int]:
    """Every window, and the SHA-256 of the ``.bin`` on the way."""
    stream, prefix, statistics = made_by("sizes", stored.stream), stored.prefix, stored.statistics
    path, window = with_name(prefix, ".bin"), 1 if stream.windows is None else stream.windows.shape[1]
    windows, digest, count, fault = (
        _Windows(stream, statistics),
        new_digest(),
        len(stream.tokens.tokens) // window,
        None,
    )
    with closing(scan(path, stream.tokens.tokens.dtype, window, digest)) as blocks:
        for numbers, tokens in blocks:
            try:
                if fault is None:  # else the rest is read for its digest
                    windows.check(numbers, tokens)
            except StreamError as error:
                fault = error
    stored.digests[path.name] = digest.hexdigest()
    if fault is not None:
        raise fault
    count = len(stream.tokens.tokens) // window
    found = {what: count, "is the largest id": windows.seen.largest}
    if stream.masks is not None:
        if windows.counted != (said := statistics.get("loss_tokens", windows.counted)):
            wanted = f"{said:,} predictions that count as the ledger says"
            raise Mismatch(str(prefix.parent / LOSS_MASK_FILE), wanted, f"{windows.counted:,}")
        found["predictions that count"] = windows.counted
    if windows.eos_id is None:
        return found
    if stream.lengths is not None:
        padding = count * window - int(stream.lengths.sum(dtype=np.int64))
        return {**found, "EOS in content": windows.seen.eos - padding}
    _require_eos(prefix, statistics, windows.seen.eos)
    return {**found, "EOS": windows.seen.eos}


def _require_eos(prefix: Path, said: StreamClaims, found: int) -> None:
    """Compare the EOS of a stream that is not padded with what its ledger allows."""
    if "eos_tokens" in said:
        if found != said["eos_tokens"]:
            raise Mismatch(str(prefix), f"{said['eos_tokens']:,} EOS as its ledger says", f"{found:,}")
    elif "documents" in said:
        least = said["documents"] - said.get("remainder_tokens", 0)
        if found < least:
            raise Mismatch(str(prefix), f"at least {least:,} EOS for its documents", f"{found:,}")
        special_ids = (said.get("tokenizer") or {}).get("special_ids")
        buried = said.get(TOMBSTONES, {"documents": 0, "tokens": 0})
        more = buried["tokens"] - buried["documents"]  # the content of excluded documents, which is EOS too
        if special_ids is not None and found > (most := said["documents"] + special_ids + more):
            of_excluded = f", and {more:,} of excluded documents" if more else ""
            allowed = f"one for each document and {special_ids:,} that texts spell{of_excluded}"
            raise Mismatch(str(prefix), f"at most {most:,} EOS, {allowed}", f"{found:,}")


_SIZES = (("sizes", _open),)
STREAM_CHECKS: dict[Level, Checks[CheckedFolder]] = {
    "sizes": _SIZES,
    "sampled": (*_SIZES, ("windows", _check_some)),
    "full": (
        *_SIZES,
        ("index", _check_index),
        ("lengths", _check_lengths),
        ("sidecar", _check_sidecar),
        ("reflections", check_spliced),
        ("windows", _check_windows),
        ("tokens", _check_sequences),
    ),
}
"""Checks of a stream, by level."""
