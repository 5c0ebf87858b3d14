"""Bits per byte on held-out documents, and those of a unigram model on the same tokens.

A document is encoded whole, ends with EOS, and follows an EOS that is context only. It is cut into chunks of
seq_length predictions, each chunk beginning with the last token of the one before, and every content token
and the final EOS is predicted once:

    bits per byte = sum over documents of -log2 p(content, EOS) / sum of UTF-8 bytes.

The first predictions of a chunk see less context than the model could use, so the figure is an upper bound of
what a sliding window would give. It does not depend on the tokenizer's granularity; where the tokenizer loses
bytes (``lossy_documents``) it is too low, because lost bytes cost nothing and are divided by.

Chunks of about equal length are computed in one batch, padded to the same width. Padding follows the tokens
of a causal model, so a document's figure does not depend on its neighbours beyond float noise (a matrix product
may round differently in another shape). Sums are float64, over chunks and documents in their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from everytoken.models import LanguageModel
from everytoken.progress import progress
from everytoken.shards import Part
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.training.errors import NonFiniteError, TrainingError
from everytoken.training.evaluation.statistics import BitsPerByte, HeldOutFigures
from everytoken.training.parameters import BitsPerByteParameters
from everytoken.training.step import ReadBatch, autocast, execution, to_device, token_losses

_PAD_TO = 32  # few distinct shapes: each new one costs oneDNN a set-up


@dataclass
class _Sums:
    documents: int = 0
    bytes: int = 0
    tokens: int = 0
    lossy_documents: int = 0
    bits: float = 0.0
    unigram_bits: float = 0.0

    def add(self, other: _Sums) -> None:
        self.documents += other.documents
        self.bytes += other.bytes
        self.tokens += other.tokens
        self.lossy_documents += other.lossy_documents
        self.bits += other.bits
        self.unigram_bits += other.unigram_bits

    def figures(self) -> HeldOutFigures:
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "tokens": self.tokens,
            "lossy_documents": self.lossy_documents,
            "bits_per_byte": self.bits / self.bytes,
            "unigram_bits_per_byte": self.unigram_bits / self.bytes,
        }


def count_targets(read_batch: ReadBatch, steps: int, vocab_size: int) -> NDArray[np.int64]:
    """Return how often each token was a target that counts in the loss of steps 0 to ``steps`` - 1,
    (vocab_size,).

    Holds one batch at a time. A window that is read twice counts twice, as it does in training.
    """
    counts = np.zeros(vocab_size, np.int64)
    for step in progress(range(steps), steps, "counting what the training read", "step"):
        tokens, mask = read_batch(step)
        counts += np.bincount(tokens[:, 1:][mask == 1], minlength=vocab_size)
    return counts


def unigram_bits(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the cost in bits of each token under add-one smoothing, ``-log2((c + 1) / (sum c + V))``,
    (vocab,).
    """
    frequencies: NDArray[np.float64] = (counts + 1) / (counts.sum() + len(counts))
    return -np.log2(frequencies)


def bits_per_byte(
    model: LanguageModel,
    encoder: DocumentEncoder,
    parts: Iterable[Part],
    token_bits: NDArray[np.float64],
    parameters: BitsPerByteParameters,
) -> BitsPerByte:
    """Return bits per byte of the model and of the unigram model, in total and by source.

    Args:
        model: the model; it is evaluated with chunks of ``model.max_seq_len`` predictions.
        encoder: encodes as the documents were that the model was trained with.
        parts: held-out documents with the columns ``text`` and ``source``.
        token_bits: the cost of each token under the unigram model, (vocab_size,), from :func:`unigram_bits`.

    Returns:
        ``{"total": figures, "by_source": {source: figures}}`` with figures ``documents, bytes, tokens``
        (predictions: content and EOS), ``lossy_documents, bits_per_byte, unigram_bits_per_byte``; sources in
        alphabetical order.

    Raises:
        TrainingError: the tokenizer does not fit the model, a source is null, or the documents of a source
            have no bytes.
        NonFiniteError: a loss is infinite or not a number.
    """
    tokenizer = encoder.tokenizer
    if tokenizer.vocab_size != model.vocab_size or len(token_bits) != model.vocab_size:
        raise TrainingError(
            f"the model has {model.vocab_size} tokens, the tokenizer {tokenizer.vocab_size}, the unigram model "
            f"{len(token_bits)}; expected one number: evaluate with the tokenizer and the streams of the training"
        )
    by_source: dict[str, _Sums] = {}
    model.eval()
    with execution(parameters.execution), torch.inference_mode():
        for source, sums in _documents(model, encoder, parts, token_bits, parameters):
            by_source.setdefault(source, _Sums()).add(sums)
    total = _Sums()
    for source in sorted(by_source):
        total.add(by_source[source])
        if not by_source[source].bytes:
            raise TrainingError(f"the held-out documents of source {source!r} have no text; expected at least one byte")
    if not total.documents:
        raise TrainingError("there are no held-out documents; raise the share that is held out")
    return {
        "total": total.figures(),
        "by_source": {source: by_source[source].figures() for source in sorted(by_source)},
    }


