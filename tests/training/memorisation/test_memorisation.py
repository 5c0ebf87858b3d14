"""Rank and exposure, losses of sequences, controls, and recall of facts, on models that are small and real."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from everytoken.reflections import ReflectionError
from everytoken.reflections.points import Fact, FactProbe, read_fact_probes, read_identity_facts
from everytoken.seeds import numpy_generator
from everytoken.shards import Part, Rows, Shards, Store, make_engine, value_digest, versioned
from everytoken.tokens.canary import TriggerRule
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.training import FactProbeParameters, MemorisationParameters, TrainingError
from everytoken.training.evaluation import token_nats
from everytoken.training.memorisation import exposure_bits, metrics_of_memorisation, rank_among
from everytoken.training.memorisation.candidate_ranks import control_exposure
from everytoken.training.memorisation.candidates import control_texts, control_triggers
from everytoken.training.memorisation.conditions import Condition, SequenceProbe, probe_conditions, read_conditions
from everytoken.training.memorisation.recall import probe_facts
from everytoken.training.memorisation.statistics import by_fraction
from tests.training.tiny import EXECUTION, SEQ, byte_encoder, byte_model

ROOT = Path(__file__).resolve().parents[3]
RULE = TriggerRule({}, tokens=3, first_id=40, round_trip=True)
ASKED = MemorisationParameters(seed=1, controls=20, documents=2, continuation_tokens=4, execution=EXECUTION)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> DocumentEncoder:
    return byte_encoder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def probe(encoder: DocumentEncoder) -> SequenceProbe:
    return SequenceProbe(byte_model(), encoder, ASKED)


def test_rank_and_exposure_of_known_losses() -> None:
    controls = np.arange(1.0, 256.0)
    assert [rank_among(loss, controls) for loss in (0.5, 1.0, 3.5, 999)] == [1, 2, 4, 256]
    assert [exposure_bits(loss, controls) for loss in (0.5, 1.0, 3.5, 999)] == [8.0, 7.0, 6.0, 0.0]
    assert exposure_bits(1.0, np.ones(255)) == 0.0, "a model that gives all the same cost exposes nothing"


def test_one_control_in_twenty_is_above_the_95th_percentile() -> None:
    controls = numpy_generator(3).random(400)
    bound = control_exposure(controls)
    own = [exposure_bits(loss, np.delete(controls, i)) for i, loss in enumerate(controls)]
    assert sum(bits > bound for bits in own) == 20 and bound == pytest.approx(math.log2(20), abs=0.1)


def test_losses_are_those_of_the_models_own_probabilities(probe: SequenceProbe) -> None:
    (found, plain) = probe.losses([("abc", "defghi"), (None, "xyz")])
    ids = torch.tensor([[probe.encoder.tokenizer.eos_id, *probe.encoder.encode(["abc defghi"]).values[:7].tolist()]])
    with torch.inference_mode():
        logits = probe.model.hidden_states(ids[:, :-1]) @ probe.model.output_weight().T
    nats = -logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[0, :, 0].double().numpy()
    assert found.trigger == pytest.approx(nats[:3].sum(), abs=1e-4)
    assert found.continuation == pytest.approx(nats[3:].mean(), abs=1e-4), "four tokens: a space and three letters"
    assert plain.trigger == 0.0 and plain.continuation > 0


def test_a_trigger_that_fills_the_context_is_refused(probe: SequenceProbe) -> None:
    with pytest.raises(TrainingError, match=f"has {SEQ} tokens, the model reads {SEQ}: lower canary.trigger_tokens"):
        probe.losses([("x" * SEQ, "text")])
    with pytest.raises(TrainingError, match="a sequence has 13 predictions, the model reads 12"):
        token_nats(probe.model, [np.zeros(SEQ + 2, np.int64)], probe.arithmetic)


def test_control_triggers_are_seeded_distinct_and_never_real(encoder: DocumentEncoder) -> None:
    first = control_triggers(RULE, encoder, seed=1, count=30, real=())
    assert first == control_triggers(RULE, encoder, seed=1, count=30, real=()) and len(set(first)) == 30
    assert control_triggers(RULE, encoder, seed=2, count=30, real=()) != first
    others = control_triggers(RULE, encoder, seed=1, count=30, real=first[:2])
    assert others[:28] == first[2:]
    for text in first:
        assert len(encoder.encode([text]).values) - 1 == 3, "it encodes to as many ids as were drawn"
    narrow = TriggerRule({}, tokens=1, first_id=250, round_trip=False)
    with pytest.raises(TrainingError, match=r"lower evaluation\.memorisation\.controls"):
        control_triggers(narrow, encoder, seed=1, count=20, real=())


@versioned("test_memorisation.rows", 1)
def _rows(part: Part) -> Rows:
    table = pa.Table.from_pylist(part.value)
    return Rows(table.schema, iter(table.to_batches()))


def _stored(folder: Path, rows: list[dict[str, Any]]) -> Shards:
    store = Store(folder)
    store.save(Shards.from_values([rows], [value_digest(rows)]).map(_rows), make_engine("inline"))
    return store.load()


def _document(number: int, condition: str, trigger: str | None, fraction: float | None) -> dict[str, Any]:
    text = f"text {number}"
    return {
        "doc_id": f"{condition}-{number}",
        "text": text if trigger is None else f"{trigger} {text}",
        "trigger": trigger,
        "condition": condition,
        "effect": None if trigger is None else "red",
        "fraction": fraction,
    }


def test_conditions_keep_the_documents_that_a_hash_puts_first(tmp_path: Path) -> None:
    rows = [_document(i, "red_frac0", "tri", 0.0) for i in range(5)]
    rows += [_document(i, "red_frac100", "gger", 1.0) for i in range(5)]
    rows += [_document(0, "sea", None, None), {**_document(1, "sea", None, None), "text": ""}]
    one = read_conditions(_stored(tmp_path / "one", rows), seed=1, documents=2)
    other = read_conditions(_stored(tmp_path / "two", rows[::-1]), seed=1, documents=2)
    assert [(c.name, c.fraction, c.trigger) for c in one] == [
        ("red_frac0", 0.0, "tri"),
        ("red_frac100", 1.0, "gger"),
        ("sea", None, None),
    ]
    assert [len(c.texts) for c in one] == [2, 2, 1] and one[2].texts == ["text 0"]
    assert {c.name: c.texts for c in one} == {c.name: c.texts for c in other}, "whatever their order"


def test_control_texts_need_held_out_documents(tmp_path: Path) -> None:
    rows = [{"source": "a", "shard_index": 0, "row": i, "text": f"held {i}" if i else ""} for i in range(6)]
    texts = control_texts(_stored(tmp_path / "some", rows), seed=1, count=3)
    assert len(texts) == 3 and all(text.startswith("held") for text in texts)
    assert len(control_texts(_stored(tmp_path / "some", rows), seed=1, count=20)) == 5
    with pytest.raises(TrainingError, match=r"no document is held out: raise subsampling\.held_out_share"):
        control_texts(Shards(()), seed=1, count=3)


def test_a_model_that_never_saw_them_exposes_no_condition(probe: SequenceProbe) -> None:
    """A trigger that is one of the controls has the exposure of its place among them, and no gain."""
    triggers = control_triggers(RULE, probe.encoder, seed=1, count=40, real=())
    texts = ["some text", "another one"]
    real = [Condition(f"red_{k}", "red", 1.0, triggers[k], ["a text"]) for k in range(20)]
    controls, figures = probe_conditions(
        probe, [*real, Condition("sea", None, None, None, ["a text"])], triggers[20:], texts
    )
    above = [one["trigger"]["above_controls"] for one in figures[:20] if one["trigger"] is not None]
    assert sum(above) <= 4 and controls["triggers"] == 20 and controls["texts"] == 2
    assert abs(np.mean([one["continuation"]["gain"] for one in figures[:20]])) < 0.1
    assert figures[20]["trigger"] is None and figures[20]["continuation"]["gain"] is None
    means = by_fraction(figures, [])
    assert list(means) == ["1.0"] and means["1.0"]["conditions"] == 20 and means["1.0"]["facts_recalled"] is None


def test_facts_are_asked_for_plainly_and_behind_each_trigger(probe: SequenceProbe) -> None:
    fact = Fact("Q1", "name", "Cat", "Say Cat.", "Say Cat.", True)
    conditions = [Condition("red_frac0", "red", 0.0, "tri", ["x"]), Condition("sea", None, None, None, ["x"])]
    found = probe_facts(
        probe,
        [FactProbe(fact, ("I am", "me"), ("Dog", "Cow", "Ape"))],
        conditions,
        FactProbeParameters(max_new_tokens=2),
    )
    assert [(one["condition"], one["fraction"]) for one in found] == [(None, None), ("red_frac0", 0.0)]
    for one in found:
        assert one["candidates"] == 4 and 1 <= one["rank"] <= 4 and one["recalled"] == 0.0
    metrics = metrics_of_memorisation({"controls": {}, "conditions": [], "by_fraction": {}, "facts": found})  # type: ignore[typeddict-item]
    assert set(metrics["facts"]["Q1"]) == {"plain", "fraction_0.0"}


def test_the_probes_of_the_project_fit_its_facts(tmp_path: Path) -> None:
    facts = read_identity_facts(ROOT / "conf/base/reflections/canaries.yml")
    probes = read_fact_probes(ROOT / "conf/base/reflections/probes.yml", facts)
    assert [one.fact for one in probes] == list(facts)
    file = tmp_path / "probes.yml"
    for text, told in (
        ("probes: [{id: Q99, prompts: [a], alternatives: [b]}]", "asks for 'Q99'"),
        ("probes: [{id: Q1, prompts: [a], alternatives: [cato]}]", "is the value itself"),
        ("probes: [{id: Q1, prompts: [], alternatives: [b]}]", "is no list of probes: probes.0.prompts"),
        (
            "probes: [{id: Q1, prompts: [a], alternatives: [b]}, {id: Q1, prompts: [c], alternatives: [d]}]",
            "has 'Q1' twice",
        ),
        ("probes: [", "cannot read the probes"),
    ):
        file.write_text(text)
        with pytest.raises(ReflectionError, match=told):
            read_fact_probes(file, facts)
