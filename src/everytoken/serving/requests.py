"""What a client may ask, field by field, as OpenAI's API names it.

A field that would change a reply and that cannot be honoured is refused by its name, never ignored. `ASKS_NOTHING` has
the values of such fields that change nothing, `PASSED_OVER` the fields that no reply depends on. A field that is null
is a field that is not there.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from everytoken.generation import GenerationParameters
from everytoken.serving.refusals import Refusal, shown

PASSED_OVER = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "separate_reasoning": (False,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_MOST_LIKELY = 20  # log-probabilities of a token at most, as OpenAI


def _encodable(text: str) -> str:
    if not _is_encodable(text):
        raise ValueError("it has half a surrogate pair, which is no character")
    return text


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


_Text = Annotated[str, AfterValidator(_encodable)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if wrong := [name for name in given if not _is_encodable(name)]:  # the validator could not name it
            raise Refusal(400, f"{shown(wrong[0])} is no field that this server knows: leave it out", param=wrong[0])
        return {name: value for name, value in given.items() if value is not None}


def _texts(stop: Any) -> Any:
    """Return ``stop`` as a list of texts."""
    texts = [stop] if isinstance(stop, str) else stop
    if isinstance(texts, list) and "" in texts:
        raise ValueError("an empty text is in every reply; remove it")
    return texts


def _only_text(content: Any) -> Any:
    """Return the text of a message's content: a string, or a list of one part of text."""
    if not isinstance(content, list):
        return content
    match content:
        case [{"type": "text", "text": str(text), **others}] if not others:
            return text
    raise ValueError("expected a string, or a list of one part of the type text")


def _prompts(prompt: Any) -> list[str | list[int]]:
    """Return the prompts of a request: a text, ids, or a list of either."""
    if isinstance(prompt, str) or _is_ids(prompt):
        prompt = [prompt]
    if not (isinstance(prompt, list) and prompt and all(_is_text(one) or _is_ids(one) for one in prompt)):
        raise ValueError("expected a text, a list of token ids, or a list of either, none of them empty")
    return prompt


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and _is_encodable(value)


class StreamOptions(_Model):
    """Of a stream: whether its last event counts tokens."""

    include_usage: bool = False
    include_obfuscation: bool = False

    @model_validator(mode="after")
    def _nothing_obfuscated(self) -> Self:
        if self.include_obfuscation:
            raise Refusal(400, "stream_options.include_obfuscation: only false", param="stream_options")
        return self


class ChatMessage(_Model):
    """A message of a chat; the chat template says which roles there are."""

    role: _Text
    content: Annotated[_Text, BeforeValidator(_only_text)]


class TemplateValues(_Model):
    """What a chat template may read besides the messages: whether the model thinks, as vLLM and sglang name it."""

    enable_thinking: bool


class GenerationRequest(_Model):
    """What chats and completions have in common."""

    model: str
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, gt=0)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0)
    stop: Annotated[list[_Text], BeforeValidator(_texts)] = []
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_what_is_honoured(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name in given.keys() & ASKS_NOTHING.keys():
            if given[name] is not None and given[name] not in ASKS_NOTHING[name]:
                allowed = ", ".join(map(repr, ASKS_NOTHING[name]))
                hint = f"only {allowed}" if allowed else "leave it out"
                raise Refusal(400, f"{name} is {shown(given[name])}, which this server cannot do: {hint}", param=name)
        return {name: value for name, value in given.items() if name not in PASSED_OVER | ASKS_NOTHING.keys()}

    @model_validator(mode="after")
    def _stream_of_its_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise Refusal(400, "stream_options is only for stream: true", param="stream_options")
        return self

    @property
    def counts_tokens(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def parameters(self, *, seed: int, max_new_tokens: int, stop: tuple[str, ...] = ()) -> GenerationParameters:
        """Return how tokens are drawn.

        Args:
            seed: where the request has none.
            stop: texts of the model that end a reply.
        """
        return GenerationParameters(
            seed=seed if self.seed is None else self.seed,
            max_new_tokens=max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            stop=(*stop, *self.stop),
        )


class ChatRequest(GenerationRequest):
    """Of ``/v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=_MOST_LIKELY)
    chat_template_kwargs: TemplateValues | None = None

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise Refusal(400, "max_tokens and max_completion_tokens differ: give one", param="max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise Refusal(400, "top_logprobs is only for logprobs: true", param="top_logprobs")
        return self

    @property
    def most_new_tokens(self) -> int | None:
        """Tokens of the reply at most, where the request says so."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def template_values(self) -> dict[str, bool]:
        """What the chat template may read besides the messages."""
        return {} if self.chat_template_kwargs is None else self.chat_template_kwargs.model_dump()

    @property
    def likely(self) -> int | None:
        """How many of the most likely tokens each one comes with; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationRequest):
    """Of ``/v1/completions``."""

    prompt: Annotated[list[Any], BeforeValidator(_prompts)]
    max_tokens: int | None = Field(default=None, ge=0)
    logprobs: int | None = Field(default=None, ge=0, le=_MOST_LIKELY)
    echo: bool = False
