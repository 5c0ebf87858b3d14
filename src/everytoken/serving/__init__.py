"""A trained model in use: opened from any of the forms that models come in."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.serving.errors import ServingError
    from everytoken.serving.opening import chat_files_of, open_model, tokenizer_of
    from everytoken.serving.server import ServerOptions, serve

__getattr__, __dir__ = exports(__name__, __file__)
