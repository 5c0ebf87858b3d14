"""Training batches straight from the streams, memory-mapped: step s of global batch G is samples [s G, (s + 1) G).

A window has ``seq_length + 1`` tokens and makes ``seq_length`` predictions; prediction t sees tokens 0..t and predicts
token t + 1. The loss mask says which of them count: all of a compact stream; of flat tokens all but the predictions of
padding, where the manifest of raw shards says that they have any; ``t < token_length`` in a padded window (annotated,
reflected, canary), where the last that counts predicts EOS, and what follows (EOS to padding) does not; where there is
a ``loss_mask.npy``, what it says (chats, and a compact stream of which documents are excluded:
`everytoken.tokens.streams.loss_mask`).

A stream is one of these, told by what lies at its path:

- a Megatron stream of windows (its folder, or its path without ``.bin`` and ``.idx``);
- a Megatron stream of documents (sequences of more than one length, as ``everytoken tokenize`` writes), raw shards (a
  folder with ``manifest.json``, or one of its files), or tensors of ``torch.save`` (one file, or a folder of
  ``shard_*.bin``), all as flat tokens: window i is tokens [i T, i T + T + 1) (`everytoken.tokens.streams.flat_tokens`).

Which samples read which windows is the matter of `everytoken.tokens.order.sample_order`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from everytoken.shards import Artifact, file_sha256, files_here, is_here
from everytoken.tokens.checks import (
    Level,
    Seen,
    check_ids,
    check_sample,
    map_stream,
    recorded_statistics,
    require,
    sample_tokens,
    verify,
)
from everytoken.tokens.errors import StreamError
from everytoken.tokens.order.parameters import DataParameters
from everytoken.tokens.order.sample_order import SampleOrder, StreamRange
from everytoken.tokens.streams import (
    MANIFEST_FILE,
    FlatTokens,
    FlatWindows,
    open_tokens,
    read_raw_shards_manifest,
    unpack_mask,
    with_name,
)

_CHUNK = 1 << 22  # tokens of a tensor file that are checked at a time


@dataclass(frozen=True, eq=False)
class WindowStream:
    """One stream, memory-mapped.

    Attributes:
        name: of the stream; of its files when nobody named it.
        windows: tokens, an array (n, seq_length + 1), or flat tokens in windows.
        token_lengths: content tokens of each window, int32 (n,); None when windows are not padded.
        loss_mask: rows of its ``loss_mask.npy``, uint8 (n, ceil(seq_length / 8)); None when it has none.
    """

    name: str
    windows: np.ndarray | FlatWindows
    token_lengths: np.ndarray | None
    loss_mask: np.ndarray | None

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.windows)

    @property
    def seq_length(self) -> int:
        """Predictions a window makes."""
        return self.windows.seq_length if isinstance(self.windows, FlatWindows) else int(self.windows.shape[1]) - 1

    def tokens(self, numbers: np.ndarray) -> np.ndarray:
        """Return windows by number, (n, seq_length + 1), in the type of the files; may be a view of them."""
        if isinstance(self.windows, FlatWindows):
            return self.windows.read(numbers)
        if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1 and (np.diff(numbers) == 1).all():
            return self.windows[numbers[0] : numbers[-1] + 1]
        tokens: np.ndarray = self.windows[numbers]
        return tokens

    def clear(self, mask: np.ndarray, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Clear what does not count in rows of a mask, (n, seq_length), that are these windows and all true."""
        if isinstance(self.windows, FlatWindows):
            self.windows.clear(mask, rows, numbers)
        elif self.loss_mask is not None:
            mask[rows] = unpack_mask(self.loss_mask[numbers], self.seq_length)
        elif self.token_lengths is not None:
            for row, length in zip(rows.tolist(), self.token_lengths[numbers].tolist(), strict=True):
                mask[row, length:] = False


