"""What can go wrong between text files and a stream: messages name the file, the row and the remedy."""

from __future__ import annotations

from typing import Any


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

    def __reduce__(self) -> tuple[type[FileError], Any]:
        return type(self), (self.file, self.where, self.message)


class FileChanged(FileError):
    """A file is not the one with which the run began."""

    def __init__(self, file: str) -> None:
        super().__init__(file, None, "it changed while it was read. Leave it alone and run the command again.")

    def __reduce__(self) -> tuple[type[FileError], Any]:
        return type(self), (self.file,)


class RecheckFailed(FileError):
    """An engine gave other ids than the reference."""
