"""How text is drawn from a model."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from everytoken.shards import UNRECORDED_DEFAULT


class GenerationParameters(BaseModel):
    """What decides a reply, besides the model and the prompt.

    Attributes:
        seed: of all draws.
        max_new_tokens: tokens of a reply at most.
        temperature: the logits are divided by it; 0 takes the most likely token.
        top_k: only so many of the most likely tokens are drawn from; null: all.
        top_p: only the most likely tokens whose probabilities reach this sum (Holtzman et al. 2020); null: all.
        min_p: only tokens with at least this share of the highest probability (Nguyen et al. 2024);
            null: all.
        repetition_penalty: divides a positive logit of a token that the prompt or the reply has, multiplies a negative
            one (Keskar et al. 2019); 1 changes nothing.
        stop: texts that end a reply, and are no part of it. Special tokens count as they are spelled.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(ge=0)
    max_new_tokens: int = Field(gt=0)
    temperature: float = Field(ge=0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, gt=0)
    top_p: Annotated[float | None, Field(gt=0, le=1), UNRECORDED_DEFAULT] = None
    min_p: Annotated[float | None, Field(ge=0, le=1), UNRECORDED_DEFAULT] = None
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False), UNRECORDED_DEFAULT] = 1.0
    stop: Annotated[tuple[str, ...], UNRECORDED_DEFAULT] = ()

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ValueError("stop has an empty text, which every reply contains: remove it")
        return stop
