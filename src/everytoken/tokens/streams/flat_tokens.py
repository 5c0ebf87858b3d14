"""Flat tokens of whatever holds them: raw shards, a Megatron stream, a tensor of ``torch.save``. Told by content.

``tokens = open_tokens(path)`` is one sequence over all files, memory-mapped: ``len(tokens)``, ``tokens[a:b]`` (a view
inside a file, a copy across a border), ``tokens.windows(seq_length)``. Window i is tokens ``[i * T, i * T + T + 1)``:
neighbours share one token, and what fills no window is ``remainder``. Nothing is made up: what is not there, or does
not say what it holds, is an error.

Files stay mapped while the object lives. A data set that is packed again takes a new folder by rename, so open tokens
stay what they were.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from everytoken.shards import Artifact, files_here, is_here, size_here
from everytoken.shards.remote import map_values
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams.megatron import open_indexed, with_name
from everytoken.tokens.streams.one_document_per_window import TOKEN_LENGTHS_FILE
from everytoken.tokens.streams.raw_shards import DTYPES, MANIFEST_FILE, RAW_SHARDS_FORMAT, content_tokens, shard_name


class FlatTokens:
    """Tokens of several files as one sequence.

    Attributes:
        segments: the tokens of each file, 1-D arrays of one integer type.
    """

    def __init__(self, segments: Sequence[np.ndarray], padding: Sequence[int] | None = None) -> None:
        """Join ``segments``; empty ones are left out, and none at all are no tokens.

        ``padding``: how many tokens at the end of each are padding; None: none is.
        """
        held = [of for of, segment in zip(padding or [0] * len(segments), segments, strict=True) if len(segment)]
        self._padding = np.array(held, np.int64)
        self.segments = [segment.view(np.ndarray) for segment in segments if len(segment)]  # faster than np.memmap
        self.dtype: np.dtype[Any] = segments[0].dtype if segments else np.dtype("<u4")
        self._ends = np.cumsum([len(segment) for segment in self.segments], dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> np.ndarray: ...
    def __getitem__(self, key: int | slice) -> int | np.ndarray:
        """Return a token, or the tokens of a slice as a sequence gives them: a view where one file holds them all."""
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step < 0:
                return self._range(stop + 1, start + 1)[::-1][::-step]
            return self._range(start, stop)[::step]
        place = range(len(self))[key]  # raises IndexError, and counts from the end as sequences do
        number = int(np.searchsorted(self._ends, place, "right"))
        return int(self.segments[number][place - self._begin(number)])

    def padding_between(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the positions [first, end) of padding among the positions [start, stop)."""
        if not self._padding.any():
            return
        first, last = (int(n) for n in np.searchsorted(self._ends, [start, stop], "right"))
        for number in range(first, min(last + 1, len(self._ends))):
            end = int(self._ends[number])
            begin, end = max(start, end - int(self._padding[number])), min(stop, end)
            if begin < end:
                yield begin, end

    def _begin(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0

    def _range(self, start: int, stop: int) -> np.ndarray:
        if stop <= start:
            return np.empty(0, self.dtype)
        first, last = (int(n) for n in np.searchsorted(self._ends, [start, stop - 1], "right"))
        pieces = [
            self.segments[number][max(0, start - self._begin(number)) : stop - self._begin(number)]
            for number in range(first, last + 1)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def windows(self, seq_length: int) -> FlatWindows:
        """Return the windows of ``seq_length`` predictions.

        Raises:
            StreamError: ``seq_length`` is not positive.
        """
        if seq_length < 1:
            raise StreamError(f"seq_length is {seq_length}; a window makes at least one prediction")
        return FlatWindows(self, seq_length)


class FlatWindows:
    """Windows of flat tokens, gathered when they are asked for.

    Attributes:
        seq_length: predictions of a window, which has one token more.
    """

    def __init__(self, tokens: FlatTokens, seq_length: int) -> None:
        """Lay a grid over each file: the windows that it holds whole are the rows of a view, (n, seq_length + 1)."""
        self.tokens, self.seq_length = tokens, seq_length
        firsts: list[int] = []  # number of the first row of each view
        self._views: list[np.ndarray] = []
        begin, size = 0, seq_length + 1
        for segment in tokens.segments:
            first = -(-begin // seq_length)
            view = np.empty((0, size), segment.dtype)  # of a file in blocks, whose windows are read one by one
            if isinstance(segment, np.ndarray) and len(own := segment[first * seq_length - begin :]) >= size:
                view = np.lib.stride_tricks.sliding_window_view(own, size)[::seq_length]
            firsts.append(first)
            self._views.append(view)
            begin += len(segment)
        self._past = np.array([first + len(view) for first, view in zip(firsts, self._views, strict=True)], np.int64)
        self._first = np.array([*firsts, 1 << 62], np.int64)  # behind the last file every window is over a border

    def __len__(self) -> int:
        """Return how many whole windows there are: ``(len(tokens) - 1) // seq_length``."""
        return max(0, len(self.tokens) - 1) // self.seq_length

    @property
    def remainder(self) -> int:
        """Tokens at the end that are in no window."""
        return len(self.tokens) - (len(self) * self.seq_length + 1 if len(self) else 0)

    def __getitem__(self, i: int) -> np.ndarray:
        """Return window ``i``, (seq_length + 1,); a view where one file holds it."""
        start = range(len(self))[i] * self.seq_length
        return self.tokens[start : start + self.seq_length + 1]

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Return the windows of these numbers, (n, seq_length + 1), in the type of the files.

        Raises:
            IndexError: a number is negative or there is no such window.
        """
        numbers = np.asarray(numbers, np.int64)
        if len(numbers) and not (int(numbers.min()) >= 0 and int(numbers.max()) < len(self)):
            raise IndexError(f"there are {len(self)} windows, asked for {int(numbers.min())} to {int(numbers.max())}")
        holder = np.searchsorted(self._past, numbers, "right")  # the file that holds it whole, if any does
        if len(numbers) and int(holder[0]) < len(self._views) and (holder == holder[0]).all():
            rows = numbers - self._first[int(holder[0])]
            if int(rows.min()) >= 0:
                taken: np.ndarray = self._views[int(holder[0])][rows]
                return taken
        gathered = np.empty((len(numbers), self.seq_length + 1), self.tokens.dtype)
        for number, rows in _groups(np.where(numbers < self._first[holder], -1, holder)):
            if number >= 0:
                gathered[rows] = self._views[number][numbers[rows] - self._first[number]]
                continue
            for row in rows.tolist():
                self._over_border(int(numbers[row]), gathered[row])
        return gathered

    def clear(self, mask: np.ndarray, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Clear the predictions of padding in rows of a mask, (n, seq_length), that are these windows."""
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            first = number * self.seq_length + 1  # prediction t is of token t + 1
            for begin, end in self.tokens.padding_between(first, first + self.seq_length):
                mask[row, begin - first : end - first] = False

    def _over_border(self, number: int, into: np.ndarray) -> None:
        """Write a window that lies in several files, piece by piece."""
        start = number * self.seq_length
        holder = int(np.searchsorted(self.tokens._ends, start, "right"))
        filled = 0
        while filled < len(into):
            begin = start + filled - self.tokens._begin(holder)
            piece = self.tokens.segments[holder][begin : begin + len(into) - filled]
            into[filled : filled + len(piece)] = piece
            filled, holder = filled + len(piece), holder + 1


def _groups(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each value, and where it is, int64 (n,)."""
    order = np.argsort(values, kind="stable")
    for where in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
        if len(where):
            yield int(values[where[0]]), where


def open_tokens(path: Artifact | Path | str, dtype: str | None = None, allow_padding: bool = False) -> FlatTokens:
    """Open raw shards (a folder with a manifest, or one of its files), a Megatron stream (folder, prefix, ``.bin`` or
    ``.idx``), or 1-D tensors of ``torch.save`` (one file, or a folder of ``shard_*.bin``).

    Args:
        path: of the folder or file, or the artifact.
        dtype: ``uint16`` or ``uint32`` for raw ids without a manifest; such a file is not looked into.
        allow_padding: open a padded stream (annotated, canary) as flat tokens too: its padding is then content.

    Raises:
        StreamError: there is nothing, it is damaged, padded, or does not say what it holds.
    """
    folder = path.folder if isinstance(path, Artifact) else Path(path)
    if folder is None:
        raise StreamError("the tokens are only planned; save them, then use what their store loads")
    if dtype is not None and dtype not in DTYPES:
        raise StreamError(f"dtype is {dtype!r}; raw ids are {' or '.join(DTYPES)}")
    if folder.is_dir():
        return _open_folder(folder, dtype, allow_padding)
    for prefix in (folder, folder.with_suffix("")):
        if is_here(with_name(prefix, ".idx")) and dtype is None:
            return _open_megatron(prefix, allow_padding)
    if not folder.is_file():
        raise StreamError(
            f"there are no tokens at {folder}: no folder, no file, no Megatron stream of this name. Run the pipeline "
            "that makes them (kedro run --pipelines packing), or correct the path."
        )
    if dtype is None and (manifest := _manifest(folder.parent)) is not None:
        for shard in manifest["shards"]:
            if shard["name"] == folder.name:
                return _raw_shards(folder.parent, [shard], DTYPES[manifest["dtype"]])
    return FlatTokens([_open_file(folder, dtype)])


def _open_folder(folder: Path, dtype: str | None, allow_padding: bool) -> FlatTokens:
    if dtype is None and (manifest := _manifest(folder)) is not None:
        return open_raw_shards(folder, manifest)
    indexes = files_here(folder, "*.idx")
    if len(indexes) == 1:
        return _open_megatron(indexes[0].with_suffix(""), allow_padding)
    shards = sorted(folder.glob("shard_*.bin"))
    if indexes or not shards:
        raise StreamError(
            f"{folder} holds {[path.name for path in indexes] or 'no tokens'}; expected {MANIFEST_FILE} and "
            f"{shard_name(0)}, or one Megatron stream"
        )
    segments = [_open_file(shard, dtype) for shard in shards]
    if len(kinds := {segment.dtype for segment in segments}) > 1:
        raise StreamError(f"{folder}: its shards hold ids of the types {sorted(map(str, kinds))}; expected one type")
    return FlatTokens(segments)


_NUMBERS = ("tokens", "documents", "eos_id", "vocab_size", "shard_size_tokens")


def read_raw_shards_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of raw shards.

    Raises:
        StreamError: there is none, or it is damaged.
    """
    manifest = _manifest(folder)
    if manifest is None:
        raise StreamError(f"{folder} has no {MANIFEST_FILE}; pack the shards again")
    return manifest


def _manifest(folder: Path) -> dict[str, Any] | None:
    path = folder / MANIFEST_FILE
    if not path.is_file():
        return None
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        known = manifest["format"] == RAW_SHARDS_FORMAT
        if known:
            _ = [(shard["name"], content_tokens(shard)) for shard in manifest["shards"]], DTYPES[manifest["dtype"]]
            _ = [int(manifest[key]) for key in _NUMBERS]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StreamError(
            f"{path} is no manifest of raw shards ({type(error).__name__}: {error}); pack them again"
        ) from error
    if not known:
        raise StreamError(f"{path} has format {manifest['format']!r}, this version reads {RAW_SHARDS_FORMAT!r}")
    return manifest


def open_raw_shards(folder: Path, manifest: dict[str, Any]) -> FlatTokens:
    """Open the shards of a manifest, and compare their sizes with it.

    Raises:
        StreamError: a shard is missing, one too many, truncated or too long.
    """
    names = [shard["name"] for shard in manifest["shards"]]
    if unknown := sorted({path.name for path in files_here(folder, "*.bin")} - set(names)):
        raise StreamError(f"{folder} holds {unknown}, of which its {MANIFEST_FILE} says nothing; pack the shards again")
    return _raw_shards(folder, manifest["shards"], DTYPES[manifest["dtype"]])


def _raw_shards(folder: Path, shards: Sequence[dict[str, Any]], dtype: np.dtype[Any]) -> FlatTokens:
    segments = [np.empty(0, dtype), *(_raw_shard(folder, shard, dtype) for shard in shards)]
    return FlatTokens(segments, [0, *(shard["tokens"] - content_tokens(shard) for shard in shards)])


def _raw_shard(folder: Path, shard: dict[str, Any], dtype: np.dtype[Any]) -> np.ndarray:
    path = folder / shard["name"]
    found, expected = size_here(path), shard["tokens"] * dtype.itemsize
    if found != expected:
        what = "is missing" if found is None else "is truncated" if found < expected else "is too long"
        raise StreamError(
            f"{path} {what}: {found or 0:,} bytes, {MANIFEST_FILE} says {shard['tokens']:,} tokens of {dtype.name}, "
            f"{expected:,} bytes; pack the shards again"
        )
    return map_values(path, dtype, 0, shard["tokens"])


def _open_megatron(prefix: Path, allow_padding: bool) -> FlatTokens:
    if not allow_padding and is_here(prefix.parent / TOKEN_LENGTHS_FILE):
        raise StreamError(
            f"{prefix} is padded ({TOKEN_LENGTHS_FILE} says where): as flat tokens its padding would be content. Read "
            "it with open_window_stream, which gives the lengths, or say allow_padding=True."
        )
    return FlatTokens([open_indexed(prefix).tokens])


def _open_file(path: Path, dtype: str | None) -> np.ndarray:
    """Return the ids of a file of raw ids (when ``dtype`` says which), or of a saved tensor."""
    size = path.stat().st_size
    if dtype is not None:
        itemsize = DTYPES[dtype].itemsize
        if size % itemsize:
            raise StreamError(f"{path} has {size:,} bytes, which are no whole number of {dtype} ids")
        return np.memmap(path, DTYPES[dtype], "r") if size else np.empty(0, DTYPES[dtype])
    if not zipfile.is_zipfile(path):
        raise StreamError(
            f"{path} is no tensor of torch.save (or a truncated one), no Megatron stream, and no {MANIFEST_FILE} "
            "beside it says what it holds. If it is raw little-endian ids, say which: "
            "open_tokens(path, dtype='uint32')."
        )
    import torch  # only for its own files

    try:
        tensor = torch.load(path, weights_only=True, mmap=True)
    except Exception as error:  # unpickling raises nearly everything
        raise StreamError(f"{path} cannot be loaded as a tensor: {str(error).splitlines()[0]}") from error
    if not isinstance(tensor, torch.Tensor):
        raise StreamError(f"{path} holds a {type(tensor).__name__}, expected one 1-D tensor of integers")
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise StreamError(f"{path} holds {tensor.dtype} {tuple(tensor.shape)}, expected 1-D integers")
    ids: np.ndarray = tensor.numpy()
    return ids
