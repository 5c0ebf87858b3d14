"""What ``everytoken tokenize`` does and prints."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everytoken.measurements import rate
from everytoken.shards import ShardsError, WorkerProcesses
from everytoken.text_to_stream.errors import PreprocessingError
from everytoken.text_to_stream.join import STREAM, JoinedFilesStatistics
from everytoken.text_to_stream.stream import Tokenization, Tokenized, tokenize
from everytoken.tokens import TokensError
from everytoken.tokens.engines import REFERENCE

EXPECTED_ERRORS = (PreprocessingError, ShardsError, TokensError, OSError)

_SHOWN_FILES = 20
_COLUMNS = {
    "documents": "documents",
    "tokens": "tokens",
    "empty_documents": "empty",
    "truncated_documents": "truncated",
    "lossy_documents": "lossy",
    "special_documents": "spell special",
}


def tokenize_files(
    files: Sequence[Path],
    *,
    out: Path,
    workers: int | None,
    max_tokens: str,
    **options: Any,
) -> Iterator[str]:
    """Yield the lines that the command prints; the options are those of the command, see `Tokenization`.

    Raises:
        PreprocessingError: see `tokenize`; or ``max_tokens`` is no number and not ``none``.
    """
    if max_tokens != "none" and not (max_tokens.isdecimal() and 2 <= int(max_tokens) < 1 << 31):
        raise PreprocessingError(f"--max-tokens is {max_tokens!r}; give a number from 2 to {(1 << 31) - 1}, or none")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("everytoken.shards.artifacts").setLevel(logging.WARNING)
    cap = None if max_tokens == "none" else int(max_tokens)
    parameters = Tokenization(max_tokens=cap, **options)
    count = workers or os.cpu_count() or 1
    done = tokenize(files, out, parameters, WorkerProcesses(count), count)
    said = done.stream.statistics_as(JoinedFilesStatistics)
    yield from _table(said["by_file"], said["total"])
    yield from _facts(done, said, count)


def _table(by_file: Mapping[str, Mapping[str, object]], total: Mapping[str, object]) -> Iterator[str]:
    yield f"{'file':<40}" + "".join(f"{name:>16}" for name in _COLUMNS.values())
    rows = [*list(by_file.items())[:_SHOWN_FILES], ("total", total)]
    for name, counts in rows:
        shown = name if len(name) <= 40 else f"...{name[-37:]}"
        if name == "total" and len(by_file) > _SHOWN_FILES:
            yield f"and {len(by_file) - _SHOWN_FILES} more files: see ledger.json"
        yield f"{shown:<40}" + "".join(f"{counts[key]:>16,}" for key in _COLUMNS)


def _facts(done: Tokenized, said: JoinedFilesStatistics, workers: int) -> Iterator[str]:
    stream, measured = done.stream, done.stream.measured
    size, tokenizer = said["total"]["utf8_bytes"], said["tokenizer"]
    yield ""
    yield f"stream  {stream.folder}/{STREAM}.bin and .idx, {tokenizer['dtype']}, EOS {tokenizer['eos_id']}"
    yield f"digest  {stream.root_digest}"
    checked = (
        "" if measured["engine"] == REFERENCE else f", {measured['rechecked_documents']:,} documents checked again"
    )
    yield f"engine  {measured['engine']} {measured['version']}{checked}"
    if done.made:
        speed = rate(size / 1e6, done.seconds)
        known = "" if speed is None else f"{speed:.1f} MB/s: "
        yield f"rate    {known}{size / 1e6:,.1f} MB of text in {done.seconds:.1f} s, {workers} workers"
    else:
        yield f"rate    nothing to do: it is there, made from these files and parameters ({done.seconds:.1f} s)"
