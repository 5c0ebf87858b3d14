"""Conversations become windows with a mask over what is learned."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.chat.conversations import Spans
    from everytoken.tokens.chat.documents import chats_of, said_in
    from everytoken.tokens.chat.parameters import ChatParameters, ChatRule, SpansAfter, SpansOfLines, SpansOfTurns
    from everytoken.tokens.chat.windows import ChatStatistics, cut_chat, write_chat_windows

__getattr__, __dir__ = exports(__name__, __file__)
