"""What a path holds that can be checked: a stream, raw shards, another artifact, or a store of parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import numpy as np

from everytoken.shards import LEDGER_FILE, Shards, ShardsError, files_here, is_here, is_store, read_any_ledger
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams import MANIFEST_FILE, IndexedTokens, with_name

Level = Literal["sizes", "sampled", "full"]
Kind = Literal["stream", "raw shards", "store", "artifact"]


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
    padding_tokens: int
    document_tokens: int
    reflected_windows: int
    reflection_tokens: dict[str, int]
    eos_id: int
    tokenizer: TokenizerClaims | None


@dataclass(frozen=True)
class OpenedStream:
    """A stream; ``windows`` is None when its sequences have several lengths, ``masks`` are its ``loss_mask.npy``."""

    tokens: IndexedTokens
    windows: np.ndarray | None
    lengths: np.ndarray | None
    masks: np.ndarray | None


@dataclass
class CheckedFolder:
    """What is checked, with what its checks have opened so far.

    Attributes:
        path: a folder, or the prefix of a stream.
        tokenizer: what is known of its tokenizer; what its ledger says comes first.
        needs_ledger: whether it is a fault that there is none.
        ledger: of an artifact.
        stream: opened.
        manifest: of raw shards.
        parts: of a store.
        digests: SHA-256 of files that were read whole anyway, by name.
    """

    path: Path
    tokenizer: TokenizerClaims = field(default_factory=lambda: TokenizerClaims())
    needs_ledger: bool = False
    ledger: dict[str, Any] | None = None
    stream: OpenedStream | None = None
    manifest: dict[str, Any] | None = None
    parts: Shards | None = None
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def prefix(self) -> Path:
        """The path of a stream without ``.bin`` and ``.idx``."""
        if not self.path.is_dir():
            return self.path if is_here(with_name(self.path, ".idx")) else self.path.with_suffix("")
        files = [*files_here(self.path, "*.idx"), *files_here(self.path, "*.bin")]
        found = sorted({one.with_suffix("") for one in files})
        return found[0] if len(found) == 1 else self.path / "stream"

    @property
    def statistics(self) -> StreamClaims:
        """What its ledger says of it, as far as it was read, with its tokenizer."""
        said = {} if self.ledger is None else self.ledger["statistics"]
        return cast(StreamClaims, {**said, "tokenizer": {**self.tokenizer, **said.get("tokenizer", {})}})

    @cached_property
    def kind(self) -> Kind | None:
        """What it is; None where nothing can be checked."""
        path = self.path
        if not path.is_dir():
            streams = (is_here(with_name(prefix, ".idx")) for prefix in (path, path.with_suffix("")))
            return "stream" if any(streams) else None
        has_manifest, has_ledger = (path / MANIFEST_FILE).exists(), (path / LEDGER_FILE).exists()
        if files_here(path, "*.idx"):
            return "stream"
        if files_here(path, "*.bin"):
            return "raw shards" if has_manifest else "artifact" if _says_no_index(path) else "stream"
        if has_manifest and not has_ledger:
            return "raw shards"
        if (path / ".making").exists() or list(path.glob("part_*.parquet")):
            return "store"
        if not has_ledger:
            return None
        return "store" if not (path / LEDGER_FILE).is_dir() and is_store(path) else "artifact"


def _says_no_index(folder: Path) -> bool:
    """Return whether the folder is an artifact whose ledger has no .idx (files of ids that are no stream yet)."""
    ledger = whole_ledger(folder)
    return ledger is not None and not any(name.endswith(".idx") for name in ledger.get("files", {}))


def whole_ledger(folder: Path) -> dict[str, Any] | None:
    """Return the ledger of a folder; None where there is none, or a damaged one, which its own check reports."""
    try:
        return read_any_ledger(folder)
    except (OSError, ShardsError):
        return None


def require_kind(path: Path, kind: Kind | None) -> Kind:
    """Return what a path holds.

    Raises:
        StreamError: nothing that can be checked.
    """
    if kind is None:
        raise StreamError(f"{path} holds nothing to verify: no {LEDGER_FILE}, no stream (.idx), no {MANIFEST_FILE}")
    return kind


def find_stored(path: Path) -> list[Path]:
    """Return what can be checked in ``path``: itself, or the folders below it that hold something, in order.

    Raises:
        StreamError: there is nothing.
    """
    if CheckedFolder(path).kind is not None:
        return [path]
    found: list[Path] = []
    for folder in sorted(path.rglob("*")) if path.is_dir() else []:
        hidden = any(part.startswith(".") for part in folder.relative_to(path).parts)
        inside = any(folder.is_relative_to(one) for one in found)
        if not hidden and not inside and folder.is_dir() and CheckedFolder(folder).kind:
            found.append(folder)
    require_kind(path, "store" if found else None)
    return found


def stored_bytes(path: Path) -> int:
    """Return the bytes of what is checked in ``path``."""
    files = path.rglob("*") if path.is_dir() else path.parent.glob(f"{CheckedFolder(path).prefix.name}.*")
    return sum(file.stat().st_size for file in files if file.is_file())
