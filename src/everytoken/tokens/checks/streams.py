"""Checks of a Megatron stream: its index, its lengths or its loss mask, its sidecar, and every window."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow.parquet as pq

from everytoken.tokens.checks.check import Check, Level, checked
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
    SIDECAR_FILE,
    TOKEN_LENGTHS_FILE,
    IndexedTokens,
    check_masks,
    open_indexed,
    open_loss_mask,
    with_name,
)

_CHUNK = 1 << 20


class TokenizerClaims(TypedDict, total=False):
    """What is known of the tokenizer of a stream; ``special_ids`` in the content of its documents."""

    vocab_size: int
    eos_id: int
    special_ids: int


class StreamClaims(TypedDict, total=False):
    """What the ledger of a stream says that its files are compared with, as far as there is one and it says it."""

    windows: int
    tokens: int
    documents: int
    remainder_tokens: int
    eos_tokens: int
    loss_tokens: int
    tombstones: dict[str, int]
    eos_id: int
    tokenizer: TokenizerClaims | None


@dataclass(frozen=True)
class _Stream:
    """An opened stream. ``windows`` is None when its sequences have several lengths.

    ``masks``: rows of its ``loss_mask.npy``, or None.
    """

    tokens: IndexedTokens
    windows: np.ndarray | None
    lengths: np.ndarray | None
    masks: np.ndarray | None
    vocab_size: int | None
    eos_id: int | None
    said: StreamClaims = field(repr=False)


def stream_checks(prefix: Path, statistics: StreamClaims, level: Level, digests: dict[str, str]) -> Iterator[Check]:
    """Yield the checks of a stream.

    Args:
        prefix: path without ``.bin`` / ``.idx``.
        statistics: of its ledger, as far as there is one.
        level: how much is read.
        digests: gets the SHA-256 of the ``.bin`` when it was read whole.
    """
    opened: list[_Stream] = []
    yield checked("sizes", lambda: _open(prefix, statistics, opened))
    if not opened or level == "sizes":
        return
    (stream,) = opened
    if level == "sampled":
        if (windows := stream.windows) is not None:
            yield checked("windows", lambda: check_sample(prefix, windows, stream.lengths, statistics, stream.masks))
        return
    yield checked("index", lambda: _check_index(stream))
    if stream.lengths is not None:
        yield checked("lengths", lambda: _check_lengths(stream))
        if (prefix.parent / SIDECAR_FILE).exists():
            yield checked("sidecar", lambda: _check_sidecar(stream))
    yield checked("windows" if stream.windows is not None else "tokens", lambda: _check_tokens(stream, digests))


def facts(statistics: StreamClaims) -> tuple[int | None, int | None]:
    """Return the size of the vocabulary and the id of EOS as far as statistics of a stream name them."""
    tokenizer = statistics.get("tokenizer") or {}
    return tokenizer.get("vocab_size"), statistics.get("eos_id", tokenizer.get("eos_id"))


def _open(prefix: Path, statistics: StreamClaims, into: list[_Stream]) -> dict[str, int]:
    tokens = open_indexed(prefix)
    lengths_path = prefix.parent / TOKEN_LENGTHS_FILE
    padded = lengths_path.exists()
    one_length = len(tokens) == 0 or len(tokens.tokens) == len(tokens) * int(tokens.lengths[0])
    masks_path = prefix.parent / LOSS_MASK_FILE
    masked = masks_path.exists()
    if padded and masked:
        raise StreamError(f"{prefix.parent} has {TOKEN_LENGTHS_FILE} and {LOSS_MASK_FILE}; a stream has one of them")
    windows = tokens.windows() if padded or masked or "windows" in statistics or one_length else None
    lengths = open_lengths(lengths_path, len(tokens)) if padded else None
    masks = open_loss_mask(masks_path, len(tokens), windows.shape[1] - 1) if masked and windows is not None else None
    if statistics.get("windows", len(tokens)) != len(tokens):
        raise StreamError(
            f"{prefix}: expected {statistics['windows']:,} windows as its ledger says, found {len(tokens):,}"
        )
    into.append(_Stream(tokens, windows, lengths, masks, *facts(statistics), statistics))
    if windows is None:
        return {"sequences": len(tokens), "tokens": len(tokens.tokens)}
    return {"windows": len(tokens), "tokens each": windows.shape[1], "bytes a token": windows.dtype.itemsize}


def open_lengths(path: Path, windows: int) -> np.ndarray:
    """Map ``token_lengths.npy``.

    Raises:
        StreamError: it is no int32 array with one length a window.
    """
    try:
        lengths: np.ndarray = np.load(path, mmap_mode="r" if windows else None)  # an empty file cannot be mapped
    except Exception as error:  # a damaged header raises what the parser of Python raises
        raise StreamError(f"{path} is no array of NumPy, or is truncated ({error}); write the stream again") from error
    if lengths.shape != (windows,) or lengths.dtype != np.int32:
        raise StreamError(
            f"{path} holds {lengths.dtype} {lengths.shape}, expected int32 ({windows},): one length a window"
        )
    return lengths


def check_sample(
    where: Path,
    windows: np.ndarray,
    lengths: np.ndarray | None,
    statistics: StreamClaims,
    masks: np.ndarray | None = None,
) -> dict[str, int]:
    """Look at a seeded sample of windows, the first and the last; return how many.

    Args:
        where: prefix of the stream, for the message.
        windows: tokens, (n, window).
        lengths: content tokens of each window, (n,), or None when windows are not padded.
        statistics: of the stream, as far as there are any.
        masks: rows of its ``loss_mask.npy``, (n, ceil(seq_length / 8)), or None when it has none.

    Raises:
        StreamError: names window, position, what was expected and found.
    """
    vocab_size, eos_id = facts(statistics)
    numbers = sampled(windows)
    tokens = windows[numbers]
    check_ids(where, numbers, tokens, vocab_size, None, Seen())
    if lengths is not None and len(numbers):
        own = lengths[numbers]
        check_window_lengths(where, numbers, own, windows.shape[1])
        check_padding(where, numbers, tokens, own, int(tokens[0, own[0]]) if eos_id is None else eos_id)
    if masks is not None:
        check_masks(where, numbers, tokens, masks[numbers], eos_id, clears_eos_alone=TOMBSTONES in statistics)
    return {"windows looked at": len(numbers)}


def _check_index(stream: _Stream) -> dict[str, int]:
    """Sequences follow each other without gaps; in a stream of windows each is a window and a document."""
    tokens = stream.tokens
    tokens.check()
    numbers = {"sequences": len(tokens), "documents": len(tokens.document_index) - 1}
    if stream.windows is None:
        return numbers
    window = stream.windows.shape[1]
    for start in range(0, len(tokens), _CHUNK):
        lengths = tokens.lengths[start : start + _CHUNK]
        boundaries = tokens.document_index[start : start + len(lengths)]
        own = np.arange(start, start + len(lengths))
        for what, found, expected in (("length", lengths, window), ("document boundary", boundaries, own)):
            if (wrong := found != expected).any():
                i = int(np.argmax(wrong))
                right = int(np.broadcast_to(expected, wrong.shape)[i])
                raise StreamError(
                    f"{tokens.prefix}.idx window {start + i:,}: expected {what} {right}, found {found[i]}"
                )
    return numbers


def _check_lengths(stream: _Stream) -> dict[str, int]:
    assert stream.lengths is not None and stream.windows is not None
    path, content = stream.tokens.prefix.parent / TOKEN_LENGTHS_FILE, 0
    for start in range(0, len(stream.lengths), _CHUNK):
        lengths = stream.lengths[start : start + _CHUNK]
        check_window_lengths(path, np.arange(start, start + len(lengths)), lengths, stream.windows.shape[1])
        content += int(lengths.sum(dtype=np.int64))
    if stream.said.get("tokens", content) != content:
        raise StreamError(
            f"{path}: expected {stream.said['tokens']:,} tokens of content in all as the ledger says, found {content:,}"
        )
    return {"tokens of content": content}


def _check_sidecar(stream: _Stream) -> dict[str, int]:
    assert stream.lengths is not None
    path, row = stream.tokens.prefix.parent / SIDECAR_FILE, 0
    with pq.ParquetFile(path) as file:
        if file.metadata.num_rows != len(stream.lengths):
            raise StreamError(f"{path}: expected {len(stream.lengths):,} rows, found {file.metadata.num_rows:,}")
        for batch in file.iter_batches(columns=["token_length"]):
            found = batch.column(0).to_numpy(zero_copy_only=False)
            wrong = found != stream.lengths[row : row + len(found)]
            if wrong.any():
                i = int(np.argmax(wrong))
                raise StreamError(
                    f"{path} row {row + i:,}: expected token_length {int(stream.lengths[row + i])} as in "
                    f"{TOKEN_LENGTHS_FILE}, found {found[i]}"
                )
            row += len(found)
    return {"rows": row}


def _check_tokens(stream: _Stream, digests: dict[str, str]) -> dict[str, int]:
    """Every window, and the SHA-256 of the ``.bin`` on the way."""
    path, prefix = with_name(stream.tokens.prefix, ".bin"), stream.tokens.prefix
    window = 1 if stream.windows is None else stream.windows.shape[1]
    eos_id, seen, digest, count = stream.eos_id, Seen(), new_digest(), len(stream.tokens.tokens) // window
    counted, only_eos = 0, TOMBSTONES in stream.said
    fault: StreamError | None = None
    with closing(scan(path, stream.tokens.tokens.dtype, window, digest)) as blocks:
        for numbers, tokens in blocks:
            if fault is not None:  # the rest is read for its digest
                continue
            try:
                lengths = None if stream.lengths is None else stream.lengths[numbers[0] : numbers[-1] + 1]
                if lengths is not None:
                    check_window_lengths(prefix, numbers, lengths, window)
                    eos_id = int(tokens[0, lengths[0]]) if eos_id is None else eos_id
                    check_padding(prefix, numbers, tokens, lengths, eos_id)
                if stream.masks is not None:
                    masks = stream.masks[numbers[0] : numbers[-1] + 1]
                    counted += check_masks(prefix, numbers, tokens, masks, eos_id, clears_eos_alone=only_eos)
                check_ids(prefix, numbers, tokens, stream.vocab_size, eos_id, seen)
            except StreamError as error:
                fault = error
    digests[path.name] = digest.hexdigest()
    if fault is not None:
        raise fault
    found = {"windows" if stream.windows is not None else "tokens": count, "is the largest id": seen.largest}
    if stream.masks is not None:
        if counted != (said := stream.said.get("loss_tokens", counted)):
            raise StreamError(
                f"{prefix.parent / LOSS_MASK_FILE}: expected {said:,} predictions that count as the ledger says, found "
                f"{counted:,}"
            )
        found["predictions that count"] = counted
    if eos_id is None:
        return found
    if stream.lengths is not None:
        padding = count * window - int(stream.lengths.sum(dtype=np.int64))
        return {**found, "EOS in content": seen.eos - padding}
    _check_eos(stream, seen.eos)
    return {**found, "EOS": seen.eos}


def _check_eos(stream: _Stream, found: int) -> None:
    """Compare the EOS of a stream that is not padded with what its ledger allows."""
    said, prefix = stream.said, stream.tokens.prefix
    if "eos_tokens" in said:
        if found != said["eos_tokens"]:
            raise StreamError(f"{prefix}: expected {said['eos_tokens']:,} EOS as its ledger says, found {found:,}")
    elif "documents" in said:
        least = said["documents"] - said.get("remainder_tokens", 0)
        if found < least:
            raise StreamError(f"{prefix}: expected at least {least:,} EOS for its documents, found {found:,}")
        special_ids = (said.get("tokenizer") or {}).get("special_ids")
        buried = said.get(TOMBSTONES, {"documents": 0, "tokens": 0})
        more = buried["tokens"] - buried["documents"]  # the content of excluded documents, which is EOS too
        if special_ids is not None and found > said["documents"] + special_ids + more:
            of_excluded = f", and {more:,} of excluded documents" if more else ""
            raise StreamError(
                f"{prefix}: expected at most {said['documents'] + special_ids + more:,} EOS, one for each document and "
                f"{special_ids:,} that texts spell{of_excluded}, found {found:,}"
            )
