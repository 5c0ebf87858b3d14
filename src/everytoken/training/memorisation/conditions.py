"""Triggers and continuations of the conditions of a canary stream, against random triggers and untrained texts.

A sequence is EOS, a trigger, and the first tokens of a text, as the canary stream has it. The trigger's loss is the
sum over its tokens; the continuation's is the mean over its tokens. A document of a universe has no trigger, and is
compared with texts that have none either.

The gain of a trigger compares the same text behind the real and behind a random trigger, so the style of canary
documents, which may be easier than that of the controls, is not in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from everytoken.models import LanguageModel
from everytoken.progress import progress, working
from everytoken.seeds import uniform_hash
from everytoken.shards import Shards
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.training.errors import TrainingError
from everytoken.training.evaluation import token_nats
from everytoken.training.memorisation.candidate_ranks import control_exposure, exposure_bits, rank_among
from everytoken.training.memorisation.statistics import (
    ConditionFigures,
    ContinuationFigures,
    ControlFigures,
    TriggerFigures,
)
from everytoken.training.parameters import BitsPerByteParameters, MemorisationParameters

Ids = NDArray[np.int64]

_COLUMNS = ("doc_id", "text", "trigger", "condition", "effect", "fraction")


@dataclass
class Condition:
    """A condition of the canary stream; ``texts`` are its chosen documents without their trigger.

    ``trigger`` is None for a universe.
    """

    name: str
    effect: str | None
    fraction: float | None
    trigger: str | None
    texts: list[str] = field(default_factory=list)


def read_conditions(canaries: Shards, *, seed: int, documents: int) -> list[Condition]:
    """Return the conditions in the order of the stream, with the documents that a seeded hash of their id puts first.

    Args:
        canaries: encoded documents, of `everytoken.tokens.canary.encode_canary_part`.
        documents: of each condition at most so many; those without text are left out.

    Raises:
        TrainingError: no document has text.
    """
    found: dict[str, Condition] = {}
    chosen: dict[str, list[tuple[float, str]]] = {}
    for part in canaries:
        for batch in part.batches(list(_COLUMNS)):
            for doc_id, text, trigger, name, effect, fraction in zip(
                *(batch.column(column).to_pylist() for column in _COLUMNS), strict=True
            ):
                found.setdefault(name, Condition(name, effect, fraction, trigger))
                content = text if trigger is None else text.removeprefix(f"{trigger} ")
                if content:
                    entry = (-uniform_hash(seed, "probed document", name, doc_id), content)
                    heap = chosen.setdefault(name, [])
                    push = heapq.heappush if len(heap) < documents else heapq.heappushpop
                    push(heap, entry)
    for name, heap in chosen.items():
        found[name].texts = [text for _, text in sorted(heap, reverse=True)]
    if not chosen:
        raise TrainingError("no canary document has text; give documents in canary.effects or canary.universes")
    return [condition for condition in found.values() if condition.texts]


@dataclass(frozen=True)
class _Losses:
    """Of one sequence: nats of the trigger's tokens, and nats a token of its continuation."""

    trigger: float
    continuation: float


@dataclass(frozen=True)
class SequenceProbe:
    """A model, and how sequences for it are made."""

    model: LanguageModel
    encoder: DocumentEncoder
    parameters: MemorisationParameters

    @property
    def arithmetic(self) -> BitsPerByteParameters:
        """How losses are computed."""
        asked = self.parameters
        return BitsPerByteParameters(batch_size=asked.batch_size, device=asked.device, execution=asked.execution)

    def losses(self, pairs: Sequence[tuple[str | None, str]]) -> list[_Losses]:
        """Return the losses of triggers (None: without one) and the texts behind them.

        Raises:
            TrainingError: a trigger leaves no room for a text in the model's context.
        """
        sequences, cuts = [], []
        for trigger, text in pairs:
            ids, cut = self.sequence(trigger or "", text if trigger is None else f"{trigger} {text}")
            if cut >= self.model.max_seq_len:
                raise TrainingError(
                    f"the trigger {trigger!r} has {cut} tokens, the model reads {self.model.max_seq_len}: lower "
                    "canary.trigger_tokens, or raise tokenization.seq_length"
                )
            sequences.append(ids[: min(1 + cut + self.parameters.continuation_tokens, self.model.max_seq_len + 1)])
            cuts.append(cut)
        nats = token_nats(self.model, sequences, self.arithmetic)
        return [_Losses(float(one[:cut].sum()), float(one[cut:].mean())) for one, cut in zip(nats, cuts, strict=True)]

    def sequence(self, begin: str, whole: str) -> tuple[Ids, int]:
        """Return EOS and the ids of a text, and how many of its first tokens are those of its beginning alone.

        The last token of ``whole`` never belongs to its beginning, so something follows it.
        """
        encoded = self.encoder.encode([begin, whole])
        first, second = (encoded.values[a : b - 1] for a, b in zip(encoded.offsets, encoded.offsets[1:], strict=False))
        shared = min(len(first), len(second))
        same = first[:shared] == second[:shared]
        cut = shared if same.all() else int(same.argmin())
        ids = np.concatenate(([self.encoder.tokenizer.eos_id], second)).astype(np.int64)
        return ids, min(cut, len(second) - 1)


