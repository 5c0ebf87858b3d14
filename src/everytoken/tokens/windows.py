"""Training batches straight from the streams: step s of global batch G is samples [s G, (s + 1) G).

A window has ``seq_length + 1`` tokens and makes ``seq_length`` predictions; prediction t sees tokens 0..t and
predicts token t + 1. The loss mask is all true for a compact window. In a padded window (annotated,
reflected, canary) prediction t counts for ``t < token_length``: the last that counts predicts EOS, and what
follows (EOS to padding) does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from everytoken.shards import Artifact
from everytoken.tokens.errors import StreamError
from everytoken.tokens.integrity import recorded_statistics
from everytoken.tokens.interleave import windows_of_samples
from everytoken.tokens.megatron import open_indexed
from everytoken.tokens.padded_stream import TOKEN_LENGTHS_FILE
from everytoken.tokens.stream_checks import check_sample, open_lengths


@dataclass(frozen=True, eq=False)
class WindowStream:
    """One stream, memory-mapped.

    Attributes:
        name: name of its files.
        windows: tokens, (n, seq_length + 1).
        token_lengths: content tokens of each window, int32 (n,); None when windows are not padded (compact).
    """

    name: str
    windows: np.ndarray
    token_lengths: np.ndarray | None

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.windows)


def open_window_stream(stream: Artifact | Path) -> WindowStream:
    """Open the stream in an artifact or folder; it is padded when the folder has ``token_lengths.npy``.

    Sizes are compared with the index and with the ledger, where there is one, and a sample of windows is looked at
    (`everytoken.tokens.stream_checks.check_sample`): about a millisecond, whatever the size. ``everytoken verify
    --full`` looks at all.

    Raises:
        StreamError: the folder holds not exactly one stream, the stream is damaged, or lengths and windows
            disagree.
    """
    folder = stream if isinstance(stream, Path) else stream.folder
    if folder is None:
        raise StreamError("the stream is only planned; save it, then use what its store loads")
    indexes = sorted(folder.glob("*.idx"))
    if len(indexes) != 1:
        raise StreamError(f"{folder} holds the indexes {[path.name for path in indexes]}; expected one stream")
    prefix = indexes[0].with_suffix("")
    windows = open_indexed(prefix).windows()
    lengths_path = folder / TOKEN_LENGTHS_FILE
    lengths = open_lengths(lengths_path, len(windows)) if lengths_path.exists() else None
    check_sample(prefix, windows, lengths, recorded_statistics(folder))
    return WindowStream(prefix.name, windows, lengths)


@dataclass(frozen=True, eq=False)
class TrainingWindows:
    """The samples of a run: streams interleaved by weight. Stateless, so any step or range can be read again.

    Attributes:
        streams: in the order of the interleaving rule: compact, annotated (or reflected), and canary if there
            is one.
        weights: of the streams; None: proportional to their sizes.
    """

    streams: tuple[WindowStream, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check that all windows have one length."""
        lengths = {stream.name: stream.windows.shape[1] for stream in self.streams if len(stream)}
        if len(set(lengths.values())) != 1:
            raise StreamError(
                f"windows have {lengths} tokens; all streams of a run must be written with one seq_length"
            )

    @property
    def seq_length(self) -> int:
        """Predictions a window makes."""
        return int(next(stream.windows.shape[1] for stream in self.streams if len(stream))) - 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Windows of each stream."""
        return tuple(len(stream) for stream in self.streams)

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the streams, int64 (n,), and windows, int64 (n,), of samples, int64 (n,)."""
        return windows_of_samples(samples, self.sizes, self.weights)

    def read(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens, int64 (n, seq_length + 1), and loss mask, bool (n, seq_length), of samples, int64
        (n,).
        """
        streams, windows = self.locate(samples)
        tokens = np.empty((len(windows), self.seq_length + 1), np.int64)
        mask = np.ones((len(windows), self.seq_length), bool)
        predictions = np.arange(self.seq_length)
        for number, stream in enumerate(self.streams):
            here = np.flatnonzero(streams == number)
            if not len(here):
                continue
            tokens[here] = stream.windows[windows[here]]
            if stream.token_lengths is not None:
                mask[here] = predictions < stream.token_lengths[windows[here]][:, None]
        return tokens, mask

    def read_batch(self, step: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens, int64 (batch_size, seq_length + 1), and loss mask, bool (batch_size, seq_length), of
        a step.

        Args:
            step: number of the step, from 0.
            batch_size: global batch; a rank takes its rows of it, or calls `read` with its own sample
                numbers.
        """
        return self.read(np.arange(step * batch_size, (step + 1) * batch_size))


def open_training_windows(
    streams: Sequence[Artifact | Path], weights: Sequence[float] | None = None
) -> TrainingWindows:
    """Open streams in the order of the interleaving rule.

    Raises:
        StreamError: see `open_window_stream` and `everytoken.tokens.interleave.later_shares`.
    """
    opened = TrainingWindows(
        tuple(open_window_stream(stream) for stream in streams), None if weights is None else tuple(weights)
    )
    opened.locate(np.zeros(1, np.int64))  # wrong weights fail now, not in the first batch
    return opened
