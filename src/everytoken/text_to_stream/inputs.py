"""The files of a run, in an order that no shell, locale or machine decides."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from everytoken.shards import file_sha256
from everytoken.text_to_stream.encode_file import FileRange, Stamp, stamp_of
from everytoken.text_to_stream.errors import FileChanged, FileError, PreprocessingError
from everytoken.text_to_stream.texts import TextRange, is_cuttable, kind_of

_PLAIN = (".jsonl", ".json", ".txt", ".arrow")
_TIMES_PACKED = 4  # bytes of text in one of a compressed file, about
RANGE_BYTES = 1 << 26  # of a file of lines without compression that one worker takes at a time


@dataclass(frozen=True)
class InputFile:
    """A file with its content.

    Attributes:
        path: where it is.
        name: its path below the folder that all files of the run share, with ``/``.
        stamp: of the file when the run began (`stamp_of`).
    """

    path: Path
    name: str
    stamp: Stamp

    @property
    def text_bytes(self) -> int:
        """About how many bytes of text it holds, by its size and name."""
        return self.stamp[0] * (1 if self.name.endswith(_PLAIN) else _TIMES_PACKED)

    def texts(self, text_field: str, max_line_bytes: int) -> TextRange:
        """Return what is read of the whole file."""
        return TextRange(self.path, str(self.path), 0, self.stamp[0], text_field, max_line_bytes)

    def ranges(self) -> list[tuple[int, int]]:
        """Return what workers take: byte ranges of JSON Lines without compression, any other file as a whole."""
        size = self.stamp[0]
        step = RANGE_BYTES if is_cuttable(self.name) else size
        return [(begin, min(size, begin + step)) for begin in range(0, max(size, 1), max(step, 1))]

    def source(self, begin: int, end: int, sha256: str, text_field: str) -> FileRange:
        """Return what is recorded of a range."""
        taken, kind = FileRange(sha256=sha256, begin=begin, end=end, text_field=text_field), kind_of(self.name)
        return taken if kind == "jsonl" else {**taken, "format": kind}

    def sha256(self) -> str:
        """Take the SHA-256 of its bytes.

        Raises:
            FileError: it cannot be read, or changed since the run began.
        """
        try:
            sha256, stamp = file_sha256(self.path), stamp_of(self.path)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if stamp != self.stamp:
            raise FileChanged(str(self.path))
        return sha256


def find_inputs(paths: Iterable[Path]) -> list[InputFile]:
    """Return the files sorted by name (by code point, whatever the order given).

    Raises:
        FileError: a file is missing or not of a known kind.
        PreprocessingError: no file, or one twice.
    """
    absolute = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100  # links stay links: their names count
    if not absolute:
        raise PreprocessingError("no files are given; name the files to tokenize")
    if len(set(absolute)) < len(absolute):
        twice = next(path for path in absolute if absolute.count(path) > 1)
        raise PreprocessingError(f"{twice} is given twice; its documents would be in the stream twice")
    shared = Path(os.path.commonpath([path.parent for path in absolute]))
    named = sorted((path.relative_to(shared).as_posix(), path) for path in absolute)
    for name, path in named:
        kind_of(name)
        if not path.is_file():
            raise FileError(str(path), None, "there is no such file. Check the path.")
    return [_input(name, path) for name, path in named]


def _input(name: str, path: Path) -> InputFile:
    try:
        return InputFile(path, name, stamp_of(path))
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> FileError:
    return FileError(str(path), None, f"it cannot be read ({error}). Check the path and its rights.")
