"""Texts and tokens of documents of a release, read again from upstream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from everytoken.address import SHARD_INDEX, Address
from everytoken.checks import require_equal, require_none
from everytoken.corpus.ingestion import Guarded, Source, find_files, list_all_shards
from everytoken.corpus.reading import ReadingLimits
from everytoken.corpus.upstreams import NOT_PUBLISHED, PathUpstream, UpstreamFile, algorithm_of
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.hashed_texts import text_hash
from everytoken.provenance.lookup import read_documents_at
from everytoken.provenance.releases import TOKENIZER_PATH, Release, is_readable
from everytoken.provenance.verification.documents import (
    WindowDocuments,
    longest_content,
    named_document,
    record_of,
)
from everytoken.redaction import shown_url
from everytoken.tokens.encoding import DocumentEncoder, open_encoder
from everytoken.tokens.streams import STREAM_KINDS
from everytoken.tokens.tokenizer import EncodingRules


class UpstreamTexts:
    """Texts and tokens of documents of a release, read again from where its recipe or the user says they are."""

    def __init__(self, release: Release, documents: WindowDocuments, folder: Path, roots: Mapping[str, str]) -> None:
        self._release, self._documents, self._folder, self._roots = release, documents, folder, roots
        sources = self._release.parameters("ingestion")["sources"]
        self._sources = {name: Source.model_validate(one) for name, one in sources.items() if one is not None}
        if unknown := sorted(roots.keys() - self._sources):
            raise ProvenanceError(f"--root names {unknown}, the release has the sources {sorted(self._sources)}")
        self._files: dict[str, list[UpstreamFile]] = {}

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
        upstream, root = self._sources[source].upstream, self._roots.get(source)
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
        """Return how many files the upstreams list; they must be those that the plan was made of, as many shards too.

        Shards that are ranges of rows are counted only with ``count_rows``: that is to read the files.
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
        texts = self.texts(split, wanted)
        encoded = (
            self._encoder.encode(list(texts.values()), None if longest is None else longest + 1) if texts else None
        )
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
        index = self._documents.index(stream)
        spans = index.spans(window)
        expected = np.full(index.window, self._release.recipe["tokenizer"]["eos_id"], np.int64)
        tokens = self.tokens(STREAM_KINDS[stream].split, [span.document for span in spans])
        for span in spans:
            own = tokens[span.document][span.first : span.end]
            expected[span.at : span.at + len(own)] = own
        return expected
