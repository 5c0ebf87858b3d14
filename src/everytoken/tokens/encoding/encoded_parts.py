"""Tokenization of one part: columns of the input, and ``token_length`` and ``tokens`` beside them.

``tokens`` is content and EOS, at most ``max_tokens``, which the consumer decides; ``token_length`` counts content
alone. The result is a function of each text alone; batches and engines only set the speed. Of a document that was
taken down a tombstone is left (`everytoken.tokens.encoding.tombstones`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa

from everytoken.address import ADDRESS_COLUMNS, Address
from everytoken.corpus import excluded_addresses
from everytoken.shards import Artifact, Part, Rows, versioned
from everytoken.tokens.encoding.counts import COUNTED, EncodedCounts, document_counts
from everytoken.tokens.encoding.encoder import DocumentEncoder, Encoded, SpelledSpecialToken, open_encoder
from everytoken.tokens.encoding.language_bands import BANDS, language_band
from everytoken.tokens.encoding.recheck import EngineDiffers, Recheck, Rechecker
from everytoken.tokens.encoding.tombstones import EncodedStatistics, buried_of
from everytoken.tokens.engines import chosen_engine
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer import EncodingRules, open_tokenizer

_NEEDED = ("text", "source")
_MADE = ("token_length", "tokens")


@versioned("encode_part", 2, unrecorded=["certificate", "engine", "recheck"])
def encode_part(
    part: Part,
    exclusions: Part | None = None,
    *,
    rules: EncodingRules,
    certificate: Artifact,
    max_tokens: int | None,
    max_lossy_share: float,
    columns: Sequence[str],
    engine: str,
    recheck: Recheck,
    keep_lengths: bool = False,
) -> Rows:
    """Encode the ``text`` of a part.

    Statistics: the counts of `everytoken.tokens.encoding.counts`, for all documents and under ``by_source`` and
        ``by_band``
    (`everytoken.tokens.encoding.language_bands`).
    ``length_histogram``: documents with at least 2**k and fewer than 2**(k+1) content tokens before the cut, by k.
    ``rechecked_documents``: encoded again by the reference. ``tombstones``: rows that are, where any is; of one is
    counted that it is a document, and its EOS.

    Args:
        part: rows with ``text`` and ``source``.
        exclusions: of the part (`everytoken.corpus.exclusion`): these documents become tombstones. None: none.
        rules: with which texts are encoded; the tokenizer is an artifact, which a process loads once.
        certificate: says which engines are proven equal; which of them encodes changes no byte.
        max_tokens: cap of a document, EOS included; None: none.
        max_lossy_share: the part fails when a greater share of its documents loses text.
        columns: of the input that are kept.
        engine: ``fastest``, or the name of one.
        recheck: which documents the reference encodes again.
        keep_lengths: whether a tombstone has as many tokens as its document; else it is one EOS.

    Raises:
        TokenizerError: the input lacks a column or is encoded already, has a null text or source, loses too much, or
            the engine is not proven, or differs from the reference.
    """
    chosen = chosen_engine(
        certificate,
        engine,
        content=open_tokenizer(rules.place, rules.eos_token).content,
        special_tokens_in_text=rules.special_tokens_in_text,
    )
    opened = open_encoder(rules, engine=chosen)
    names = part.schema.names
    if not {*_NEEDED, *columns} <= set(names) or set(_MADE) & set(names):
        raise TokenizerError(
            f"{part.name} has the columns {names}; expected {sorted({*_NEEDED, *columns})}, and no token columns yet"
        )
    schema = pa.schema([part.schema.field(name) for name in columns])
    schema = schema.append(pa.field("token_length", pa.int32(), nullable=False))
    ids = pa.field("element", pa.from_numpy_dtype(opened.tokenizer.dtype), nullable=False)
    schema = schema.append(pa.field("tokens", pa.list_(ids), nullable=False))
    excluded = _Excluded(excluded_addresses(exclusions), keep_lengths)
    return Rows(schema, _encoded(part, excluded, schema, opened, max_tokens, max_lossy_share, recheck))


class _Excluded(NamedTuple):
    """Addresses of the documents that become tombstones, with their lengths where they are known."""

    addresses: Mapping[Address, int | None]
    keep_lengths: bool


def _encoded(
    part: Part,
    excluded: _Excluded,
    schema: pa.Schema,
    encoder: DocumentEncoder,
    max_tokens: int | None,
    max_lossy_share: float,
    recheck: Recheck,
) -> Generator[pa.RecordBatch, None, EncodedStatistics]:
    columns = schema.names[: -len(_MADE)]
    counts, rechecker = _Counts(max_tokens), Rechecker(encoder, recheck, part.index, part.rows)
    row, first_lossy = 0, None
    tombstones: list[int] = []
    for batch in part.batches(
        list(dict.fromkeys([*columns, *_NEEDED, *(ADDRESS_COLUMNS if excluded.addresses else ())]))
    ):
        for name in _NEEDED:
            if batch.column(name).null_count:
                null = row + int(np.argmax(batch.column(name).is_null().to_numpy(zero_copy_only=False)))
                raise TokenizerError(f"{part.name} row {null}: {name} is null; a document needs one")
        texts = batch.column("text").to_pylist()
        buried = buried_of(batch, excluded.addresses, keep_lengths=excluded.keep_lengths, max_tokens=max_tokens)
        if buried is not None:
            texts = buried.readable(texts)
            tombstones += (np.flatnonzero(buried.rows) + row).tolist()
        try:
            encoded = encoder.encode(texts, max_tokens)
            with difference_named():
                rechecker.add(texts, encoded, max_tokens, partial(described_document, part, batch, row))
        except SpelledSpecialToken as error:
            raise TokenizerError(f"{described_document(part, batch, row, error.number)}: {error}") from error
        if buried is not None:
            encoded = buried.entombed(encoded, encoder.tokenizer.eos_id)
        counts.add(batch.column("source"), encoded, None if buried is None else buried.rows)
        if first_lossy is None and encoded.lost_bytes.any():
            first_lossy = row + int(np.argmax(encoded.lost_bytes != 0))
        offsets = pa.array(encoded.offsets.astype(np.int32))
        tokens = pa.ListArray.from_arrays(offsets, pa.array(encoded.values), type=schema.field("tokens").type)
        kept = [batch.column(name) if buried is None else buried.unnamed(batch.column(name), name) for name in columns]
        yield pa.RecordBatch.from_arrays([*kept, pa.array(encoded.lengths), tokens], schema=schema)
        row += batch.num_rows
    with difference_named():
        rechecker.check()
    total = counts.total()
    if total["lossy_documents"] > max_lossy_share * total["documents"]:
        raise TokenizerError(
            f"{part.name}: {total['lossy_documents']} of {total['documents']} documents lose text "
            f"({total['lossy_bytes']} bytes; the first is row {first_lossy}), allowed is a share of "
            f"{max_lossy_share}. {encoder.tokenizer.why_lossy} "
            f"Use a tokenizer that has all bytes, or raise max_lossy_share if the loss is acceptable."
        )
    added = {
        "by_source": counts.by_source(),
        "by_band": counts.by_band(),
        "length_histogram": counts.length_histogram.tolist(),
        "rechecked_documents": rechecker.documents,
    }
    statistics = cast(EncodedStatistics, {**total, **added})
    if tombstones:
        statistics["tombstones"] = tombstones
    return statistics


@contextmanager
def difference_named() -> Iterator[None]:
    """Let an engine that differs from the reference name the document by `described_document`."""
    try:
        yield
    except EngineDiffers as error:
        raise TokenizerError(f"{error.place}: {error}") from error


def described_document(part: Part, batch: pa.RecordBatch, first_row: int, number: int) -> str:
    """Return the row of a part with id and address, for messages; ``number`` counts from the first row of a batch."""
    names = [name for name in ("id", *ADDRESS_COLUMNS) if name in batch.schema.names]
    address = ", ".join(f"{name} {batch.column(name)[number].as_py()!r}" for name in names)
    return f"{part.name} row {first_row + number} ({address})"


_HISTOGRAM_BINS = 40  # documents of up to 2**40 tokens


class _Counts:
    """Counts of documents, by source and by language band."""

    def __init__(self, max_tokens: int | None) -> None:
        self._max_tokens = max_tokens
        self._by: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTED, 0))
        self.length_histogram = np.zeros(_HISTOGRAM_BINS, np.int64)

    def add(self, sources: pa.Array, encoded: Encoded, tombstones: np.ndarray | None) -> None:
        coded = sources.dictionary_encode()
        names = coded.dictionary.to_pylist()
        group = coded.indices.to_numpy() * len(BANDS) + language_band(encoded.text_bytes, encoded.characters)
        for name, column in document_counts(encoded, self._max_tokens, tombstones).items():
            sums = np.zeros(len(names) * len(BANDS), np.int64)
            np.add.at(sums, group, column.astype(np.int64))
            for key in np.flatnonzero(sums).tolist():
                self._by[names[key // len(BANDS)], BANDS[key % len(BANDS)]][name] += int(sums[key])
        lengths = encoded.full_lengths[encoded.full_lengths > 0]
        self.length_histogram += np.bincount(np.frexp(lengths)[1] - 1, minlength=_HISTOGRAM_BINS)

    def total(self) -> EncodedCounts:
        return cast(EncodedCounts, {name: sum(counts[name] for counts in self._by.values()) for name in COUNTED})

    def by_source(self) -> dict[str, EncodedCounts]:
        return self._added(0)

    def by_band(self) -> dict[str, EncodedCounts]:
        return self._added(1)

    def _added(self, key: int) -> dict[str, EncodedCounts]:
        added: dict[str, dict[str, int]] = {}
        for names, counts in sorted(self._by.items()):
            sums = added.setdefault(names[key], dict.fromkeys(COUNTED, 0))
            for name, value in counts.items():
                sums[name] += value
        return {name: cast(EncodedCounts, sums) for name, sums in sorted(added.items())}
