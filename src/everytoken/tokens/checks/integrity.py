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
from typing import Any, Literal, cast

from everytoken.shards import (
    LEDGER_FILE,
    Artifact,
    ShardsError,
    Store,
    StoredPart,
    artifact_root_digest,
    digests_in,
    file_sha256,
    is_store,
    parse_artifact_ledger,
    read_any_ledger,
    read_artifact_ledger,
    require_root_digest,
    stored_content,
)
from everytoken.system_errors import raise_trouble
from everytoken.tokens.checks.check import Check, Level, checked, require
from everytoken.tokens.checks.raw_shards import raw_checks
from everytoken.tokens.checks.streams import StreamClaims, TokenizerClaims, stream_checks
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams import MANIFEST_FILE, with_name
from everytoken.tokens.tokenizer import TOKENIZER_FILE, open_tokenizer

__all__ = [
    "LEDGER_FILE",
    "Check",
    "Level",
    "check_stream",
    "find_stored",
    "_read_ledger",
    "recorded_statistics",
    "require",
    "verify",
]


def find_stored(path: Path) -> list[Path]:
    """Return what `verify` can look at in ``path``: itself, or the folders below it that hold something, in order.

    Raises:
        StreamError: there is nothing.
    """
    if _kind(path) is not None:
        return [path]
    found: list[Path] = []
    for folder in sorted(path.rglob("*")) if path.is_dir() else []:
        hidden = any(part.startswith(".") for part in folder.relative_to(path).parts)
        if not hidden and folder.is_dir() and _kind(folder) and not any(folder.is_relative_to(one) for one in found):
            found.append(folder)
    if not found:
        raise StreamError(f"{path} holds nothing to verify: no {LEDGER_FILE}, no stream (.idx), no {MANIFEST_FILE}")
    return found


def tokenizers_of(paths: Sequence[Path]) -> dict[Path, TokenizerClaims]:
    """Return what is known of the tokenizer of each path that was made, in one step or two, from one of the others.

    Which was made from which is told by the root digests in the recipes, so a stream is never compared with a tokenizer
    that was trained again since.

    Returns:
        By path: vocab_size, eos_id, and special_ids (special tokens in the content of the documents) when the ledger of
        their store counts them.
    """
    ledgers = {path: ledger for path in paths if (ledger := _any_ledger(path)) is not None}
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


def _any_ledger(folder: Path) -> dict[str, Any] | None:
    try:
        return read_any_ledger(folder)
    except (OSError, ShardsError):  # a damaged one is reported where it is checked
        return None


def verify(
    path: Path, level: Level, tokenizer: TokenizerClaims | None = None, *, with_ledger: bool = False
) -> list[Check]:
    """Check what ``path`` holds: a stream (folder or prefix), raw shards, a tokenizer, any other artifact, a store.

    Args:
        path: a folder, or the prefix of a stream.
        level: how much is read.
        tokenizer: what is known of the stream's tokenizer (`tokenizers_of`); what its ledger says comes first.
        with_ledger: whether it is a fault that there is none (streams of other programs have none).

    Raises:
        StreamError: it holds nothing that can be checked.
    """
    kind = _kind(path)
    if kind is None:
        raise StreamError(f"{path} holds nothing to verify: no {LEDGER_FILE}, no stream (.idx), no {MANIFEST_FILE}")
    if kind == "store":
        return _check_store(path, level)
    folder = path if path.is_dir() else path.parent
    checks: list[Check] = []
    ledger: dict[str, Any] = {}
    if with_ledger or (folder / LEDGER_FILE).exists():
        checks.append(checked("ledger", lambda: _ledger_numbers(folder, ledger)))
        if ledger:
            checks.append(checked("files", lambda: _check_files(folder, ledger)))
    digests: dict[str, str] = {}  # of files that are read whole anyway
    statistics = dict(ledger.get("statistics", {}))
    statistics["tokenizer"] = {**(tokenizer or {}), **statistics.get("tokenizer", {})}
    if kind == "stream":
        checks += stream_checks(_prefix(path), cast(StreamClaims, statistics), level, digests)
    elif kind == "raw shards":
        checks += raw_checks(folder, statistics, level, digests)
    elif ledger and (folder / TOKENIZER_FILE).exists() and level != "sizes":
        checks.append(checked("tokenizer", lambda: _check_tokenizer(folder, ledger)))
    if ledger and level == "full":
        checks.append(checked("digests", lambda: _check_digests(folder, ledger, digests)))
    return checks


def stored_bytes(path: Path) -> int:
    """Return the bytes of what `verify` looks at in ``path``."""
    files = path.rglob("*") if path.is_dir() else path.parent.glob(f"{_prefix(path).name}.*")
    return sum(file.stat().st_size for file in files if file.is_file())


def check_stream(stream: Artifact | Path, level: Level = "full") -> list[Check]:
    """Check a Megatron stream, in an artifact, a folder or at a prefix, and its ledger where it has one."""
    path = stream.folder if isinstance(stream, Artifact) else stream
    if path is None:
        raise StreamError("the stream is only planned; save it, then use what its store loads")
    return verify(path, level)


def _kind(path: Path) -> Literal["stream", "raw shards", "store", "artifact"] | None:
    if not path.is_dir():
        return "stream" if any(with_name(prefix, ".idx").is_file() for prefix in (path, path.with_suffix(""))) else None
    if list(path.glob("*.idx")) or list(path.glob("*.bin")):
        if list(path.glob("*.idx")) or not ((path / MANIFEST_FILE).exists() or _says_no_index(path)):
            return "stream"
        return "raw shards" if (path / MANIFEST_FILE).exists() else "artifact"
    if (path / MANIFEST_FILE).exists() and not (path / LEDGER_FILE).exists():
        return "raw shards"
    if (path / ".making").exists() or list(path.glob("part_*.parquet")):
        return "store"
    if not (path / LEDGER_FILE).exists():
        return None
    if (path / LEDGER_FILE).is_dir():
        return "artifact"
    return "store" if is_store(path) else "artifact"


