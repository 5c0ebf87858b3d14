"""Loss on held-out documents while training, by source.

Documents are chosen, encoded and cut once, into a file: of each source those with the lowest hash of their address,
cut into chunks as `everytoken.training.evaluation.language_modelling` does (each document after an EOS that is context
only, each token predicted once). The file has the chunks, so what is measured is the same at every step, in every
process and after every restart.

Processes take batches of chunks in turn, all equally many: FSDP2 needs every process in every forward pass. A chunk's
loss is computed by one process and added to zeros of the others, so its value does not depend on how many there are.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import nn

from everytoken.address import ADDRESS_COLUMNS
from everytoken.progress import progress, steps_done
from everytoken.seeds import uniform_hash
from everytoken.shards import Part, atomic_file, file_sha256
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.training.errors import TrainingError
from everytoken.training.parameters import ExecutionParameters
from everytoken.training.step import ALONE, HeldOutRecord, Ranks, autocast, document_numbers

_PAD_TO = 32  # few distinct shapes: each new one costs oneDNN a set-up


@dataclass(frozen=True, eq=False)
class HeldOutChunks:
    """Chunks of documents, the shortest first, and what they are chunks of.

    Attributes:
        tokens: int64 (n, seq_length + 1); zeros after the end of a chunk.
        predictions: number of predictions of each chunk, int64 (n,): its tokens 1 to ``predictions``.
        source: index into ``names``, int64 (n,).
        names: sources in alphabetical order.
        bytes: UTF-8 bytes of each source's documents, int64 (sources,).
    """

    tokens: NDArray[np.int64]
    predictions: NDArray[np.int64]
    source: NDArray[np.int64]
    names: tuple[str, ...]
    bytes: NDArray[np.int64]


def prepare_held_out(
    encoder: DocumentEncoder, parts: Iterable[Part], *, seq_length: int, documents: int, seed: int
) -> HeldOutChunks:
    """Choose, encode and cut documents.

    Args:
        encoder: encodes as the documents were that the model trains on.
        parts: held-out documents with the columns ``text, source, shard_index, row``.
        documents: of each source at most so many, those with the lowest `everytoken.seeds.uniform_hash` of their
            address.

    Raises:
        TrainingError: there are no documents, one has no source, or those of a source have no bytes.
    """
    chosen = lowest_by_hash(parts, documents, seed)
    if not chosen:
        raise TrainingError("there are no held-out documents; raise the share that is held out")
    names = tuple(sorted(chosen))
    chunks: list[tuple[int, NDArray[np.int64]]] = []
    source_bytes = np.zeros(len(names), np.int64)
    for number, name in enumerate(names):
        encoded = encoder.encode(chosen[name])
        source_bytes[number] = encoded.text_bytes.sum()
        if not source_bytes[number]:
            raise TrainingError(f"the held-out documents of source {name!r} have no text; expected at least one byte")
        for start, end in pairwise(encoded.offsets.tolist()):
            ids = np.concatenate(([encoder.tokenizer.eos_id], encoded.values[start:end])).astype(np.int64)
            # neighbouring chunks share a token: it is the last target of one and the first input of the next
            chunks += [(number, ids[i : i + seq_length + 1]) for i in range(0, len(ids) - 1, seq_length)]
    chunks.sort(key=lambda chunk: len(chunk[1]))  # stable
    tokens = np.zeros((len(chunks), seq_length + 1), np.int64)
    for row, (_, ids) in enumerate(chunks):
        tokens[row, : len(ids)] = ids
    return HeldOutChunks(
        tokens,
        np.array([len(ids) - 1 for _, ids in chunks], np.int64),
        np.array([number for number, _ in chunks], np.int64),
        names,
        source_bytes,
    )


def lowest_by_hash(parts: Iterable[Part], documents: int, seed: int) -> dict[str, list[str]]:
    """Return at most ``documents`` texts of each source, in the order of their hashes; holds no more than these."""
    kept: dict[str, list[tuple[float, int, int, str]]] = {}
    for part in parts:
        for batch in part.batches([*ADDRESS_COLUMNS, "text"]):
            for source, shard, row, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if source is None or text is None:
                    raise TrainingError(
                        f"held-out {part.name}: a document has no source or no text; expected strings in every row"
                    )
                entry = (-uniform_hash(seed, "held-out loss", source, shard, row), -shard, -row, text)
                heap = kept.setdefault(source, [])
                if len(heap) < documents:
                    heapq.heappush(heap, entry)
                elif entry > heap[0]:
                    heapq.heapreplace(heap, entry)
    return {source: [text for *_, text in sorted(heap, reverse=True)] for source, heap in kept.items()}


def write_held_out(path: Path, chunks: HeldOutChunks) -> None:
    """Write chunks as safetensors; equal chunks give equal bytes."""
    tensors = {
        "tokens": chunks.tokens,
        "predictions": chunks.predictions,
        "source": chunks.source,
        "bytes": chunks.bytes,
    }
    with atomic_file(path) as temporary:
        save_file(tensors, temporary, metadata={"names": json.dumps(chunks.names)})
        temporary.chmod(0o644)


def read_held_out(path: Path, sha256: str | None) -> HeldOutChunks:
    """Read what `write_held_out` wrote; raise ``TrainingError`` when it is missing or has another SHA-256."""
    try:
        found = file_sha256(path)
        if found != sha256:
            raise TrainingError(
                f"{path} is not the file that this run measures on: expected SHA-256 {sha256}, found {found}; run "
                "`everytoken train` again, it writes the file"
            )
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in ("tokens", "predictions", "source", "bytes")}
            names = tuple(json.loads(file.metadata()["names"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"{path} does not hold held-out chunks ({error}); prepare them again") from error
    return HeldOutChunks(names=names, **arrays)


def evaluate_held_out(
    module: nn.Module,
    chunks: HeldOutChunks,
    *,
    step: int,
    batch_size: int,
    execution_parameters: ExecutionParameters,
    processes: Ranks = ALONE,
    eos_id: int | None = None,
) -> list[HeldOutRecord]:
    """Return the loss of each source, in order. Every process of the training must call it.

    Args:
        module: what `everytoken.training.step.loop.prepare` returned; its mode is put back afterwards.
        batch_size: chunks of a forward pass of a process.
        execution_parameters: arithmetic; run it inside ``execution`` of them.
        eos_id: attention and positions begin anew after this token, as in training; None: they do not.
    """
    nats = torch.zeros(len(chunks.tokens), dtype=torch.float64, device=processes.device)
    starts = range(0, len(chunks.tokens), batch_size)
    training = module.training
    module.eval()
    turns = range(0, len(starts), processes.size)
    for turn in progress(turns, len(turns), f"held-out after {steps_done(step)}", "batch"):
        # a process that has no batch left takes the last one, and adds nothing
        mine = turn + processes.rank
        start = starts[min(mine, len(starts) - 1)]
        losses = _chunk_nats(module, chunks, start, start + batch_size, execution_parameters, processes, eos_id)
        if mine < len(starts):
            nats[start : start + batch_size] = losses
    module.train(training)
    processes.add(nats)()
    sums = np.zeros(len(chunks.names))
    np.add.at(sums, chunks.source, nats.cpu().numpy())
    return [
        HeldOutRecord(step, name, float(sums[i] / math.log(2) / chunks.bytes[i]), float(sums[i]), int(chunks.bytes[i]))
        for i, name in enumerate(chunks.names)
    ]


def _chunk_nats(
    module: nn.Module,
    chunks: HeldOutChunks,
    start: int,
    end: int,
    execution_parameters: ExecutionParameters,
    processes: Ranks,
    eos_id: int | None,
) -> torch.Tensor:
    """Return the sum of the losses of each of the chunks from ``start`` to ``end``, float64."""
    predictions = chunks.predictions[start:end]
    width = min(chunks.tokens.shape[1] - 1, -(-int(predictions.max()) // _PAD_TO) * _PAD_TO)
    tokens = processes.to_device(torch.from_numpy(chunks.tokens[start:end, : width + 1]))  # (chunks, width + 1)
    counted = torch.arange(width, device=tokens.device) < processes.to_device(torch.from_numpy(predictions))[:, None]
    documents = None if eos_id is None else document_numbers(tokens, eos_id)
    with autocast(execution_parameters, tokens.device.type):
        losses = processes.evaluate(module, tokens, counted, documents)
    each = torch.zeros(counted.shape, dtype=torch.float64, device=tokens.device)
    each[counted] = losses.double()
    return each.sum(1)