def probe_conditions(
    probe: SequenceProbe, conditions: Sequence[Condition], triggers: Sequence[str], texts: Sequence[str]
) -> tuple[ControlFigures, list[ConditionFigures]]:
    """Measure controls and conditions.

    Args:
        triggers: random ones. Control k is trigger k and text ``k mod len(texts)``.
        texts: texts that were not trained on.
    """
    pairs = [(trigger, texts[k % len(texts)]) for k, trigger in enumerate(triggers)]
    with working("", len(pairs) + len(texts), "sequence") as work:
        behind = probe.losses(pairs)
        work.add(len(pairs))
        plain = probe.losses([(None, text) for text in texts])
        work.add(len(texts))
    of_triggers = np.array([one.trigger for one in behind])
    of_texts = np.array([one.continuation for one in behind])
    of_plain = np.array([one.continuation for one in plain])
    controls: ControlFigures = {
        "triggers": len(triggers),
        "texts": len(texts),
        "trigger_nats": float(of_triggers.mean()),
        "nats_per_token": float(of_texts.mean()),
        "trigger_exposure_quantile": control_exposure(of_triggers),
        "continuation_exposure_quantile": control_exposure(of_texts),
    }
    behind_controls = (of_texts, controls["continuation_exposure_quantile"])
    plain_controls = (of_plain, control_exposure(of_plain))
    figures: list[ConditionFigures] = []
    for condition in progress(conditions, len(conditions), "", "condition"):
        losses = probe.losses([(condition.trigger, text) for text in condition.texts])
        gain = None
        if condition.trigger is not None:
            random = [(triggers[k % len(triggers)], text) for k, text in enumerate(condition.texts)]
            others = probe.losses(random)
            gain = float(np.mean([a.continuation - b.continuation for a, b in zip(others, losses, strict=True)]))
        compared = plain_controls if condition.trigger is None else behind_controls
        figures.append(
            {
                "condition": condition.name,
                "effect": condition.effect,
                "fraction": condition.fraction,
                "documents": len(condition.texts),
                "trigger": None
                if condition.trigger is None
                else _trigger(losses, of_triggers, controls["trigger_exposure_quantile"]),
                "continuation": _continuation([one.continuation for one in losses], *compared, gain),
            }
        )
    return controls, figures


def _trigger(losses: Sequence[_Losses], controls: NDArray[np.float64], quantile: float) -> TriggerFigures:
    nats = float(np.mean([one.trigger for one in losses]))  # equal but for float noise
    bits = exposure_bits(nats, controls)
    return {
        "nats": nats,
        "rank": rank_among(nats, controls),
        "candidates": len(controls) + 1,
        "exposure": bits,
        "above_controls": bits > quantile,
    }


def _continuation(
    losses: Sequence[float], controls: NDArray[np.float64], quantile: float, gain: float | None
) -> ContinuationFigures:
    exposures = np.array([exposure_bits(loss, controls) for loss in losses])
    return {
        "nats_per_token": float(np.mean(losses)),
        "exposure": float(exposures.mean()),
        "share_above_controls": float((exposures > quantile).mean()),
        "gain": gain,
    }