def _says_no_index(folder: Path) -> bool:
    """Return whether the folder is an artifact whose ledger has no .idx (files of ids that are no stream yet)."""
    ledger = _any_ledger(folder)
    return ledger is not None and not any(name.endswith(".idx") for name in ledger.get("files", {}))


def _prefix(path: Path) -> Path:
    if path.is_dir():
        found = sorted({one.with_suffix("") for pattern in ("*.idx", "*.bin") for one in path.glob(pattern)})
        return found[0] if len(found) == 1 else path / "stream"
    return path if with_name(path, ".idx").is_file() else path.with_suffix("")


def _read_ledger(folder: Path) -> dict[str, Any]:
    """Return the ledger of an artifact; its checksum and root digest are computed again.

    Raises:
        StreamError: it is damaged or was edited.
    """
    try:
        return read_artifact_ledger(folder / LEDGER_FILE)
    except (ShardsError, OSError) as error:
        raise_trouble(error)
        raise StreamError(str(error)) from error


def recorded_statistics(folder: Path) -> StreamClaims:
    """Return the statistics in the ledger of a stream, none where there is no ledger; every file has its size.

    Raises:
        StreamError: the ledger was edited, or a file is missing or of another size.
    """
    if not (folder / LEDGER_FILE).exists():
        return {}
    ledger = _read_ledger(folder)
    _check_files(folder, ledger)
    return cast(StreamClaims, ledger["statistics"])


def _ledger_numbers(folder: Path, into: dict[str, Any]) -> dict[str, int]:
    path = folder / LEDGER_FILE
    try:
        into.update(parse_artifact_ledger(path))  # the files are looked at even where the root digest is not theirs
        require_root_digest(path, into)
    except ShardsError as error:
        raise StreamError(str(error)) from error
    return {"files": len(into["files"])}


def _check_files(folder: Path, ledger: Mapping[str, Any]) -> dict[str, int]:
    """Every file that the ledger names is there with its size, and no other."""
    faults = []
    for name, entry in ledger["files"].items():
        size = (folder / name).stat().st_size if (folder / name).is_file() else None
        if size != entry["bytes"]:
            found = "it is missing" if size is None else f"found {size:,}"
            faults.append(f"{folder / name}: expected {entry['bytes']:,} bytes, {found}")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(".") and name != LEDGER_FILE and name not in ledger["files"]:
            faults.append(f"{path}: the ledger knows no such file")
    if faults:
        raise StreamError("; ".join(faults))
    return {"files": len(ledger["files"]), "bytes": sum(entry["bytes"] for entry in ledger["files"].values())}


def _check_digests(folder: Path, ledger: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, int]:
    """Every file has its SHA-256, every table its content digest, and the digests sum up to the root digest."""
    faults = []
    for name, entry in ledger["files"].items():
        found = known.get(name) or (file_sha256(folder / name) if (folder / name).is_file() else "no file")
        if found != entry["sha256"]:
            faults.append(f"{folder / name}: expected SHA-256 {entry['sha256'][:16]}, found {found[:16]}")
        elif "content_digest" in entry and (rows := stored_content(folder / name)[1]) != entry["content_digest"]:
            faults.append(f"{folder / name}: expected content {entry['content_digest'][:16]}, found {rows[:16]}")
    if (root := artifact_root_digest(ledger["files"], ledger["statistics"])) != ledger["root_digest"]:
        faults.append(f"{folder / LEDGER_FILE}: its root digest is {ledger['root_digest'][:16]}, expected {root[:16]}")
    if faults:
        raise StreamError("; ".join(faults))
    return {"files with their SHA-256": len(ledger["files"])}


def _check_tokenizer(folder: Path, ledger: Mapping[str, Any]) -> dict[str, int]:
    facts = ledger.get("statistics", {})
    opened = open_tokenizer(Artifact(folder=folder, ledger=ledger), facts.get("eos_token", ""))
    found = {"vocab_size": opened.vocab_size, "eos_id": opened.eos_id, "sha256": file_sha256(folder / TOKENIZER_FILE)}
    for name, value in found.items():
        if facts.get(name) != value:
            raise StreamError(f"{folder / TOKENIZER_FILE}: expected {name} {facts.get(name)}, found {value}")
    return {"tokens in the vocabulary": opened.vocab_size, "is the id of EOS": opened.eos_id}


def _check_store(folder: Path, level: Level) -> list[Check]:
    def sizes() -> dict[str, int]:
        stored = Store(folder).load()
        return {"parts": len(stored), "rows": 0 if stored.ledger is None else stored.ledger.rows}

    def digests() -> dict[str, int]:
        stored, faults = Store(folder).load(), []
        files = [part for part in (*stored.parts, *stored.set_aside) if isinstance(part, StoredPart)]
        for part in files:
            try:
                part.verify()
                rows, found = stored_content(part.path)
                if found != part.digest:
                    faults.append(f"{part.path}: expected content {part.digest[:16]}, found {found[:16]}")
                if rows != part.rows:
                    faults.append(f"{part.path}: expected {part.rows:,} rows, found {rows:,}")
            except ShardsError as error:
                faults.append(str(error))
        if faults:
            raise StreamError("; ".join(faults))
        return {"files with their SHA-256": len(files)}

    checks = [checked("sizes", sizes)]
    if level == "full" and checks[0].ok:
        checks.append(checked("digests", digests))
    return checks
