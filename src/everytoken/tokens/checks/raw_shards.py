"""Checks of raw shards: their manifest, and every token against it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.checks import Checks, Mismatch, made_by, require_none
from everytoken.tokens.checks.stored import CheckedFolder, Level
from everytoken.tokens.checks.windows import Seen, check_ids, new_digest, sampled, scan
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams import (
    DTYPES,
    MANIFEST_FILE,
    FlatTokens,
    content_tokens,
    open_raw_shards,
    read_raw_shards_manifest,
)

_PADDING_AT_ONCE = 1 << 20


def _check_manifest(stored: CheckedFolder) -> dict[str, int]:
    """The manifest agrees with itself and with the ledger."""
    stored.manifest = manifest = read_raw_shards_manifest(stored.folder)
    path, shards, statistics = stored.folder / MANIFEST_FILE, manifest["shards"], stored.statistics
    sums = [("tokens of all shards", sum(shard["tokens"] for shard in shards), manifest["tokens"])]
    padding, left_out = manifest.get("padding_tokens", 0), manifest.get("left_out", {})
    sums.append(("tokens of padding of all shards", sum(shard.get("padding_tokens", 0) for shard in shards), padding))
    for shard in shards:
        of_sources = sum(shard["tokens_by_source"].values())
        sums.append((f"tokens of the sources of {shard['name']}", of_sources, content_tokens(shard)))
    for source, held in manifest["by_source"].items():
        in_shards = sum(shard["tokens_by_source"].get(source, 0) for shard in shards)
        sums.append((f"tokens of {source} in all shards", in_shards, held["tokens"]))
    if "datasets" in manifest:  # older ones name none
        for name in ("tokens", "documents"):
            of_datasets = sum(dataset[name] for dataset in manifest["datasets"])
            more = left_out.get(name, 0) - (padding if name == "tokens" else 0)
            sums.append((f"{name} of all datasets", of_datasets, manifest[name] + more))
        numbers = [dataset["dataset"] for dataset in manifest["datasets"]]
        sums.append(("numbers of the datasets", len(set(numbers) & set(range(len(numbers)))), len(numbers)))
    for name in ("tokens", "documents", "eos_id", "vocab_size"):
        sums.append((f"{name} of the ledger", statistics.get(name, manifest[name]), manifest[name]))
    sums.append(("tokens of padding of the ledger", statistics.get("padding_tokens", padding), padding))
    for shard in shards if left_out else shards[:-1]:
        sums.append((f"tokens of {shard['name']}", shard["tokens"], manifest["shard_size_tokens"]))
    for what, found, expected in sums:
        if found != expected:
            raise StreamError(f"{path}: {what} are {found:,}, expected {expected:,}: it was edited")
    return {"shards": len(shards), "tokens": manifest["tokens"], "documents": manifest["documents"]}


def _tokens(stored: CheckedFolder) -> tuple[FlatTokens, dict[str, Any]]:
    manifest = made_by("manifest", stored.manifest)
    return open_raw_shards(stored.folder, manifest), manifest


def _raw_sizes(stored: CheckedFolder) -> dict[str, int]:
    tokens, manifest = _tokens(stored)
    return {"tokens": len(tokens), "bytes a token": DTYPES[manifest["dtype"]].itemsize}


def _check_some(stored: CheckedFolder) -> dict[str, int]:
    tokens, manifest = _tokens(stored)
    count = sample_tokens(stored.folder, tokens, manifest["vocab_size"])
    if len(tokens) and tokens[-1] != manifest["eos_id"] and not _cut_documents(manifest):
        raise Mismatch(str(stored.folder), f"EOS {manifest['eos_id']} at the end", str(tokens[-1]))
    return {"pieces of 257 tokens looked at": count}


def sample_tokens(where: Path, tokens: FlatTokens, vocab_size: int | None) -> int:
    """Look at the ids of seeded pieces of 257 tokens, the first and the last; return how many.

    Raises:
        StreamError: an id is negative, or not below ``vocab_size``, where that is known.
    """
    windows = tokens.windows(256)
    numbers = sampled(windows)  # type: ignore[arg-type]  # only its length is asked for
    check_ids(where, numbers, windows.read(numbers), vocab_size, None, Seen())
    return len(numbers)


def _check_shards(stored: CheckedFolder) -> dict[str, int]:
    """Every token of every shard, and its SHA-256 on the way."""
    manifest, faults, seen = made_by("manifest", stored.manifest), [], Seen()
    dtype, eos_id, vocab_size = DTYPES[manifest["dtype"]], manifest["eos_id"], manifest["vocab_size"]
    for shard in manifest["shards"]:
        path, own, digest = stored.folder / shard["name"], Seen(), new_digest()
        try:
            with closing(scan(path, dtype, 1, digest)) as blocks:
                for numbers, tokens in blocks:
                    check_ids(path, numbers, tokens, vocab_size, eos_id, own)
            stored.digests[path.name] = found = digest.hexdigest()
            if found != shard["sha256"]:
                raise Mismatch(str(path), f"SHA-256 {shard['sha256'][:16]}", found[:16])
            if own.eos != shard["eos_tokens"]:
                raise Mismatch(str(path), f"{shard['eos_tokens']:,} EOS", f"{own.eos:,}")
            if not manifest.get("cross_document_boundary", True):
                _check_padding(path, dtype, shard, eos_id)
        except (StreamError, Mismatch, OSError) as error:
            faults.append(str(error))
        seen.largest, seen.eos = max(seen.largest, own.largest), seen.eos + own.eos
    require_none(faults)
    padding = manifest.get("padding_tokens", 0)
    if seen.eos < manifest["documents"] + padding - _cut_documents(manifest):
        wanted = f"an EOS for each of {manifest['documents']:,} documents"
        wanted += f", and {padding:,} of padding" if padding else ""
        raise Mismatch(str(stored.folder), wanted, f"{seen.eos:,}")
    found = {"tokens": manifest["tokens"], "is the largest id": seen.largest, "EOS": seen.eos}
    return {**found, "EOS of padding": padding} if "padding_tokens" in manifest else found


def _cut_documents(manifest: Mapping[str, Any]) -> int:
    """Return how many documents have no EOS in the shards: the last one, where it continues behind the last shard."""
    return int(manifest.get("left_out", {}).get("cut_documents", 0))


def _check_padding(path: Path, dtype: np.dtype[Any], shard: Mapping[str, Any], eos_id: int) -> None:
    """Check that a shard ends with the EOS of a document and, from there on, nothing but EOS."""
    ids, begin = np.memmap(path, dtype, "r"), content_tokens(shard) - 1
    for start in range(begin, len(ids), _PADDING_AT_ONCE):
        wrong = ids[start : start + _PADDING_AT_ONCE] != eos_id
        if wrong.any():
            position = start + int(np.argmax(wrong))
            what = f"padding {eos_id}" if position > begin else f"EOS {eos_id} of the last document"
            raise Mismatch(f"{path} position {position:,}", what, str(int(ids[position])))


_SIZES = (("manifest", _check_manifest), ("sizes", _raw_sizes))
RAW_SHARDS_CHECKS: dict[Level, Checks[CheckedFolder]] = {
    "sizes": _SIZES,
    "sampled": (*_SIZES, ("shards", _check_some)),
    "full": (*_SIZES, ("shards", _check_shards)),
}
"""Checks of raw shards, by level."""
