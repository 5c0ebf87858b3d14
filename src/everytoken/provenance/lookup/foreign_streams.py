"""Streams of other programs, and of ``everytoken tokenize``: what their ``.idx`` says of documents.

A Megatron stream of documents has a sequence for each, and its index says where it begins; a run reads such a stream as
flat tokens, cut into windows. So a document is known by its number in the file, and nothing else is; what
``everytoken tokenize`` wrote says in its ledger from which input file each is. Windows of one length, and files of
other kinds, tell nothing of documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from everytoken.provenance.indexes import FlatWindowIndex, flat_index_of_documents
from everytoken.shards import LEDGER_FILE, ArtifactStore, files_here, is_here
from everytoken.tokens.encoding import EncodedCounts
from everytoken.tokens.streams import open_indexed, with_name


class _JoinedFiles(TypedDict, total=False):
    by_file: dict[str, EncodedCounts]


def sequences_of(path: Path, seq_length: int) -> FlatWindowIndex | None:
    """Return the index of the documents of a stream at a path; None when it tells nothing of them.

    Raises:
        ProvenanceError: the index is damaged.
    """
    prefixes = [one.with_suffix("") for one in files_here(path, "*.idx")] if path.is_dir() else [path]
    prefixes += [] if path.is_dir() else [path.with_suffix("")]
    prefix = next((one for one in prefixes if is_here(with_name(one, ".idx"))), None)
    if prefix is None:
        return None
    opened = open_indexed(prefix)
    if not len(opened) or len(opened.tokens) == len(opened) * int(opened.lengths[0]):
        return None  # windows: what is in them nobody knows
    return flat_index_of_documents(prefix, str(path)).windows_of_length(seq_length)


def input_files(path: Path) -> dict[str, int]:
    """Return how many documents are of each input file, in their order; nothing where no ledger says it."""
    folder = path if path.is_dir() else path.parent
    if not (folder / LEDGER_FILE).is_file():
        return {}
    by_file = ArtifactStore(folder).load().statistics_as(_JoinedFiles).get("by_file", {})
    return {name: counts["documents"] for name, counts in by_file.items()}


def joined_file_of(document: int, files: Mapping[str, int]) -> tuple[str, int] | None:
    """Return the input file of a document and its number in it; None where nothing says them."""
    for name, count in files.items():
        if document < count:
            return name, document
        document -= count
    return None
