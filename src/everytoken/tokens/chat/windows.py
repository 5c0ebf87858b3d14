"""Chats as a stream of windows in which only what the assistant says counts: the data of finetuning.

Every chat begins a window of its own, and EOS pads it. The mask (`everytoken.tokens.streams.loss_mask`) counts the
predictions whose target is a token of the assistant or the end of its turn, each once over all windows of the chat. An
*exchange* is a turn of the assistant with what was said since the turn before. A chat that is longer than a window
becomes several (`cut_chat`):

- A window ends at the last end of a turn that fits.
- The next one begins with as many whole exchanges as fit into ``context_tokens``, repeated as context that counts no
  more, and leave room for one new exchange. (So the context may be none.)
- Of an exchange that is longer than a window, the front of what precedes the turn is left out, as much as is needed.
- A turn that does not fit beside ``context_tokens`` of what precedes it begins after these, and goes on in further
  windows that each repeat ``context_tokens`` tokens.

So every token of the assistant is learned once. Left out, and counted, are what follows its last turn and the said
fronts. Windows are in the order ``numpy_generator(seed).permutation(windows)`` of chats in part and row order.

Cost. One process reads and encodes; memory is a batch of rows, and ``shuffle_memory``. Disk: twice the windows, and in
temporary files 24 bytes a window and ``shuffle_memory``.
"""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.corpus import excluded_addresses
from everytoken.outofcore import destinations, plan_places
from everytoken.seeds import numpy_generator
from everytoken.shards import IN_THIS_PROCESS, Artifact, Built, Shards, fsync_file, versioned
from everytoken.tokens.chat.conversations import ChatTokens
from everytoken.tokens.chat.documents import SKIPPED_CHAT_REASONS, chats_of
from everytoken.tokens.chat.parameters import ChatParameters
from everytoken.tokens.encoding import DocumentEncoder, open_encoder
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams import (
    LOSS_MASK_FILE,
    TokenizerFacts,
    WindowCounts,
    mask_bytes,
    open_placed_windows,
    pack_mask,
    stored_dtype,
    tokenizer_facts,
)
from everytoken.tokens.tokenizer import EncodingRules

_CHATS = "chats"

_COPIED_BYTES = 4 << 20


class ChatStatistics(WindowCounts):
    """Statistics of chat windows, see `write_chat_windows`."""

    padding_tokens: int
    loss_tokens: int
    loss_share: float
    eos_tokens: int
    chats: int
    used: int
    set_aside: dict[str, int]
    turns: int
    tokens_left_out: int
    tokens_repeated: int
    lossy_chats: int
    by_source: dict[str, dict[str, int]]


