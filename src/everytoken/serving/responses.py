"""Parts of replies in the forms of OpenAI's API. A whole response is its stream, put together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from everytoken.generation import DrawnToken
from everytoken.serving.replies import ReplyPart
from everytoken.serving.token_texts import Offsets, TokenTexts

_FINISH = {"eos": "stop", "stop": "stop", "max_new_tokens": "length", "context": "length"}


class ReplyForm(ABC):
    """How parts look. One serves one request: it counts tokens.

    Args:
        head: ``id``, ``model`` and what else all objects of a response have.
        has_logprobs: whether tokens are part of the response.
    """

    whole_object: str
    chunk_object: str

    def __init__(self, head: dict[str, Any], texts: TokenTexts, *, prompt_tokens: int, has_logprobs: bool) -> None:
        self._head, self._texts = head, texts
        self._prompt_tokens, self._has_logprobs, self._drawn = prompt_tokens, has_logprobs, 0

    def first_chunks(self) -> list[dict[str, Any]]:
        """Return what a stream begins with."""
        return []

    def chunk(self, part: ReplyPart) -> dict[str, Any]:
        """Return the event of a part."""
        return self._chunk([self._choice(part)])

    def usage_chunk(self) -> dict[str, Any]:
        """Return the event that counts tokens."""
        return {**self._chunk([]), "usage": self.usage()}

    def whole(self, parts: Iterable[ReplyPart]) -> dict[str, Any]:
        """Return the response of all parts."""
        choices: dict[int, list[dict[str, Any]]] = {}
        for part in parts:
            choices.setdefault(part.choice, []).append(self._choice(part))
        joined = [self._joined(chunks) for _, chunks in sorted(choices.items())]
        return {**self._head, "object": self.whole_object, "choices": joined, "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Return how many tokens were read and drawn, that which ended a reply too."""
        total = self._prompt_tokens + self._drawn
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": self._drawn, "total_tokens": total}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self.chunk_object, "choices": choices}

    def _choice(self, part: ReplyPart) -> dict[str, Any]:
        if part.prompt is None:
            self._drawn += len(part.tokens)
        return {
            "index": part.choice,
            **self._content(part),
            "logprobs": self._logprobs(part) if self._has_logprobs else None,
            "finish_reason": None if part.finish is None else _FINISH[part.finish],
        }

    def _joined(self, chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "index": chunks[0]["index"],
            **self._joined_content(chunks),
            "logprobs": _joined_lists([one["logprobs"] for one in chunks]) if self._has_logprobs else None,
            "finish_reason": chunks[-1]["finish_reason"],
        }

    @abstractmethod
    def _content(self, part: ReplyPart) -> dict[str, Any]: ...

    @abstractmethod
    def _joined_content(self, chunks: Sequence[dict[str, Any]]) -> dict[str, Any]: ...

    @abstractmethod
    def _logprobs(self, part: ReplyPart) -> dict[str, list[Any]]: ...


class ChatForm(ReplyForm):
    """Of ``/v1/chat/completions``."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def first_chunks(self) -> list[dict[str, Any]]:
        """Return the event that names the role."""
        delta = {"role": "assistant", "content": ""}
        return [self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])]

    def _content(self, part: ReplyPart) -> dict[str, Any]:
        return {"delta": {"content": part.text} if part.text else {}}

    def _joined_content(self, chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
        text = "".join(one["delta"].get("content", "") for one in chunks)
        return {"message": {"role": "assistant", "content": text}}

    def _logprobs(self, part: ReplyPart) -> dict[str, list[Any]]:
        """Return the tokens of a message; that which ended it is none of them."""
        tokens = part.tokens[:-1] if part.finish == "eos" else part.tokens
        return {"content": [self._token(token) for token in tokens]}

    def _token(self, token: DrawnToken) -> dict[str, Any]:
        likely = [self._named(number, logprob) for number, logprob in token.likely]
        return {**self._named(token.id, token.logprob), "top_logprobs": likely}

    def _named(self, number: int, logprob: float | None) -> dict[str, Any]:
        return {"token": self._texts.text(number), "logprob": logprob, "bytes": list(self._texts.bytes(number))}


class CompletionForm(ReplyForm):
    """Of ``/v1/completions``. Its log-probabilities have the token that ended a text, too."""

    whole_object = chunk_object = "text_completion"

    def __init__(self, head: dict[str, Any], texts: TokenTexts, *, prompt_tokens: int, has_logprobs: bool) -> None:
        super().__init__(head, texts, prompt_tokens=prompt_tokens, has_logprobs=has_logprobs)
        self._offsets: dict[int, Offsets] = {}

    def _content(self, part: ReplyPart) -> dict[str, Any]:
        return {"text": part.text}

    def _joined_content(self, chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"text": "".join(one["text"] for one in chunks)}

    def _logprobs(self, part: ReplyPart) -> dict[str, list[Any]]:
        offsets = self._offsets.setdefault(part.choice, Offsets())
        return {
            "tokens": [self._texts.text(token.id) for token in part.tokens],
            "token_logprobs": [token.logprob for token in part.tokens],
            "top_logprobs": [self._most_likely(token) for token in part.tokens],
            "text_offset": offsets.add(self._shown_bytes(part)),
        }

    def _most_likely(self, token: DrawnToken) -> dict[str, float] | None:
        """Return log-probabilities by text: the most likely tokens and this one. Of two with one text, the larger."""
        if token.logprob is None:
            return None
        named: dict[str, float] = {}
        for number, logprob in (*token.likely, (token.id, token.logprob)):
            named.setdefault(self._texts.text(number), logprob)
        return named

    def _shown_bytes(self, part: ReplyPart) -> list[bytes]:
        """Return the bytes of each token in the text: of a prompt all but what was added, else no special tokens."""
        if part.prompt is not None:
            hidden = set(part.prompt.added)
            return [b"" if at in hidden else self._texts.bytes(token.id) for at, token in enumerate(part.tokens)]
        return [b"" if token.id in self._texts.special else self._texts.bytes(token.id) for token in part.tokens]


def _joined_lists(chunks: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    return {name: [one for chunk in chunks for one in chunk[name]] for name in chunks[0]}
