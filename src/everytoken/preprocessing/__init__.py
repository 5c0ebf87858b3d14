"""Preprocessing: text files straight to a Megatron stream, without a project. `tokenize` is the whole of it."""

from everytoken.preprocessing.errors import EngineDiffers, FileError, PreprocessingError
from everytoken.preprocessing.stream import Tokenization, Tokenized, tokenize

__all__ = ["EngineDiffers", "FileError", "PreprocessingError", "Tokenization", "Tokenized", "tokenize"]