@dataclass(frozen=True, eq=False)
class TrainingWindows:
    """The samples of a run. Stateless, so any step or range can be read again.

    Attributes:
        streams: in the order in which they were given, which is that of the rule ``spp``.
        order: which window each sample is.
    """

    streams: tuple[WindowStream, ...]
    order: SampleOrder

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the streams."""
        return self.order.names

    @property
    def sizes(self) -> tuple[int, ...]:
        """Windows of each stream."""
        return self.order.sizes

    @property
    def seq_length(self) -> int:
        """Predictions a window makes."""
        return next(stream.seq_length for stream in self.streams if len(stream))

    @property
    def samples_available(self) -> int | None:
        """Samples of this run: b - a of a replay [a, b), None when there is no end."""
        return self.order.samples_available

    def samples_of_step(self, step: int) -> np.ndarray:
        """Return the samples of a step, int64 (batch_size,); see `SampleOrder.samples_of_step`."""
        return self.order.samples_of_step(step)

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return streams, int64 (n,), and windows, int64 (n,), of samples, int64 (n,)."""
        return self.order.locate(samples)

    def ranges(self, first_sample: int, last_sample: int) -> dict[str, StreamRange]:
        """Return what samples [first_sample, last_sample) read of each stream; see `SampleOrder.ranges`."""
        return self.order.ranges(first_sample, last_sample)

    def read(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens, int64 (n, seq_length + 1), and loss mask, bool (n, seq_length), of samples, int64 (n,).

        Raises:
            StreamError: a sample is negative, or beyond the end of a replay.
        """
        streams, windows = self.locate(samples)
        tokens = np.empty((len(windows), self.seq_length + 1), np.int64)
        mask = np.ones((len(windows), self.seq_length), bool)
        for number, stream in enumerate(self.streams):  # each row is of one of them, so every token is written
            (rows,) = (streams == number).nonzero()
            if not len(rows):
                continue
            own = windows[rows]
            tokens[rows] = stream.tokens(own)
            stream.clear(mask, rows, own)
        return tokens, mask

    def read_batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens, int64 (batch_size, seq_length + 1), and loss mask, bool (batch_size, seq_length), of a step.

        A process that needs some rows alone calls ``read(samples_of_step(step)[rows])``: they are the same.
        """
        return self.read(self.samples_of_step(step))


def open_training_windows(
    streams: Mapping[str, Artifact | Path], data: DataParameters, batch_size: int, seq_length: int | None = None
) -> TrainingWindows:
    """Open streams and the order in which a run reads them.

    Args:
        streams: by name; in the rule ``spp`` their order counts.
        data: rule, weights, epochs, replay, and how the streams are checked now (``check``).
        seq_length: predictions of a window, where only flat tokens are given: streams of windows say it themselves.

    Raises:
        StreamError: a stream is not there, is damaged, or is not what its ledger or manifest says; the streams do not
            have one seq_length; or weights and streams do not belong together.
    """
    opened = {name: _open(name, stream, data.check) for name, stream in streams.items()}
    lengths = {name: one.seq_length for name, one in opened.items() if isinstance(one, WindowStream) and len(one)}
    if seq_length is not None:
        lengths["the argument seq_length"] = seq_length
    if len(set(lengths.values())) > 1:
        raise StreamError(
            f"the streams have windows of {lengths} predictions; write all streams of a run with one seq_length"
        )
    length = next(iter(lengths.values()), None)
    made = tuple(_in_windows(name, one, length) for name, one in opened.items())
    return TrainingWindows(made, SampleOrder(tuple(opened), [len(stream) for stream in made], data, batch_size))


def open_one_stream(name: str, stream: Artifact | Path, check: Level, seq_length: int | None) -> WindowStream:
    """Open a stream of any kind.

    Args:
        check: as of `open_window_stream`.
        seq_length: predictions of a window of flat tokens; windows say it themselves.

    Raises:
        StreamError: it is not there, is damaged, or is flat and nothing says how long its windows are.
    """
    return _in_windows(name, _open(name, stream, check), seq_length)


def _in_windows(name: str, opened: WindowStream | FlatTokens, seq_length: int | None) -> WindowStream:
    if isinstance(opened, WindowStream):
        return opened
    if seq_length is None:
        raise StreamError(f"nothing says how long the windows of {name} are, which are flat tokens: give seq_length")
    return WindowStream(name, opened.windows(seq_length), None, None)


def open_window_stream(stream: Artifact | Path, check: Level = "sampled") -> WindowStream:
    """Open a Megatron stream of windows, in an artifact, a folder or at a prefix.

    It is padded when the folder has ``token_lengths.npy``, and has a mask of its own when it has ``loss_mask.npy``.

    Args:
        stream: what to open.
        check: ``sizes`` compares sizes with the index and with the ledger, where there is one; ``sampled`` looks at a
            sample of windows too (about a millisecond, whatever the size); ``full`` reads every byte.

    Raises:
        StreamError: the folder holds not exactly one stream, or the stream is damaged.
    """
    path = _path_of(stream)
    if (prefix := _prefix(path)) is None:
        raise StreamError(f"{path} is no Megatron stream: expected a .bin and an .idx file of one name")
    folder = prefix.parent
    if check == "full":
        require(verify(path if path.is_dir() else prefix, "full"))
    opened, statistics = map_stream(prefix), recorded_statistics(folder)
    if check == "sampled":
        check_sample(opened, statistics)
    arrays = (opened.lengths, opened.masks)
    assert opened.windows is not None
    plain = [None if array is None else array.view(np.ndarray) for array in arrays]  # faster than np.memmap
    return WindowStream(prefix.name, opened.windows.view(np.ndarray), *plain)


def _path_of(stream: Artifact | Path) -> Path:
    path = stream if isinstance(stream, Path) else stream.folder
    if path is None:
        raise StreamError("the stream is only planned; save it, then use what its store loads")
    return path


def _prefix(path: Path) -> Path | None:
    """Return the prefix of the Megatron stream that lies there, None when none does."""
    if path.is_dir():
        indexes = files_here(path, "*.idx")
        if len(indexes) > 1:
            raise StreamError(f"{path} holds the indexes {[one.name for one in indexes]}; expected one stream")
        return indexes[0].with_suffix("") if indexes else None
    return next((one for one in (path, path.with_suffix("")) if is_here(with_name(one, ".idx"))), None)


def _open(name: str, stream: Artifact | Path, check: Level) -> WindowStream | FlatTokens:
    path = _path_of(stream)
    prefix = _prefix(path)
    if prefix is not None and map_stream(prefix, {}).windows is not None:
        return replace(open_window_stream(path, check), name=name)
    tokens = open_tokens(path)  # also the error of a path that is not there
    folder = path if path.is_dir() else path.parent
    recorded_statistics(folder)
    if prefix is not None or (path.is_dir() and (path / MANIFEST_FILE).is_file()):
        require(verify(path, check))
    elif check != "sizes":
        _check_files(path, tokens, check)
    return tokens


def _check_files(path: Path, tokens: FlatTokens, check: Level) -> None:
    """Check files of flat tokens that are no whole set of raw shards.

    Raises:
        StreamError: an id is negative, or with ``full`` a file is not what its manifest or its archive says.
    """
    if check == "sampled":
        sample_tokens(path, tokens, None)
        return
    for file in sorted(path.glob("shard_*.bin")) if path.is_dir() else [path]:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if (damaged := archive.testzip()) is not None:
                    raise StreamError(f"{file}: {damaged} in it does not have its CRC-32; bring the file again")
        else:
            shards = {shard["name"]: shard for shard in read_raw_shards_manifest(file.parent)["shards"]}
            if (found := file_sha256(file)) != (expected := shards[file.name]["sha256"]):
                raise StreamError(f"{file}: expected SHA-256 {expected[:16]}, found {found[:16]}")
    for start in range(0, len(tokens), _CHUNK):
        ids = tokens[start : start + _CHUNK]
        check_ids(path, np.array([start]), ids[None], None, None, Seen())
