"""Checks of the arrays of a reflected stream, and of its tokens by voice."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from everytoken.checks import Mismatch, made_by
from everytoken.tokens.checks.arrays import open_array
from everytoken.tokens.checks.stored import CheckedFolder
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams import NO_REFLECTION, REFLECTION_INDEX_FILE, REFLECTION_LENGTHS_FILE

_CHUNK = 1 << 20


def check_spliced(stored: CheckedFolder) -> dict[str, int] | None:
    """Check that each reflection is in the content of its window, and all of them are the tokens that the ledger says.

    Raises:
        StreamError: names the first window of which the arrays contradict each other.
    """
    folder = stored.prefix.parent
    if not (folder / REFLECTION_INDEX_FILE).exists():
        return None
    lengths = made_by("sizes", stored.stream).lengths
    if lengths is None:
        raise StreamError(f"{folder} has {REFLECTION_INDEX_FILE} and no lengths of its windows: write the stream again")
    places, sizes = (
        open_array(folder / name, len(lengths), np.int32) for name in (REFLECTION_INDEX_FILE, REFLECTION_LENGTHS_FILE)
    )
    reflected = tokens = 0
    for start in range(0, len(lengths), _CHUNK):
        here = slice(start, start + _CHUNK)
        _require_inside(folder, start, lengths[here], places[here], sizes[here])
        reflected += int(np.count_nonzero(sizes[here]))
        tokens += int(sizes[here].sum(dtype=np.int64))
    by_voice = stored.statistics.get("reflection_tokens", {})
    if by_voice and sum(by_voice.values()) != tokens:
        by_ledger = ", ".join(f"{count:,} of {voice}" for voice, count in by_voice.items())
        raise Mismatch(str(folder / REFLECTION_LENGTHS_FILE), f"{by_ledger} tokens as the ledger says", f"{tokens:,}")
    if (said := stored.statistics.get("reflected_windows", reflected)) != reflected:
        raise Mismatch(str(folder), f"{said:,} windows with a reflection as the ledger says", f"{reflected:,}")
    own = int(lengths.sum(dtype=np.int64)) - tokens
    if (said := stored.statistics.get("document_tokens", own)) != own:
        raise Mismatch(str(folder), f"{said:,} tokens of documents as the ledger says", f"{own:,}")
    return {"reflections": reflected, **{f"tokens of {voice}": count for voice, count in by_voice.items()}}


def _require_inside(folder: Path, first: int, lengths: np.ndarray, places: np.ndarray, sizes: np.ndarray) -> None:
    inside = (sizes > 0) & (places >= 0) & (places.astype(np.int64) + sizes <= lengths)
    holds = inside | ((sizes == 0) & (places == NO_REFLECTION))
    if not holds.all():
        at = int(np.argmin(holds))
        raise StreamError(
            f"{folder} window {first + at:,} of {lengths[at]:,} tokens: a reflection of {sizes[at]:,} after "
            f"{places[at]:,} is not in it. Write the stream again"
        )