@versioned("write_chat_windows", 1, unrecorded=["shuffle_memory"])
def write_chat_windows(
    folder: Path,
    *,
    documents: Sequence[Shards],
    tokenizer: Artifact,
    eos_token: str,
    chats: ChatParameters,
    seq_length: int,
    max_lossy_share: float,
    shuffle_memory: int,
    exclusions: Shards | None = None,
) -> Built:
    """Write ``chats.bin``, ``chats.idx`` and ``loss_mask.npy``.

    Args:
        folder: where the files go; also holds temporary files of the size of the windows.
        documents: rows with ``text``, ``source``, ``is_bad`` and, for sources of the kind ``spans``,
            ``assistant_spans``; those of other sources are passed over.
        eos_token: begins each chat, pads, and may end turns.
        seq_length: tokens that a window predicts; a window has one more.
        max_lossy_share: an error when a greater share of the chats loses text.
        shuffle_memory: bytes for windows in memory; 16 bytes a window come on top.
        exclusions: of the parts of the documents (`everytoken.corpus.exclusion`); None: none.

    Returns:
        Statistics: windows, tokens (that are not padding), padding_tokens, loss_tokens (predictions that count),
        loss_share (of all predictions), eos_tokens (all in the file), chats (documents of the sources), used,
        set_aside by reason (`everytoken.tokens.chat.documents`), turns (of the assistant), tokens_left_out,
        tokens_repeated, lossy_chats, by_source (chats, used, windows, loss_tokens), tokenizer (sha256, vocab_size,
        eos_token, eos_id).

    Raises:
        StreamError: ``context_tokens`` leaves no room in a window, a column or a source is missing, spans are not those
            of the text, no chat is left, or too many lose text.
        TokenizerError: see `everytoken.tokens.chat.conversations.mark_ids`.
    """
    window, facts = seq_length + 1, tokenizer_facts(tokenizer)
    if chats.context_tokens >= seq_length:
        raise StreamError(
            f"chats.context_tokens is {chats.context_tokens}; expected less than seq_length, which is {seq_length}: "
            "else no window has room for more of a chat"
        )
    encoder = open_encoder(EncodingRules(tokenizer, eos_token, "literal"))
    counts = _Counts({name: _SourceCounts() for name in chats.rules})
    scratch = Path(tempfile.mkdtemp(prefix="chats-", dir=folder))
    with (scratch / "windows").open("w+b") as windows, (scratch / "masks").open("w+b") as masks:
        for parts in documents:
            excluded = {part.name: excluded_addresses(part) for part in exclusions or ()}
            for part in parts:
                for _, source, chat in chats_of(part, excluded.get(part.name, {}), encoder, chats):
                    counts.by_source[source].chats += 1
                    if isinstance(chat, str):
                        counts.set_aside[chat] += 1
                        continue
                    cuts = list(cut_chat(chat.starts, chat.ends, window, chats.context_tokens))
                    rows, counted = _windows_of(chat, cuts, window, facts)
                    windows.write(rows.data)
                    masks.write(pack_mask(counted).data)
                    counts.add(source, chat, cuts, rows, counted, facts.eos_id)
        _require_chats(counts, max_lossy_share, encoder)
        total = sum(source.windows for source in counts.by_source.values())
        position = destinations(numpy_generator(chats.seed).permutation(total))
        half = shuffle_memory // 2
        with open_placed_windows(
            folder / _CHATS, window, facts.dtype, [position], total, memory=half, ranges=IN_THIS_PROCESS
        ) as placed:
            for first, block in _rows(windows, window, stored_dtype(facts.dtype)):
                placed.write(first, block)
        _write_masks(folder / LOSS_MASK_FILE, masks, position, mask_bytes(seq_length), half, scratch)
    shutil.rmtree(scratch)
    return Built(counts.statistics(total, seq_length, facts))


def cut_chat(starts: Sequence[int], ends: Sequence[int], window: int, context: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first, end, learned) of each window of a chat: its tokens, and up to where they were learned before.

    Args:
        starts: where each turn of the assistant begins, ascending, above 0.
        context: most tokens that are repeated, below ``window - 1``.
    """
    borders = [0, *ends]  # exchange k is from borders[k] to borders[k + 1]
    learned = k = 0
    while k < len(ends):
        if learned > borders[k]:  # in the middle of a turn
            first = learned - context
        else:
            j = k
            while j and borders[k] - borders[j - 1] <= context and ends[k] - borders[j - 1] <= window:
                j -= 1
            first = borders[j]
            if ends[k] - first > window:
                first = max(first, min(ends[k] - window, starts[k] - context))
            first = min(first, starts[k] - 1)  # a turn right after another: its first token follows something too
        fits = bisect_right(borders, first + window) - 1
        end = borders[fits] if fits > k else first + window  # borders[k] <= learned < borders[k + 1]
        yield first, end, learned
        learned, k = end, bisect_right(borders, end) - 1


def _windows_of(
    chat: ChatTokens, cuts: Sequence[tuple[int, int, int]], window: int, facts: TokenizerFacts
) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows of a chat, (n, window), and which predictions count, bool (n, window - 1)."""
    said = np.zeros(len(chat.ids), bool)
    for start, end in zip(chat.starts, chat.ends, strict=True):
        said[start:end] = True
    rows = np.full((len(cuts), window), facts.eos_id, stored_dtype(facts.dtype))
    counted = np.zeros((len(cuts), window - 1), bool)
    for row, mask, (first, end, learned) in zip(rows, counted, cuts, strict=True):
        row[: end - first] = chat.ids[first:end]
        begin = max(first + 1, learned)
        mask[begin - first - 1 : end - first - 1] = said[begin:end]
    return rows, counted