def _documents(
    model: LanguageModel,
    encoder: DocumentEncoder,
    parts: Iterable[Part],
    token_bits: NDArray[np.float64],
    parameters: BitsPerByteParameters,
) -> Iterator[tuple[str, _Sums]]:
    """Yield source and sums of each document in order."""
    for part in parts:
        for batch in part.batches(["text", "source"]):
            texts, sources = batch.column("text").to_pylist(), batch.column("source").to_pylist()
            if not texts:
                continue
            encoded = encoder.encode(texts)
            starts = encoded.offsets  # (documents + 1,)
            documents = [
                np.concatenate(([encoder.tokenizer.eos_id], encoded.values[start:end])).astype(np.int64)
                for start, end in pairwise(starts.tolist())
            ]  # each: EOS, content, EOS
            nats = document_nats(model, documents, parameters)
            for i, (source, ids) in enumerate(zip(sources, documents, strict=True)):
                if source is None:
                    raise TrainingError(
                        f"held-out {part.name}: a document has no source; expected a string in every row"
                    )
                if not math.isfinite(nats[i]):
                    raise NonFiniteError(
                        f"held-out {part.name}: the loss of a document of {source!r} is {nats[i]}, expected a finite "
                        "number: the training of this model diverged"
                    )
                yield (
                    source,
                    _Sums(
                        documents=1,
                        bytes=int(encoded.text_bytes[i]),
                        tokens=len(ids) - 1,
                        lossy_documents=int(encoded.lost_bytes[i] != 0),
                        bits=nats[i] / math.log(2),
                        unigram_bits=float(token_bits[ids[1:]].sum()),
                    ),
                )


def document_nats(
    model: LanguageModel, documents: list[NDArray[np.int64]], parameters: BitsPerByteParameters
) -> list[float]:
    """Return ``-ln p(ids[1:] | ids[0])`` of each document, in chunks of ``model.max_seq_len`` predictions."""
    length = model.max_seq_len
    # neighbouring chunks share a token: it is the last target of one and the first input of the next
    chunks = [
        (number, ids[start : start + length + 1])
        for number, ids in enumerate(documents)
        for start in range(0, len(ids) - 1, length)
    ]
    chunk_nats = [0.0] * len(chunks)
    for width, selected in _batches([len(ids) - 1 for _, ids in chunks], parameters.batch_size):
        together = [chunks[i][1] for i in selected]
        losses = _chunk_losses(model, together, min(length, width), parameters)
        for i, of_tokens in zip(selected, losses, strict=True):
            chunk_nats[i] = float(of_tokens.sum())
    sums = [0.0] * len(documents)
    for (number, _), nats in zip(chunks, chunk_nats, strict=True):
        sums[number] += nats
    return sums


def token_nats(
    model: LanguageModel, sequences: Sequence[NDArray[np.int64]], parameters: BitsPerByteParameters
) -> list[NDArray[np.float64]]:
    """Return ``-ln p(ids[t] | ids[:t])`` for t from 1, of each sequence: float64 (predictions,).

    Raises:
        TrainingError: a sequence has more predictions than the model's context.
        NonFiniteError: a loss is infinite or not a number.
    """
    length = model.max_seq_len
    if (longest := max(map(len, sequences), default=0)) > length + 1:
        raise TrainingError(f"a sequence has {longest - 1} predictions, the model reads {length}: cut the sequence")
    found: list[NDArray[np.float64]] = [np.zeros(0)] * len(sequences)
    model.eval()
    with execution(parameters.execution), torch.inference_mode():
        for width, selected in _batches([len(ids) - 1 for ids in sequences], parameters.batch_size):
            together = [sequences[i] for i in selected]
            losses = _chunk_losses(model, together, min(length, width), parameters)
            for i, of_tokens in zip(selected, losses, strict=True):
                if not np.isfinite(of_tokens).all():
                    raise NonFiniteError("a loss is not finite: the training of this model diverged")
                found[i] = of_tokens
    return found


def _batches(predictions: list[int], batch_size: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (width, numbers of the chunks) of batches of chunks with so many predictions, the narrowest first.

    Chunks of different widths are never in one batch, so padding adds less than ``_PAD_TO`` positions to each.
    """

    def width(number: int) -> int:
        return -(-predictions[number] // _PAD_TO) * _PAD_TO

    for wide, group in groupby(sorted(range(len(predictions)), key=width), key=width):  # stable
        numbers = list(group)
        for start in range(0, len(numbers), batch_size):
            yield wide, numbers[start : start + batch_size]


def _chunk_losses(
    model: LanguageModel, chunks: list[NDArray[np.int64]], width: int, parameters: BitsPerByteParameters
) -> list[NDArray[np.float64]]:
    """Return the losses of each chunk (its tokens 1 onward, given those before), padded to ``width``."""
    ids_of = np.zeros((2, len(chunks), width), np.int64)  # inputs and targets
    is_counted = np.zeros((len(chunks), width), np.bool_)
    for row, ids in enumerate(chunks):
        predictions = len(ids) - 1
        ids_of[:, row, :predictions] = ids[:-1], ids[1:]
        is_counted[row, :predictions] = True
    weight = model.output_weight()
    inputs, targets = to_device(torch.from_numpy(ids_of), weight.device)  # (chunks, width)
    counted = to_device(torch.from_numpy(is_counted), weight.device)
    with autocast(parameters.execution, weight.device.type):
        hidden = model.hidden_states(inputs)  # (chunks, width, d_model)
        losses = token_losses(hidden[counted], weight, targets[counted]).double().cpu().numpy()
    ends = np.cumsum([len(ids) - 1 for ids in chunks])
    return np.split(losses, ends[:-1])
