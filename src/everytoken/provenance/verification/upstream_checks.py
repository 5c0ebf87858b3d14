"""Whether upstream still gives the texts that a release was made of, and these texts the tokens of its streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from everytoken.address import SHARD_INDEX, Address
from everytoken.checks import Mismatch, require_equal, require_none
from everytoken.corpus.ingestion import Guarded, Source, find_files, list_all_shards
from everytoken.corpus.reading import ReadingLimits
from everytoken.corpus.upstreams import NOT_PUBLISHED, PathUpstream, UpstreamFile, algorithm_of
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.hashed_texts import text_hash
from everytoken.provenance.lookup import read_documents_at
from everytoken.provenance.releases import SPLITS, TOKENIZER_PATH, is_readable
from everytoken.provenance.verification.checked_release import CheckedRelease
from everytoken.provenance.verification.manifest_rows import drawn_numbers, longest_content, named_document, record_of
from everytoken.provenance.verification.rebuilt_streams import RebuiltStream
from everytoken.provenance.verification.window_documents import kind_in_manifests
from everytoken.provenance.verification.window_faults import first_change
from everytoken.redaction import shown_url
from everytoken.tokens.encoding import DocumentEncoder, open_encoder
from everytoken.tokens.streams import STREAM_KINDS
from everytoken.tokens.tokenizer import EncodingRules


class UpstreamTexts:
    """Texts and tokens of documents of a release, read again from where its recipe or the user says they are."""

    def __init__(self, checked: CheckedRelease) -> None:
        assert checked.fetched is not None, "nothing is read from upstream"
        self._checked, self._release = checked, checked.release
        sources = self._release.parameters("ingestion")["sources"]
        self._sources = {name: Source.model_validate(one) for name, one in sources.items() if one is not None}
        if unknown := sorted(checked.roots.keys() - self._sources):
            raise ProvenanceError(f"--root names {unknown}, the release has the sources {sorted(self._sources)}")
        self._folder, self._files = checked.fetched, dict[str, list[UpstreamFile]]()

    @cached_property
    def _encoder(self) -> DocumentEncoder:
        rules = EncodingRules(
            self._release.path / TOKENIZER_PATH,
            self._release.recipe["tokenizer"]["eos_token"],
            self._release.parameters("tokenization")["special_tokens_in_text"],
        )
        return open_encoder(rules)

    def texts(self, split: str, numbers: Iterable[int]) -> dict[int, str]:
        """Return the texts of documents of a split, by number; those that were taken down are left out.

        Raises:
            ProvenanceError: a file or row is not there, or a text is another one than was released.
        """
        records = {number: record_of(self._release, split, number) for number in numbers}
        kept = {number: record for number, record in records.items() if not record["is_excluded"]}
        places = {number: Address.of(one) for number, one in kept.items()}
        for source in sorted({place.source for place in places.values()}):
            self._list_files(source)
        found = read_documents_at(self._sources, self._files, places.values())
        texts, faults = {}, []
        for number, place in places.items():
            texts[number] = found[place].text
            if (has := text_hash(found[place].text)) != kept[number]["text_hash"]:
                faults.append(
                    f"{named_document(self._release, split, number)}: expected a text whose SHA-256 begins with "
                    f"{kept[number]['text_hash']:016x}, upstream has one with {has:016x}"
                )
        require_none(faults)
        return texts

    def _list_files(self, source: str) -> None:
        """List the files of a source, which must be those of the release: addresses count them."""
        if source in self._files:
            return
        if source not in self._sources:
            raise ProvenanceError(f"the release has no parameters of the source {source!r}")
        files = find_files(source, self._upstream(source), self._folder)
        for file in self._release.upstream["sources"][source]["files"]:
            number = file[SHARD_INDEX]
            path = files[number].path if number < len(files) else None
            require_equal(f"upstream of {source}: path of file {number:,}", path, file["path"])
            if (told := files[number].pinned) is not None and algorithm_of(told) == algorithm_of(file["digest"]):
                require_equal(f"upstream of {source}: digest of {path}", told, file["digest"])
        self._files[source] = files

    def _upstream(self, source: str) -> Guarded:
        upstream, root = self._sources[source].upstream, self._checked.roots.get(source)
        if not isinstance(upstream, PathUpstream):
            return Guarded(upstream, ())
        if root is not None:
            moved = PathUpstream.model_validate({**upstream.model_dump(mode="json"), "root": root})
            return Guarded(moved, (root,))
        if upstream.root != NOT_PUBLISHED and not is_readable(upstream.root, ()):
            raise ProvenanceError(
                f"source {source!r}: the release names {shown_url(upstream.root)!r}, a place of a machine, a private "
                f"address or plain http, which is not read unasked. If you trust it: --root {source}=PLACE"
            )
        return Guarded(upstream, ())

    def listed(self, count_rows: bool) -> str:
        """Return how many files the upstreams list; they must be those that the plan was made of.

        Args:
            count_rows: whether the shards are counted too where they are ranges of rows: that is to read the files.

        Raises:
            Mismatch: a file of the plan has another name or digest, or there are more or fewer shards.
        """
        for source in sorted(self._release.upstream["sources"]):
            self._list_files(source)
        count = sum(map(len, self._files.values()))
        said = f"{count:,} files of {len(self._files):,} sources, those of the plan as released"
        if not count_rows and any(source.rows_per_shard is not None for source in self._sources.values()):
            return said
        limits = ReadingLimits.model_validate(self._release.parameters("ingestion")["reading"])
        shards = len(list_all_shards(self._sources, self._files, limits))
        require_equal("shards that the upstreams have", shards, self._release.upstream["plan"]["n_total"])
        return f"{said}; {shards:,} shards"

    def tokens(self, split: str, numbers: Iterable[int]) -> dict[int, np.ndarray]:
        """Return the tokens of documents of a split with their EOS, by number; a document taken down is EOS alone."""
        wanted, longest = list(numbers), longest_content(self._release, split)
        assert longest is not None, "held-out documents are in no stream"
        texts = self.texts(split, wanted)
        encoded = self._encoder.encode(list(texts.values()), longest + 1) if texts else None
        tokens = {}
        for place, number in enumerate(texts):
            assert encoded is not None
            tokens[number] = encoded.values[encoded.offsets[place] : encoded.offsets[place + 1]]
        eos = self._release.recipe["tokenizer"]["eos_id"]
        for number in set(wanted) - set(texts):
            length = record_of(self._release, split, number)["token_length"]
            tokens[number] = np.full(length + 1, eos, self._encoder.tokenizer.dtype)
        return tokens

    def window(self, stream: str, window: int) -> np.ndarray:
        """Return the tokens that a window must have, (window,)."""
        index = self._checked.documents.index(stream)
        spans = index.spans(window)
        expected = np.full(index.window, self._release.recipe["tokenizer"]["eos_id"], np.int64)
        tokens = self.tokens(STREAM_KINDS[stream].split, [span.document for span in spans])
        for span in spans:
            own = tokens[span.document][span.first : span.end]
            expected[span.at : span.at + len(own)] = own
        return expected


def open_upstream(checked: CheckedRelease) -> None:
    """Open the texts, where documents are to be read again."""
    if checked.fetched is not None:
        checked.texts = UpstreamTexts(checked)


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
