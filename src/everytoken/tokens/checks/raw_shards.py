"""Checks of raw shards: their manifest, and every token against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from everytoken.tokens.checks.check import Check, Level, checked
from everytoken.tokens.checks.windows import Seen, check_ids, new_digest, sampled, scan
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams import DTYPES, MANIFEST_FILE, open_raw_shards, read_raw_shards_manifest


def raw_checks(folder: Path, statistics: Mapping[str, Any], level: Level, digests: dict[str, str]) -> Iterator[Check]:
    """Yield the checks of a folder of raw shards.

    Args:
        folder: of the shards.
        statistics: of its ledger, as far as there is one.
        level: how much is read.
        digests: gets the SHA-256 of each shard that was read whole.
    """
    manifest: dict[str, Any] = {}
    yield checked("manifest", lambda: _check_manifest(folder, statistics, manifest))
    if not manifest:
        return
    sizes = checked("sizes", lambda: _raw_sizes(folder, manifest))
    yield sizes
    if level == "full":
        yield checked("shards", lambda: _check_shards(folder, manifest, digests))
    elif level == "sampled" and sizes.ok:
        yield checked("shards", lambda: _sample_shards(folder, manifest))


def _check_manifest(folder: Path, statistics: Mapping[str, Any], into: dict[str, Any]) -> dict[str, int]:
    """The manifest agrees with itself and with the ledger."""
    manifest = read_raw_shards_manifest(folder)
    into.update(manifest)
    path, shards = folder / MANIFEST_FILE, manifest["shards"]
    sums = [("tokens of all shards", sum(shard["tokens"] for shard in shards), manifest["tokens"])]
    for shard in shards:
        of_sources = sum(shard["tokens_by_source"].values())
        sums.append((f"tokens of the sources of {shard['name']}", of_sources, shard["tokens"]))
    for source, held in manifest["by_source"].items():
        in_shards = sum(shard["tokens_by_source"].get(source, 0) for shard in shards)
        sums.append((f"tokens of {source} in all shards", in_shards, held["tokens"]))
    if "datasets" in manifest:  # older ones name none
        for name in ("tokens", "documents"):
            of_datasets = sum(dataset[name] for dataset in manifest["datasets"])
            sums.append((f"{name} of all datasets", of_datasets, manifest[name]))
        numbers = [dataset["dataset"] for dataset in manifest["datasets"]]
        sums.append(("numbers of the datasets", len(set(numbers) & set(range(len(numbers)))), len(numbers)))
    for name in ("tokens", "documents", "eos_id", "vocab_size"):
        sums.append((f"{name} of the ledger", statistics.get(name, manifest[name]), manifest[name]))
    for shard in shards[:-1]:
        sums.append((f"tokens of {shard['name']}", shard["tokens"], manifest["shard_size_tokens"]))
    for what, found, expected in sums:
        if found != expected:
            raise StreamError(f"{path}: {what} are {found:,}, expected {expected:,}: it was edited")
    return {"shards": len(shards), "tokens": manifest["tokens"], "documents": manifest["documents"]}


def _raw_sizes(folder: Path, manifest: dict[str, Any]) -> dict[str, int]:
    return {"tokens": len(open_raw_shards(folder, manifest)), "bytes a token": DTYPES[manifest["dtype"]].itemsize}


def _sample_shards(folder: Path, manifest: dict[str, Any]) -> dict[str, int]:
    tokens = open_raw_shards(folder, manifest)
    windows = tokens.windows(256)
    numbers = sampled(windows)  # type: ignore[arg-type]  # only its length is asked for
    check_ids(folder, numbers, windows.read(numbers), manifest["vocab_size"], None, Seen())
    if len(tokens) and tokens[-1] != manifest["eos_id"]:
        raise StreamError(f"{folder}: expected EOS {manifest['eos_id']} at the end, found {tokens[-1]}")
    return {"pieces of 257 tokens looked at": len(numbers)}


def _check_shards(folder: Path, manifest: dict[str, Any], digests: dict[str, str]) -> dict[str, int]:
    """Every token of every shard, and its SHA-256 on the way."""
    faults, seen = [], Seen()
    dtype, eos_id, vocab_size = DTYPES[manifest["dtype"]], manifest["eos_id"], manifest["vocab_size"]
    for shard in manifest["shards"]:
        path, own, digest = folder / shard["name"], Seen(), new_digest()
        try:
            with closing(scan(path, dtype, 1, digest)) as blocks:
                for numbers, tokens in blocks:
                    check_ids(path, numbers, tokens, vocab_size, eos_id, own)
            digests[path.name] = found = digest.hexdigest()
            if found != shard["sha256"]:
                raise StreamError(f"{path}: expected SHA-256 {shard['sha256'][:16]}, found {found[:16]}")
            if own.eos != shard["eos_tokens"]:
                raise StreamError(f"{path}: expected {shard['eos_tokens']:,} EOS, found {own.eos:,}")
        except (StreamError, OSError) as error:
            faults.append(str(error))
        seen.largest, seen.eos = max(seen.largest, own.largest), seen.eos + own.eos
    if faults:
        raise StreamError("; ".join(faults))
    if seen.eos < manifest["documents"]:
        raise StreamError(
            f"{folder}: expected an EOS for each of {manifest['documents']:,} documents, found {seen.eos:,}"
        )
    return {"tokens": manifest["tokens"], "is the largest id": seen.largest, "EOS": seen.eos}
