"""``everytoken tokenize``: text files become one stream, without a project."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.text_to_stream.command import EXPECTED_ERRORS, tokenize_files
    from everytoken.text_to_stream.texts import TextRange, read_texts

__getattr__, __dir__ = exports(__name__, __file__)
