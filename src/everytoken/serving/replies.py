"""What a request makes, part by part, as the model's thread works on it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from everytoken.generation import (
    DrawnToken,
    Finish,
    GenerationParameters,
    PrefixReader,
    Reply,
    score,
    speak_in_steps,
)


class EncodedPrompt(NamedTuple):
    """Ids of a prompt, its text, and the places of ids that the tokenizer added and that the text does not have."""

    tokens: Sequence[int]
    text: str
    added: Collection[int] = ()


class ReplyPart(NamedTuple):
    """Some text of a reply, its tokens, and why it ended, if this is its end.

    Attributes:
        choice: number of the prompt in its request.
        prompt: of which `text` and `tokens` are, where they are no part of the reply.
    """

    choice: int
    text: str = ""
    tokens: tuple[DrawnToken, ...] = ()
    finish: Finish | None = None
    prompt: EncodedPrompt | None = None


@dataclass(frozen=True)
class Work:
    """Replies to prompts, one after the other, each as if it were alone.

    Attributes:
        parameters: None: nothing is generated.
        likely: how many of the most likely tokens each one comes with; None: no log-probabilities.
        echo: whether a reply begins with its prompt.
    """

    tokenizer: Tokenizer
    prompts: Sequence[EncodedPrompt]
    parameters: GenerationParameters | None
    ends: Collection[int]
    likely: int | None = None
    echo: bool = False

    def __call__(self, reader: PrefixReader) -> Iterator[ReplyPart | None]:
        """Yield the parts; None after a step that made none."""
        for choice, prompt in enumerate(self.prompts):
            if self.echo:
                yield from self._echoed(reader, choice, prompt)
            if self.parameters is None:
                yield ReplyPart(choice, finish="max_new_tokens")
            else:
                yield from self._generated(reader, choice, prompt, self.parameters)

    def _echoed(self, reader: PrefixReader, choice: int, prompt: EncodedPrompt) -> Iterator[ReplyPart | None]:
        tokens: list[DrawnToken] = []
        if self.likely is not None:
            for block in score(reader, prompt.tokens, self.likely):
                tokens += block
                yield None
        yield ReplyPart(choice, prompt.text, tuple(tokens), prompt=prompt)

    def _generated(
        self, reader: PrefixReader, choice: int, prompt: EncodedPrompt, parameters: GenerationParameters
    ) -> Iterator[ReplyPart | None]:
        held: list[DrawnToken] = []  # of which the text is not certain
        steps = speak_in_steps(reader, self.tokenizer, prompt.tokens, parameters, ends=self.ends, likely=self.likely)
        while True:
            try:
                step = next(steps)
            except StopIteration as ended:
                reply: Reply = ended.value
                break
            if step.token is not None:
                held.append(step.token)
            if step.text:
                yield ReplyPart(choice, step.text, tuple(held))
                held = []
            else:
                yield None
        if reply.end is not None:
            held.append(reply.end)
        yield ReplyPart(choice, "", tuple(held), reply.finish)
