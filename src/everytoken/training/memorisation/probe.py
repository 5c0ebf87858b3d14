"""The probe of memorisation as an artifact. Importing this loads no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from everytoken.reflections.points import FactProbe
from everytoken.shards import Artifact, Built, Shards, versioned
from everytoken.tokens.canary import TriggerRule
from everytoken.tokens.encoding import open_encoder
from everytoken.tokens.tokenizer import EncodingRules
from everytoken.training.memorisation.statistics import MemorisationFigures, by_fraction
from everytoken.training.parameters import MemorisationParameters

MEMORISATION_FILE = "memorisation.json"


@versioned("probe_memorisation", 1)
def probe_memorisation(
    folder: Path,
    *,
    checkpoint: Artifact,
    canaries: Shards,
    held_out: Shards,
    rules: EncodingRules,
    triggers: TriggerRule,
    facts: Sequence[FactProbe],
    probe: MemorisationParameters,
) -> Built:
    """Measure what a model memorised of the canary stream; write ``memorisation.json``.

    Args:
        folder: an empty folder.
        canaries: encoded canary documents. The model need not have read them: that is the control.
        held_out: documents that were not trained on, with address and text.
        triggers: how the real triggers were drawn.
        facts: asked for where ``probe.facts`` is given.

    Returns:
        Statistics: what ``memorisation.json`` has, `MemorisationFigures`.

    Raises:
        TrainingError: nothing is held out, there are no canary documents, or a sequence does not fit the model.
        NonFiniteError: the training of the model diverged.
    """
    from everytoken.training.checkpoints import load_model
    from everytoken.training.memorisation.candidates import control_texts, control_triggers
    from everytoken.training.memorisation.conditions import SequenceProbe, probe_conditions, read_conditions
    from everytoken.training.memorisation.recall import probe_facts
    from everytoken.training.step import describe_machine, open_device

    model = load_model(checkpoint.path("config.json").parent).to(open_device(probe.device))
    encoder = open_encoder(rules)
    conditions = read_conditions(canaries, seed=probe.seed, documents=probe.documents)
    real = {one.trigger for one in conditions if one.trigger is not None}
    random = control_triggers(triggers, encoder, seed=probe.seed, count=probe.controls, real=real)
    texts = control_texts(held_out, seed=probe.seed, count=probe.controls)
    sequences = SequenceProbe(model, encoder, probe)
    controls, measured = probe_conditions(sequences, conditions, random, texts)
    recalled = [] if probe.facts is None else probe_facts(sequences, facts, conditions, probe.facts)
    figures: MemorisationFigures = {
        "controls": controls,
        "conditions": measured,
        "by_fraction": by_fraction(measured, recalled),
        "facts": recalled,
    }
    (folder / MEMORISATION_FILE).write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return Built(statistics=figures, measured={**describe_machine(probe.execution), "device": probe.device})
