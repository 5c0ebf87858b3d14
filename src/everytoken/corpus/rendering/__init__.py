"""How a record becomes a document: `renderers`; for chats `chats` (to turns) and `templates` (to text)."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.corpus.rendering.chats import SHAPES, read_chat
    from everytoken.corpus.rendering.columns import top_column
    from everytoken.corpus.rendering.meanings import Shape
    from everytoken.corpus.rendering.renderers import (
        CUTS,
        GATHERED,
        RENDERERS,
        DocumentRenderer,
        JoinedRenderer,
        NamedRenderer,
        RenderedDocument,
        Renderer,
        first_identifier,
        unread_of,
    )
    from everytoken.corpus.rendering.templates import ChatTemplate, ConversationRenderer, RoleMarks
    from everytoken.corpus.rendering.turns import Role

__getattr__, __dir__ = exports(__name__, __file__)
