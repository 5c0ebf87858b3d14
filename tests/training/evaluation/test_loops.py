"""What the loops of a model do: loss by number of loops, halting, load of the experts, loops by token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from everytoken.models import OpenMythos
from everytoken.reports import bits_per_byte_figure
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.tracking.mlflow_keys import flat_metrics
from everytoken.training import BitsPerByteParameters, LoopParameters
from everytoken.training.evaluation import LoopFigures, measure_loops, metrics_of_evaluation
from everytoken.training.evaluation.held_out import lowest_by_hash
from everytoken.training.evaluation.loops import _windows, numbers_of_loops
from tests.models.open_mythos.tiny import OFF, PONDER, lively, tiny
from tests.training.tiny import EXECUTION, HELD_OUT_SOURCES, HELD_OUT_TEXTS, SEQ, DocumentsPart, byte_encoder

PARTS = [DocumentsPart(HELD_OUT_TEXTS, HELD_OUT_SOURCES)]
CHOSEN = LoopParameters(documents=16, seed=7)


@pytest.fixture
def encoder(tmp_path: Path) -> DocumentEncoder:
    return byte_encoder(tmp_path)


def looping(halting: dict[str, object]) -> OpenMythos:
    return lively(tiny(vocab_size=257, max_seq_len=SEQ, halting=halting)).float()


def measured(model: OpenMythos, encoder: DocumentEncoder, batch_size: int = 3) -> LoopFigures:
    parameters = BitsPerByteParameters(batch_size=batch_size, execution=EXECUTION)
    return measure_loops(model, encoder, PARTS, parameters, CHOSEN)


def test_loss_halting_and_load_are_those_of_the_windows(encoder: DocumentEncoder) -> None:
    model = looping(PONDER)
    found, windows = measured(model, encoder), torch.from_numpy(_windows(encoder, lowest_by_hash(PARTS, 16, 7), SEQ))
    assert len(windows) > 1 and model.loops == 4
    for loops in (1, 2, 4, 8):
        model.loops = loops
        with torch.no_grad():
            logits = model(windows[:, :-1])
        expected = cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
        assert found["loss"][str(loops)] == pytest.approx(expected, rel=1e-5)
    model.loops = 4
    with torch.no_grad():
        model(windows[:, :-1])
    taken = model.last_pass.loops_taken
    assert found["positions"] == taken.numel()
    assert [*found["halted_after"].values()] == taken.flatten().bincount(minlength=5)[1:].tolist()
    assert found["mean_loops"] == pytest.approx(taken.double().mean().item())
    loads = [routing.load.sum(0) for _, routing in model.last_pass.routings]
    for loop, load in enumerate(loads):
        shares = [*found["load"][str(loop + 1)].values()]
        assert shares == pytest.approx((load / load.sum()).tolist()) and sum(shares) == pytest.approx(1)
        assert found["load_ratio"][str(loop + 1)] == pytest.approx(max(shares) * 4)
    for token in found["by_token"]:
        mine = windows[:, :-1] == encoder.tokenizer.tokenizer.token_to_id(token["token"])
        assert token["positions"] == mine.sum()
        assert token["loops"] == pytest.approx(taken[mine].double().mean().item())
    assert all(0 < entropy < 1.3863 for entropy in found["router_entropy"].values())


def test_the_figures_do_not_depend_on_the_batch_size(encoder: DocumentEncoder) -> None:
    model = looping(PONDER)
    one, other = measured(model, encoder, 1), measured(model, encoder, 100)
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5) and one["load"] == other["load"]


def test_without_halting_all_positions_take_all_loops(encoder: DocumentEncoder) -> None:
    found = measured(looping(OFF), encoder)
    assert found["halted_after"] == {"1": 0, "2": 0, "3": 0, "4": found["positions"]}
    assert found["mean_loops"] == 4 and {token["loops"] for token in found["by_token"]} == {4.0}


@pytest.mark.parametrize(("built", "numbers"), [(1, [1, 2]), (4, [1, 2, 4, 8]), (28, [1, 2, 4, 8, 16, 28, 32, 56])])
def test_the_loss_is_reported_below_at_and_beyond_the_loops_of_the_model(built: int, numbers: list[int]) -> None:
    assert numbers_of_loops(built) == numbers


def test_the_figures_are_metrics_and_panels(encoder: DocumentEncoder) -> None:
    source = {"bits_per_byte": 2.0, "unigram_bits_per_byte": 4.0}
    figures = {"total": source, "by_source": {"wiki": source}, "loops": measured(looping(PONDER), encoder)}
    metrics = flat_metrics("evaluation", metrics_of_evaluation(figures), "evaluation_metrics")
    assert metrics["evaluation.total.of_unigram"] == metrics["evaluation.by_source.wiki.of_unigram"] == 0.5
    assert metrics["evaluation.loops.loss.8"] == figures["loops"]["loss"]["8"]
    assert 0 < metrics["evaluation.loops.load.4.2"] < 1
    panels = bits_per_byte_figure(figures["by_source"], json.loads(json.dumps(figures["loops"])))
    names = {trace.name for trace in panels.data}
    assert {"nats a token", "positions", "expert 4", "max / mean", "mean loops", "trained model"} <= names
    assert len(bits_per_byte_figure(figures["by_source"]).data) == 2