@dataclass
class _SourceCounts:
    chats: int = 0
    used: int = 0
    windows: int = 0
    loss_tokens: int = 0


@dataclass
class _Counts:
    by_source: dict[str, _SourceCounts]
    set_aside: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    tokens: int = 0
    eos_tokens: int = 0
    left_out: int = 0
    repeated: int = 0
    lossy: int = 0

    def add(
        self,
        source: str,
        chat: ChatTokens,
        cuts: Sequence[tuple[int, int, int]],
        rows: np.ndarray,
        counted: np.ndarray,
        eos_id: int,
    ) -> None:
        """Count a chat with its windows."""
        own = self.by_source[source]
        own.used += 1
        own.windows += len(rows)
        own.loss_tokens += int(np.count_nonzero(counted))
        self.turns += len(chat.starts)
        self.eos_tokens += int(np.count_nonzero(rows == eos_id))
        self.tokens += sum(end - first for first, end, _ in cuts)
        self.left_out += chat.left_out + sum(max(0, first - learned) for first, _, learned in cuts)
        self.repeated += sum(max(0, learned - first) for first, _, learned in cuts)
        self.lossy += chat.lost_bytes > 0

    def statistics(self, windows: int, seq_length: int, facts: TokenizerFacts) -> ChatStatistics:
        """Return what the ledger says."""
        loss_tokens = sum(source.loss_tokens for source in self.by_source.values())
        return {
            "windows": windows,
            "tokens": self.tokens,
            "padding_tokens": windows * (seq_length + 1) - self.tokens,
            "loss_tokens": loss_tokens,
            "loss_share": loss_tokens / (windows * seq_length),
            "eos_tokens": self.eos_tokens,
            "chats": sum(source.chats for source in self.by_source.values()),
            "used": sum(source.used for source in self.by_source.values()),
            "set_aside": {
                reason: self.set_aside[reason] for reason in sorted({*SKIPPED_CHAT_REASONS, *self.set_aside})
            },
            "turns": self.turns,
            "tokens_left_out": self.left_out,
            "tokens_repeated": self.repeated,
            "lossy_chats": self.lossy,
            "by_source": {name: asdict(source) for name, source in sorted(self.by_source.items())},
            "tokenizer": facts.recorded,
        }


def _require_chats(counts: _Counts, max_lossy_share: float, encoder: DocumentEncoder) -> None:
    for name, source in counts.by_source.items():
        if not source.chats:
            raise StreamError(
                f"the documents have none of source {name!r}; set chats.sources.{name} to null, or draw documents of it"
            )
    used = sum(source.used for source in counts.by_source.values())
    if not used:
        raise StreamError(
            f"no chat is left of sources {sorted(counts.by_source)}: set aside are {dict(counts.set_aside)}; look at "
            "chats.sources and chats.include_bad"
        )
    if counts.lossy > max_lossy_share * used:
        raise StreamError(
            f"{counts.lossy} of {used} chats lose text, allowed is a share of {max_lossy_share}. "
            f"{encoder.tokenizer.why_lossy}"
        )


def _rows(file: Any, items: int, dtype: np.dtype[Any]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows of a file that was just written, (n, items), with the number of the first of them."""
    file.seek(0)
    first, size = 0, items * dtype.itemsize
    while block := file.read(max(1, _COPIED_BYTES // size) * size):
        yield first, np.frombuffer(block, dtype).reshape(-1, items)
        first += len(block) // size


def _write_masks(path: Path, masks: Any, position: np.ndarray, size: int, memory: int, scratch: Path) -> None:
    """Write what `numpy.save` would write of all masks in the order of their windows."""
    places = plan_places(
        scratch / "ordered", [position], len(position), size, memory=memory, workers=1, scratch=scratch
    )
    for first, rows in _rows(masks, size, np.dtype(np.uint8)):
        places.write(first, rows)
    for bucket in places.buckets():
        places.sort(bucket).unlink()
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(position), size)}
    with path.open("wb") as file, places.file.open("rb") as ordered:
        np.lib.format.write_array_header_1_0(file, header)
        shutil.copyfileobj(ordered, file)
    fsync_file(path)
