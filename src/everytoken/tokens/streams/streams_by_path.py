"""Streams that lie somewhere on disk, for a run that names them by path: known by their content all the same."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from everytoken.shards import LEDGER_FILE, Artifact, ArtifactStore, file_sha256, value_digest
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams.loss_mask import LOSS_MASK_FILE
from everytoken.tokens.streams.megatron import with_name
from everytoken.tokens.streams.one_document_per_window import TOKEN_LENGTHS_FILE
from everytoken.tokens.streams.raw_shards import MANIFEST_FILE

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GivenFiles:
    """Files of another program, or of ours without their ledger.

    Attributes:
        path: of the folder, the prefix of ``.bin`` and ``.idx``, or the file.
        root_digest: over the names and the SHA-256 of all its files; in recipes it stands for the files.
    """

    path: Path = field(compare=False)
    root_digest: str


def given_files(name: str, path: Path, sha256: str | None) -> Artifact | GivenFiles:
    """Return what lies at ``path``: an artifact of ours by its ledger, else its files, read once for a digest.

    Args:
        name: of the parameter, for messages.
        path: a folder (a stream, raw shards), the prefix of ``.bin`` and ``.idx``, or one file (a tensor, a tokenizer).
        sha256: the digest that it must have (of an artifact: its root digest); None: whatever it has.

    Raises:
        StreamError: there is nothing, or something else than ``sha256`` says.
        ShardsError: an artifact that is not whole.
    """
    found: Artifact | GivenFiles
    if (path / LEDGER_FILE).is_file():
        found = ArtifactStore(path).load()
    else:
        files = files_read(path)
        if not files:
            raise StreamError(
                f"{name}: {path} is {'an empty folder' if path.is_dir() else 'not there'}; expected a folder with a "
                "stream (.bin and .idx) or raw shards (manifest.json), the prefix of .bin and .idx, or one file"
            )
        logger.info("%s: reading %d files for their digest", path, len(files))
        found = GivenFiles(path, value_digest([[file.name, file_sha256(file)] for file in files]))
    if sha256 is not None and found.root_digest != sha256.lower():
        raise StreamError(
            f"{name}: {path} has the digest {found.root_digest}, expected {sha256}: these are other tokens than were "
            "meant. Bring the right ones, or name the new digest."
        )
    return found


def path_of(given: Artifact | GivenFiles) -> Path:
    """Return where it lies."""
    if isinstance(given, GivenFiles):
        return given.path
    if given.folder is None:
        raise StreamError("the stream is only planned; save it, then use what its store loads")
    return given.folder


def files_read(path: Path) -> list[Path]:
    """Return every file that reading a stream at ``path`` depends on; nothing when there is no stream.

    Of a prefix, its ``.bin`` and ``.idx`` and the lengths or mask beside them; of one file, the manifest beside it; of
    a folder, its files that are not hidden. How they are read: `everytoken.tokens.order.loader`.
    """
    if path.is_dir():
        return sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
    for prefix in (path, path.with_suffix("")):
        pair = [with_name(prefix, suffix) for suffix in (".bin", ".idx")]
        if all(one.is_file() for one in pair):
            return [*pair, *_beside(prefix, TOKEN_LENGTHS_FILE, LOSS_MASK_FILE)]
    return [path, *_beside(path, MANIFEST_FILE)] if path.is_file() else []


def _beside(path: Path, *names: str) -> list[Path]:
    return [one for name in names if (one := path.parent / name).is_file() and one != path]
