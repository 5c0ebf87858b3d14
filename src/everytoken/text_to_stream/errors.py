"""What can go wrong between text files and a stream: messages name the file, the line and the remedy."""

from __future__ import annotations


class PreprocessingError(Exception):
    """Base of the errors of this package."""


class FileError(PreprocessingError):
    """A file, or a line of it, cannot be used.

    Args:
        file: its name.
        line: number of the line, from 1, or None when the file as a whole is bad.
        message: what is wrong and what to do about it.
    """

    def __init__(self, file: str, line: int | None, message: str) -> None:
        super().__init__(f"{file}{'' if line is None else f', line {line:,}'}: {message}")
        self.file, self.line, self.message = file, line, message

    def __reduce__(self) -> tuple[type[FileError], tuple[str, int | None, str]]:
        return type(self), (self.file, self.line, self.message)


class RecheckFailed(FileError):
    """An engine gave other ids than the reference."""
