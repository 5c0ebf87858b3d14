"""The command ``everytoken chat``: its options, and the conversation in a terminal or a pipe."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.cli.chat.command import chat_command

__getattr__, __dir__ = exports(__name__, __file__)
