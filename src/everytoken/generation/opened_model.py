"""A model with its tokenizer and its chat format."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from everytoken.generation.chat_files import ChatFiles
from everytoken.generation.chat_template import JinjaTemplate
from everytoken.generation.conversation import ChatFormat
from everytoken.generation.errors import GenerationError
from everytoken.generation.prefix import PrefixReader
from everytoken.models import LanguageModel


@dataclass(frozen=True)
class OpenedModel:
    """A model that can generate.

    Attributes:
        name: the last part of its path.
        model: in eval mode.
        eos_id: of the token that ends a document.
    """

    name: str
    model: LanguageModel
    tokenizer: Tokenizer
    chat: ChatFiles
    eos_id: int

    @property
    def ends(self) -> frozenset[int]:
        """Ids that end a reply."""
        return frozenset(self.chat.ends or (self.eos_id,))

    def reader(self) -> PrefixReader:
        """Return a reader of one sequence."""
        return PrefixReader(self.model)

    def chat_format(self) -> ChatFormat:
        """Return how a chat becomes ids.

        Raises:
            GenerationError: the model has no chat template.
        """
        if self.chat.template is None:
            raise GenerationError(
                f"{self.name} has no chat template, so nobody knows where a turn begins and ends. Give one in Jinja "
                "(--template FILE), or let it continue texts: everytoken generate"
            )
        special = {"bos_token": self._spelled(), "eos_token": self._spelled(), **self.chat.special}
        return ChatFormat(self.tokenizer, JinjaTemplate(self.chat.template, special), self.ends)

    def _spelled(self) -> str:
        return str(self.tokenizer.id_to_token(self.eos_id))
