"""Datasets that are one artifact: saving makes it unless it is there, loading gives it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset

from everytoken.datasets.previews import JSONPreview
from everytoken.datasets.remote_entries import remote_place
from everytoken.shards import Artifact, ArtifactStore, digests_in, make_engine
from everytoken.shards.remote import REQUEST_BYTES, RemoteArtifactStore


class ArtifactFolder(AbstractDataset[Artifact, Artifact]):
    """A folder that appears whole (see `everytoken.shards.artifacts`), or the same behind a URL.

    Args:
        filepath: the folder, or its URL (docs/stores.md).
        credentials: of a URL: what its file system of fsspec takes.
        cache: of a URL: ``{path, bytes}``, the folder of local copies and the most bytes of all of them.
        block_bytes: in which large files behind a URL are read; None: 16 MiB.
        engine: where functions that are declared ``in_ranges`` run them, as in `ShardStore`; None: in this process.
    """

    def __init__(
        self,
        *,
        filepath: str,
        engine: dict[str, Any] | None = None,
        credentials: dict[str, Any] | None = None,
        cache: dict[str, Any] | None = None,
        block_bytes: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        remote = remote_place(filepath, cache, credentials)
        self._store = (
            ArtifactStore(Path(filepath))
            if remote is None
            else RemoteArtifactStore(*remote, block_bytes or REQUEST_BYTES)
        )
        self._engine = None if engine is None else make_engine(**engine)
        self.metadata = metadata

    def load(self) -> Artifact:
        """Return the made artifact."""
        return self._store.load()

    def save(self, data: Artifact) -> None:
        """Make the artifact unless the folder holds it already."""
        self._store.save(data, self._engine)

    def _exists(self) -> bool:
        return self._store.exists()

    def _describe(self) -> dict[str, Any]:
        engine = {} if self._engine is None else {"engine": str(self._engine)}
        return {"filepath": self._store.shown, **engine}

    def ledger_summary(self) -> dict[str, Any]:
        """Return root digest, rows (windows of a stream; else none), bytes, and whether there is nothing in it."""
        artifact = self._store.load()
        return {
            "root_digest": artifact.root_digest,
            "rows": artifact.statistics.get(self._rows_are),
            "bytes": artifact.bytes,
            "is_empty": artifact.is_empty,
        }

    def state(self) -> object:
        """Return what differs after the artifact was made again, also to the same digest."""
        return self._store.state()

    def is_made_from(self, root_digest: str, part_digests: Sequence[str]) -> bool:
        """Tell whether a dataset of this content was an input of what is stored."""
        return root_digest in digests_in(self._store.load().ledger["recipe"])

    def part_digests(self) -> Sequence[str]:
        """Return nothing: an artifact has no parts."""
        return []

    _rows_are = "rows"

    def preview(self) -> JSONPreview:
        """Return statistics, measurements and files for kedro-viz."""
        artifact = self.load()
        shown = {
            "statistics": artifact.statistics,
            "measured": artifact.measured,
            "files": artifact.ledger["files"],
            "recipe": artifact.ledger["recipe"],
            "root_digest": self.ledger_summary()["root_digest"],
        }
        return JSONPreview(json.dumps(shown, ensure_ascii=False, indent=1))


class TokenStream(ArtifactFolder):
    """Windows of tokens in Megatron ``.bin``/``.idx`` files, with what belongs to them."""

    _rows_are = "windows"


class TokenizerFile(ArtifactFolder):
    """A ``tokenizer.json``."""


class Checkpoint(ArtifactFolder):
    """A trained model: safetensors weights, configuration, history."""

    def models(self) -> list[dict[str, Any]]:
        """Return the model and the earlier checkpoints that its run keeps, as `everytoken.tracking` records them.

        Each has its step, digests, and bits per byte on held-out documents where they were measured after that step.
        """
        artifact, name = self._store.load(), self._store.name
        steps, parameters = int(artifact.statistics["steps"]), str(artifact.statistics.get("parameters", ""))
        kept = {int(one["step"]): one for one in artifact.measured.get("kept", ())}
        last = kept.pop(steps, {"held_out": {}})
        files = {file: entry["sha256"] for file, entry in artifact.ledger["files"].items()}
        found = [
            (f"{name}_step_{step}", step, {"sha256sums": one["sha256sums"]}, one["sha256"], one["held_out"])
            for step, one in kept.items()
        ]
        found.append((name, steps, {"root_digest": artifact.root_digest}, files, last["held_out"]))
        return [
            {
                "name": model,
                "step": step,
                "params": {"step": str(step), "parameters": parameters},
                "tags": digest | {f"sha256.{file}": sha256 for file, sha256 in sums.items()},
                "metrics": [(f"{name}.{key}", step, value) for key, value in held_out.items()],
            }
            for model, step, digest, sums, held_out in found
        ]
