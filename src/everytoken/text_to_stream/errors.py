"""What can go wrong between text files and a stream: messages name the file, the row and the remedy."""

from __future__ import annotations


class PreprocessingError(Exception):
    """Base of the errors of this package."""


class FileError(PreprocessingError):
    """A file, or a row of it, cannot be used.

    Args:
        file: its name.
        where: ``line`` or ``row`` and its number, or None when the file as a whole is bad.
        message: what is wrong and what to do about it.
    """

    def __init__(self, file: str, where: str | None, message: str) -> None:
        super().__init__(f"{file}{'' if where is None else f', {where}'}: {message}")
        self.file, self.where, self.message = file, where, message

    def __reduce__(self) -> tuple[type[FileError], tuple[str, str | None, str]]:
        return type(self), (self.file, self.where, self.message)


class RecheckFailed(FileError):
    """An engine gave other ids than the reference."""
