"""Whether what is stored is what was written: streams, raw shards, and what they are made with.

`verify` looks at a folder, sees by its content what it holds, and returns one `Check` for each thing that must hold,
with the numbers that were found, or the fault by name: which file, window, position, what was expected and found.
Nothing is raised for bad data, so that one fault does not hide the others; `require` raises the first.

Levels, each with what the one before has:

``sizes``    every file is there with the size that its ledger, index or manifest says. Reads no tokens.
``sampled``  a seeded sample of windows is looked at (`everytoken.tokens.checks.windows`). This, on one stream, is what
             runs whenever a stream is opened: about a millisecond for any size.
``full``     every token and every byte, in bounded memory and one pass: the index entry by entry, every window, every
             row of the sidecar, the SHA-256 of every file and the root digest.

What can be known. A padded stream says everything about itself. Of a compact stream the end of the last window is
dropped, so the EOS in its windows are exactly ``eos_tokens`` where the ledger has that number; else at least
documents - remainder_tokens (each document has one, and a dropped token takes away at most one), and at most documents
plus the special tokens that texts spell, where their store counted them (with ``literal``, none), plus the tokens of
excluded documents, which its loss mask must clear (`everytoken.tokens.encoding.tombstones`). Ids are compared with
the vocabulary of the tokenizer that the ledger names (statistics: ``tokenizer.vocab_size``) or that is found by the
digests in the recipes (`tokenizers_of`); where there is none, they are only not negative. What was changed in a way
that keeps all of this is found by the digests alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from everytoken.checks import (
    READ_FAULTS,
    Check,
    Checks,
    Hashing,
    Mismatch,
    made_by,
    require_files,
    require_none,
    run_checks,
)
from everytoken.shards import (
    LEDGER_FILE,
    Artifact,
    ShardsError,
    StoredPart,
    artifact_root_digest,
    digests_in,
    file_sha256,
    parse_artifact_ledger,
    read_artifact_ledger,
    require_root_digest,
    stored_content,
)
from everytoken.shards.remote import bring_whole, open_parts
from everytoken.system_errors import raise_trouble
from everytoken.tokens.checks.raw_shards import RAW_SHARDS_CHECKS
from everytoken.tokens.checks.stored import (
    CheckedFolder,
    Level,
    StreamClaims,
    TokenizerClaims,
    require_kind,
    whole_ledger,
)
from everytoken.tokens.checks.streams import STREAM_CHECKS
from everytoken.tokens.errors import StreamError, TokensError
from everytoken.tokens.tokenizer import TOKENIZER_FILE, open_tokenizer

STORED_FAULTS: tuple[type[Exception], ...] = (TokensError, *READ_FAULTS)
"""Errors that say that a stream, raw shards, an artifact or a store is damaged."""


def tokenizers_of(paths: Sequence[Path]) -> dict[Path, TokenizerClaims]:
    """Return what is known of the tokenizer of each path that was made, in one step or two, from one of the others.

    Which was made from which is told by the root digests in the recipes, so a stream is never compared with a tokenizer
    that was trained again since.

    Returns:
        By path: vocab_size, eos_id, and special_ids (special tokens in the content of the documents) when the ledger of
        their store counts them.
    """
    ledgers = {path: ledger for path in paths if (ledger := whole_ledger(path)) is not None}
    by_digest = {ledger["root_digest"]: path for path, ledger in ledgers.items()}
    made_from = {
        path: [by_digest[digest] for digest in digests_in(ledger["recipe"]) if digest in by_digest]
        for path, ledger in ledgers.items()
    }
    found = {}
    for path in ledgers:
        chain = [path, *made_from[path], *(second for first in made_from[path] for second in made_from[first])]
        known = TokenizerClaims()
        for one in chain:
            statistics = ledgers[one].get("statistics", {})
            counts = [part["statistics"].get("special_ids") for part in ledgers[one].get("parts", [])]
            if counts and None not in counts:
                known["special_ids"] = known.get("special_ids", 0) + sum(counts)
            if (one / TOKENIZER_FILE).exists() and {"vocab_size", "eos_id"} <= set(statistics):
                known |= {"vocab_size": statistics["vocab_size"], "eos_id": statistics["eos_id"]}
        if "vocab_size" in known:
            found[path] = known
    return found


def verify(
    path: Path, level: Level, tokenizer: TokenizerClaims | None = None, *, with_ledger: bool = False, covers: str = ""
) -> list[Check]:
    """Check what ``path`` holds: a stream (folder or prefix), raw shards, a tokenizer, any other artifact, a store.

    Args:
        path: a folder, or the prefix of a stream.
        tokenizer: what is known of the stream's tokenizer (`tokenizers_of`); what its ledger says comes first.
        with_ledger: whether it is a fault that there is none (streams of other programs have none).
        covers: what that is, in words.

    Raises:
        StreamError: it holds nothing that can be checked.
    """
    if level == "full":
        bring_whole(path if path.is_dir() else path.parent)
    stored = CheckedFolder(path, tokenizer or TokenizerClaims(), with_ledger)
    checks = _CHECKS[require_kind(path, stored.kind)][level]
    return list(run_checks(checks, stored, STORED_FAULTS, covers=covers))


def require(checks: Sequence[Check]) -> None:
    """Raise the first fault.

    Raises:
        StreamError: a check does not hold.
    """
    for check in checks:
        if not check.ok:
            raise StreamError(check.fault)


def recorded_statistics(folder: Path) -> StreamClaims:
    """Return the statistics in the ledger of a stream, none where there is no ledger; every file has its size.

    Raises:
        StreamError: the ledger was edited, or a file is missing or of another size.
    """
    if not (folder / LEDGER_FILE).exists():
        return {}
    try:
        ledger = read_artifact_ledger(folder / LEDGER_FILE)
        require_files(folder, _sizes(ledger), _LISTER)
    except (ShardsError, OSError) as error:
        raise_trouble(error)
        raise StreamError(str(error)) from error
    return cast(StreamClaims, ledger["statistics"])


_LISTER = "the ledger knows"


def _sizes(ledger: Mapping[str, Any]) -> dict[str, int]:
    return {name: entry["bytes"] for name, entry in ledger["files"].items()}


def _check_ledger(stored: CheckedFolder) -> dict[str, int] | None:
    path = stored.folder / LEDGER_FILE
    if not stored.needs_ledger and not path.exists():
        return None
    stored.ledger = parse_artifact_ledger(path)  # the files are looked at even where the root digest is not theirs
    require_root_digest(path, stored.ledger)
    return {"files": len(stored.ledger["files"])}


def _check_files(stored: CheckedFolder) -> dict[str, int] | None:
    """Every file that the ledger names is there with its size, and no other."""
    if stored.ledger is None:
        return None
    sizes = _sizes(stored.ledger)
    require_files(stored.folder, sizes, _LISTER)
    return {"files": len(sizes), "bytes": sum(sizes.values())}


def _check_digests(stored: CheckedFolder) -> dict[str, int] | None:
    """Every file has its SHA-256, every table its content digest, and the digests sum up to the root digest."""
    if (ledger := stored.ledger) is None:
        return None
    folder, files = stored.folder, ledger["files"]
    with Hashing() as hashing:
        there = {name: entry["sha256"] for name, entry in files.items() if (folder / name).is_file()}
        wrong = hashing.wrong(folder, there, {name: stored.digests[name] for name in there & stored.digests.keys()})
    for name, entry in files.items():
        if name not in there:
            wrong[name] = f"{folder / name}: expected SHA-256 {entry['sha256'][:16]}, found no file"
        elif "content_digest" in entry and name not in wrong:
            rows = stored_content(folder / name)[1]
            if rows != entry["content_digest"]:
                wrong[name] = f"{folder / name}: expected content {entry['content_digest'][:16]}, found {rows[:16]}"
    if (root := artifact_root_digest(files, ledger["statistics"])) != (said := ledger["root_digest"]):
        wrong[LEDGER_FILE] = f"{folder / LEDGER_FILE}: its root digest is {said[:16]}, expected {root[:16]}"
    require_none([wrong[name] for name in sorted(wrong)])
    return {"files with their SHA-256": len(files)}


def _check_tokenizer(stored: CheckedFolder) -> dict[str, int] | None:
    path = stored.folder / TOKENIZER_FILE
    if stored.ledger is None or not path.exists():
        return None
    facts = stored.ledger["statistics"]
    opened = open_tokenizer(Artifact(folder=stored.folder, ledger=stored.ledger), facts.get("eos_token", ""))
    found = {"vocab_size": opened.vocab_size, "eos_id": opened.eos_id, "sha256": file_sha256(path)}
    for name, value in found.items():
        if facts.get(name) != value:
            raise Mismatch(str(path), f"{name} {facts.get(name)}", str(value))
    return {"tokens in the vocabulary": opened.vocab_size, "is the id of EOS": opened.eos_id}


def _check_parts(stored: CheckedFolder) -> dict[str, int]:
    stored.parts = parts = open_parts(stored.folder).load()
    return {"parts": len(parts), "rows": 0 if parts.ledger is None else parts.ledger.rows}


def _check_contents(stored: CheckedFolder) -> dict[str, int]:
    """Every part has its SHA-256, its rows and its content digest."""
    parts, faults = made_by("sizes", stored.parts), []
    files = [part for part in (*parts.parts, *parts.set_aside) if isinstance(part, StoredPart)]
    for part in files:
        try:
            part.verify()
            rows, found = part.content()
            if found != part.digest:
                faults.append(f"{part.path}: expected content {part.digest[:16]}, found {found[:16]}")
            if rows != part.rows:
                faults.append(f"{part.path}: expected {part.rows:,} rows, found {rows:,}")
        except ShardsError as error:
            faults.append(str(error))
    require_none(faults)
    return {"files with their SHA-256": len(files)}


_LEDGER = (("ledger", _check_ledger), ("files", _check_files))
_TOKENIZER = (("tokenizer", _check_tokenizer),)
_BY_LEVEL: dict[str, dict[Level, Checks[CheckedFolder]]] = {
    "stream": STREAM_CHECKS,
    "raw shards": RAW_SHARDS_CHECKS,
    "artifact": {"sizes": (), "sampled": _TOKENIZER, "full": _TOKENIZER},
}
_PARTS = (("sizes", _check_parts),)
_CHECKS = {
    kind: {
        level: (*_LEDGER, *checks, *((("digests", _check_digests),) if level == "full" else ()))
        for level, checks in by_level.items()
    }
    for kind, by_level in _BY_LEVEL.items()
} | {"store": {"sizes": _PARTS, "sampled": _PARTS, "full": (*_PARTS, ("digests", _check_contents))}}
