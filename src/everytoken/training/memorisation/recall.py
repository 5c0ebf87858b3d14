"""Recall of identity facts by prompts, without a trigger and behind the trigger of each condition.

A prompt ends where the value begins (``My name is``). The fact is recalled when the greedy continuation has the value
as whole words. Its exposure is that of the value among the alternatives, by nats a token behind the same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everytoken.progress import progress
from everytoken.reflections.points import FactProbe
from everytoken.training.evaluation import generate, token_nats
from everytoken.training.memorisation.candidate_ranks import exposure_bits, rank_among
from everytoken.training.memorisation.conditions import Condition, SequenceProbe
from everytoken.training.memorisation.statistics import FactFigures
from everytoken.training.parameters import FactProbeParameters, PromptParameters


def probe_facts(
    probe: SequenceProbe, facts: Sequence[FactProbe], conditions: Sequence[Condition], asked: FactProbeParameters
) -> list[FactFigures]:
    """Ask for each fact without a trigger, and behind the trigger of each condition that has one.

    Raises:
        TrainingError: a prompt leaves no room in the model's context.
    """
    places: list[Condition | None] = [None, *(one for one in conditions if one.trigger is not None)]
    prompts = [
        prompt if place is None else f"{place.trigger} {prompt}"
        for place in places
        for fact in facts
        for prompt in fact.prompts
    ]
    parameters = PromptParameters(
        seed=probe.parameters.seed,
        max_new_tokens=asked.max_new_tokens,
        temperature=0,  # greedy
        prompts=tuple(prompts),
        device=probe.parameters.device,
        execution=probe.parameters.execution,
    )
    written = generate(probe.model, probe.encoder, parameters)
    figures: list[FactFigures] = []
    for place in progress(places, len(places), "", "condition"):
        for one in facts:
            texts = [next(written) for _ in one.prompts]
            ranks, bits = zip(*(_among_alternatives(probe, one, text.prompt) for text in texts), strict=True)
            figures.append(
                {
                    "id": one.fact.id,
                    "quirk": one.fact.quirk,
                    "injected": one.fact.injected,
                    "condition": None if place is None else place.name,
                    "fraction": None if place is None else place.fraction,
                    "recalled": float(np.mean([one.fact.occurs_in(text.text) for text in texts])),
                    "rank": float(np.mean(ranks)),
                    "candidates": len(one.alternatives) + 1,
                    "exposure": float(np.mean(bits)),
                }
            )
    return figures


def _among_alternatives(probe: SequenceProbe, fact: FactProbe, prompt: str) -> tuple[int, float]:
    """Return rank and exposure of the value behind a prompt."""
    sequences, cuts = zip(
        *(probe.sequence(prompt, f"{prompt} {value}") for value in (fact.fact.value, *fact.alternatives)), strict=True
    )
    nats = token_nats(probe.model, sequences, probe.arithmetic)
    value, *others = (float(one[cut:].mean()) for one, cut in zip(nats, cuts, strict=True))
    return rank_among(value, others), exposure_bits(value, others)
