"""Conversations with a model: who said what, and what of it fits into the model's context."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from everytoken.generation.chat_template import JinjaTemplate
from everytoken.generation.decoding import Reply, speak
from everytoken.generation.errors import GenerationError
from everytoken.generation.parameters import GenerationParameters
from everytoken.generation.prefix import PrefixReader

Message = Mapping[str, Any]
"""``role`` and ``content``, and what else the chat template reads."""


class Prompt(NamedTuple):
    """Ids that a model reads, and how many messages of the oldest turns are left out of them."""

    tokens: list[int]
    dropped: int


@dataclass(frozen=True)
class ChatFormat:
    """How a chat becomes the ids that a model reads.

    Attributes:
        tokenizer: of the model. Special tokens that a text spells are those tokens, as for transformers.
        ends: ids that end a turn of the assistant.
    """

    tokenizer: Tokenizer
    template: JinjaTemplate
    ends: frozenset[int]

    def tokens(self, messages: Sequence[Message], **more: Any) -> list[int]:
        """Return the ids of a chat up to where the assistant begins to speak."""
        text = self.template.render(messages, **more)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def fitting(self, messages: Sequence[Message], context: int, room: int) -> Prompt:
        """Return the ids of a chat, without as many of its oldest turns as leave room for a reply.

        A turn is a message of the user and what follows it. What comes before the first, as a system message, stays.

        Args:
            context: tokens that the model can read.
            room: tokens of the reply; the last turn is kept where less is left.

        Raises:
            GenerationError: nobody has said anything, or the last turn alone leaves no room.
        """
        starts = [number for number, message in enumerate(messages) if message["role"] == "user"]
        if not starts:
            raise GenerationError("the chat has no message of the user; say something")
        for start in starts:
            tokens = self.tokens([*messages[: starts[0]], *messages[start:]])
            needed = len(tokens) + (1 if start == starts[-1] else room)
            if needed <= context:
                return Prompt(tokens, start - starts[0])
        raise GenerationError(
            f"the last message makes a prompt of {len(tokens):,} tokens, and the model reads {context:,} with its "
            "reply: shorten the message, or what the system says"
        )


@dataclass
class Conversation:
    """Messages of one chat, and what the model has read of them.

    Attributes:
        messages: what was said; the oldest turns stay here when they no longer fit into the context.
        attempts: how often the last message was answered again; each attempt draws otherwise.
        left_out: messages that the last prompt had no room for.
    """

    format: ChatFormat
    reader: PrefixReader
    parameters: GenerationParameters
    messages: list[Message] = field(default_factory=list)
    attempts: int = 0
    left_out: int = 0

    def say(self, text: str) -> Generator[str, None, Reply]:
        """Add what the user says; yield the reply in pieces, and return it."""
        self.messages.append({"role": "user", "content": text})
        self.attempts = 0
        return self._answer()

    def retry(self) -> Generator[str, None, Reply]:
        """Answer the last message of the user again, with other draws.

        Raises:
            GenerationError: the user has not said anything.
        """
        if not self._last_turn:
            raise GenerationError("there is nothing to answer: the user has not said anything yet")
        self._back_to(self._last_turn)
        self.attempts += 1
        return self._answer()

    def edit(self, text: str, turn: int | None = None) -> Generator[str, None, Reply]:
        """Say something else in a turn, from 1, or in the last one; what came after is forgotten.

        Raises:
            GenerationError: there is no such turn.
        """
        self._back_to(self._last_turn if turn is None else turn)
        self.messages.pop()
        return self.say(text)

    @property
    def last_prompt(self) -> list[int]:
        """The ids that the last reply answers to; none before the first message of the user."""
        places = self._turns
        return self.format.tokens(self.messages[: places[-1] + 1]) if places else []

    @property
    def system(self) -> str | None:
        """What the system says first."""
        return self.messages[0]["content"] if self.messages and self.messages[0]["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        rest = self.messages[0 if self.system is None else 1 :]
        self.messages = rest if text is None else [{"role": "system", "content": text}, *rest]

    @property
    def _turns(self) -> list[int]:
        """Where in the messages each one of the user is."""
        return [number for number, message in enumerate(self.messages) if message["role"] == "user"]

    @property
    def _last_turn(self) -> int:
        return len(self._turns)

    def _back_to(self, turn: int) -> None:
        """Forget what was said after the message of the user in a turn."""
        places = self._turns
        if not 1 <= turn <= len(places):
            raise GenerationError(f"there is no turn {turn}; the chat has {len(places)}")
        del self.messages[places[turn - 1] + 1 :]

    def _answer(self) -> Generator[str, None, Reply]:
        """Answer the last message; of a reply that is stopped, what was said stays, and a prompt that fails goes."""
        said = ""
        try:
            prompt = self.format.fitting(self.messages, self.reader.model.context, room=self.parameters.max_new_tokens)
            self.left_out = prompt.dropped
            key = (self._last_turn, self.attempts)
            drawing = speak(
                self.reader, self.format.tokenizer, prompt.tokens, self.parameters, ends=self.format.ends, key=key
            )
            while True:
                said += (piece := next(drawing))
                yield piece
        except StopIteration as ended:
            reply: Reply = ended.value
        except GenerationError:
            self.messages.pop()
            raise
        except (KeyboardInterrupt, GeneratorExit):
            self.messages.append({"role": "assistant", "content": said})
            raise
        self.messages.append({"role": "assistant", "content": reply.text})
        return reply
