"""Which samples a run reads, in which order: parameters, without the code that computes them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from everytoken.shards import UNRECORDED, UNRECORDED_DEFAULT

_FROZEN = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class WeightsFrom(BaseModel):
    """Weights of the streams by name, from an optimiser step on until the next entry; 0 leaves a stream out."""

    model_config = _FROZEN

    from_step: int = Field(ge=0)
    weights: dict[str, Annotated[float, Field(ge=0)]]


class DataParameters(BaseModel):
    """The order of samples, a pure function of these parameters, the sizes of the streams, and a step number.

    ``schedule``: "integer" (exact arithmetic, any number of streams), or "spp" (the float64 rule of the published runs:
    no explicit weights). ``weights``: null for proportional to the sizes; else entries from step 0 on. ``replay``: the
    samples [a, b) of such a run are this run's samples, from the first; null for all. ``first_epoch``,
    ``later_epochs``: the order of a stream's windows when it is read for the first time, and after that: "as_written",
    or "permuted" by a keyed permutation of ``seed``, another one in each epoch.
    ``check``: how streams are checked when they are opened: their sizes, a sample of windows, or every byte.
    ``document_mask``: whether attention and positions begin anew after each EOS in a window.
    """

    model_config = _FROZEN

    schedule: Literal["integer", "spp"] = "integer"
    weights: tuple[WeightsFrom, ...] | None = None
    replay: tuple[int, int] | None = None
    first_epoch: Annotated[Literal["as_written", "permuted"], UNRECORDED_DEFAULT] = "as_written"
    later_epochs: Literal["as_written", "permuted"]
    seed: int = Field(ge=0)
    check: Annotated[Literal["sizes", "sampled", "full"], UNRECORDED] = "sampled"
    document_mask: bool = False

    @model_validator(mode="after")
    def _steps_in_order(self) -> Self:
        steps = [entry.from_step for entry in self.weights or ()]
        if self.weights is not None and (not steps or steps[0] != 0 or sorted(set(steps)) != steps):
            raise ValueError(f"weights begin at steps {steps}; the first must be 0, and each later than the one before")
        if self.weights is not None and self.schedule == "spp":
            raise ValueError("schedule spp takes the sizes as weights; use schedule integer, or weights null")
        if self.replay is not None and not 0 <= self.replay[0] < self.replay[1]:
            raise ValueError(f"replay is {list(self.replay)}; expected [a, b] with 0 <= a < b: the samples a to b - 1")
        return self
