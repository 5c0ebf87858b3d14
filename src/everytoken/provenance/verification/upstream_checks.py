"""Whether upstream still gives the texts that a release was made of, and these texts the tokens of its streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from everytoken.checks import Mismatch, require_equal
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import SPLITS
from everytoken.provenance.verification.checked_release import CheckedRelease
from everytoken.provenance.verification.documents import drawn_numbers, kind_in_manifests, named_document, record_of
from everytoken.provenance.verification.rebuilt_streams import RebuiltStream
from everytoken.provenance.verification.upstream_texts import UpstreamTexts
from everytoken.provenance.verification.window_faults import first_change
from everytoken.tokens.streams import STREAM_KINDS


def open_upstream(checked: CheckedRelease, *, folder: Path | None, roots: Mapping[str, str]) -> None:
    """Open the texts, where documents are to be read again: where there is a folder for fetched files."""
    checked.texts = None if folder is None else UpstreamTexts(checked.release, checked.documents, folder, roots)


def check_listed(checked: CheckedRelease) -> str | None:
    """The upstreams list the files of the plan."""
    return None if checked.texts is None else checked.texts.listed(count_rows=checked.full)


def check_upstream(checked: CheckedRelease, *, streams: Sequence[RebuiltStream]) -> str | None:
    """Seeded documents have the text that was released, as many tokens, and these tokens stand in their windows."""
    if checked.texts is None:
        return None
    read, compared, own = 0, 0, [stream for stream in streams if kind_in_manifests(stream.name)]
    encoded = {kind.split for name in STREAM_KINDS if (kind := kind_in_manifests(name))}
    for split, numbers in drawn_documents(checked).items():
        read += len(numbers)
        if split not in encoded:
            checked.texts.texts(split, numbers)
            continue
        for number, tokens in checked.texts.tokens(split, numbers).items():
            what = f"{named_document(checked.release, split, number)}: tokens of its text, without EOS"
            require_equal(what, len(tokens) - 1, record_of(checked.release, split, number)["token_length"])
            for stream in own:
                if STREAM_KINDS[stream.name].split == split:
                    compared += _compare(stream, split, number, tokens)
    names = " and ".join(sorted(stream.name for stream in own))
    said = f"; {compared:,} tokens are those of {names}" if own else ""
    return f"{read:,} documents read again, their texts and numbers of tokens are as released{said}"


def _compare(stream: RebuiltStream, split: str, number: int, tokens: np.ndarray) -> int:
    """Compare the tokens of a document with its windows; return how many."""
    compared = 0
    for window, span in stream.checked.documents.index(stream.name).windows_of(number):
        own = tokens[span.first : span.end]
        if window >= len(stream.tokens):
            raise ProvenanceError(f"{stream.name} ends before window {window:,}, expected {len(own)} tokens there")
        found = stream.tokens[window][span.at : span.at + len(own)]
        if change := first_change(own, found):
            more = f"token {span.first + change.position:,} of {named_document(stream.release, split, number)}"
            place = f"{stream.name} window {window:,} position {span.at + change.position:,}"
            raise Mismatch(place, str(change.expected), str(change.found), more=more)
        compared += len(own)
    return compared


def drawn_documents(checked: CheckedRelease) -> dict[str, list[int]]:
    """Return numbers of seeded documents of all splits, by split."""
    rows: dict[str, int] = {split: checked.release.boundaries[split]["rows"] for split in SPLITS}
    drawn = drawn_numbers(sum(rows.values()), checked.count, checked.seed)
    chosen, first = {}, 0
    for split, documents in rows.items():
        chosen[split] = (drawn[(drawn >= first) & (drawn < first + documents)] - first).tolist()
        first += documents
    return chosen
