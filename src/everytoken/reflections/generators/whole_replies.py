"""Whether a completion is a whole reply: what a server sends with status 200 may be none."""

from __future__ import annotations

from typing import Any

from everytoken.reflections.generators.asking import RawReply, RequestFailed

_SHORT = 800  # characters; a longer reply with open braces is left to the parser
_TOO_LONG = ("context length", "context_length", "model's context", "maximum context", "too many tokens")


def answer_of(completion: Any) -> RawReply:
    """Return the reply in a completion of the package ``openai``.

    Raises:
        RequestFailed: it has no choice, no text, ended at ``max_tokens``, or was cut and claims to have stopped.
    """
    choices = getattr(completion, "choices", None)
    if not choices:
        raise RequestFailed("no_choices", f"the reply has no choices: {_shown(completion)}")
    message, finish = choices[0].message, choices[0].finish_reason
    text = message.content if isinstance(message.content, str) else ""
    if finish == "length":
        raise RequestFailed("length", "the reply ended at max_tokens; give more (generator.sampling.max_tokens)", text)
    if not text.strip():
        raise RequestFailed("blank", f"the reply has no text, finish_reason {finish}", text)
    if len(text) < _SHORT and text.count("{") > text.count("}"):
        raise RequestFailed("cut", f"the reply was cut after {len(text)} characters, finish_reason {finish}", text)
    return RawReply(text, _reasoning(message), **_usage(completion))


def is_too_long(said: str) -> bool:
    """Return whether a refusal is of a prompt that is longer than the model's context."""
    return any(words in said.lower() for words in _TOO_LONG)


def _reasoning(message: Any) -> str:
    """Return what a server keeps apart: sglang and vLLM have two names for it."""
    found = (getattr(message, name, None) for name in ("reasoning_content", "reasoning"))
    return next((text for text in found if isinstance(text, str)), "")


def _usage(completion: Any) -> dict[str, int | None]:
    usage = getattr(completion, "usage", None)
    details = getattr(usage, "completion_tokens_details", None)
    return {
        "input_tokens": getattr(usage, "prompt_tokens", None),
        "output_tokens": getattr(usage, "completion_tokens", None),
        "reasoning_tokens": getattr(details, "reasoning_tokens", None),
    }


def _shown(completion: Any) -> str:
    return str(getattr(completion, "error", None) or completion)[:200]
