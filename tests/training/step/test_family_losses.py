"""What training carries for a family that has more than a cross-entropy: terms, a place in the run, a hook."""

import logging
import math

import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import cross_entropy

from everytoken.measurements import listening
from everytoken.models import TrainingPoint
from everytoken.models.families import build_model
from everytoken.models.llama import Llama, initialise_llama
from everytoken.training.checkpoints import model_tensors
from everytoken.training.checkpoints.model import tensors_sha256
from everytoken.training.errors import CheckpointError, NonFiniteError
from everytoken.training.run.artifacts import _Speed
from everytoken.training.run.progress import with_progress
from everytoken.training.step.history import HISTORY, StepHistory, StepRecord, term_names
from everytoken.training.step.loop import make_optimizer, prepare, train_steps
from everytoken.training.step.objective import Objective
from tests.models.tiny_llama import LLAMA
from tests.training.tiny import MYTHOS, SEQ, VOCAB, random_batches, training_parameters


class Counting(Llama):
    """A Llama that pays for the size of its states and for their mean, and counts the positions that it read."""

    further_terms = ("size", "drift")

    def __init__(self, weights=(0.01, 0.1)):
        super().__init__(LLAMA, vocab_size=VOCAB, max_seq_len=SEQ)
        initialise_llama(self, LLAMA, seed=1)
        self.register_buffer("bias", torch.zeros(()))
        self.weights, self.counted, self.point = weights, torch.zeros((), dtype=torch.int64), None
        self.points, self.updates = [], []

    def hidden_states(self, tokens, cache=None, documents=None):
        self.states = super().hidden_states(tokens, cache, documents)
        if self.point is not None:
            self.counted += tokens.numel()
        return self.states

    def begin(self, point):
        self.point = point
        self.points.append(point)

    def further_losses(self, counted):
        kept = self.states * counted[..., None]
        return self.weights[0] * kept.square().mean(-1).sum(), self.weights[1] * kept.mean(-1).sum()

    def decays(self, name, parameter):
        return super().decays(name, parameter) and not name.endswith("down")

    def after_step(self, add, updated):
        counts, self.counted = add(self.counted), torch.zeros_like(self.counted)
        self.updates.append((int(counts), updated))
        if updated:
            self.bias += 1


def steps_of(model, module=None, first_step=0, **changes):
    parameters = training_parameters(**changes)
    optimizer = make_optimizer(model, parameters)
    return train_steps(model, optimizer, random_batches(), parameters, first_step=first_step, module=module)


def train(model, **changes):
    return list(steps_of(model, **changes))


def test_the_terms_are_reported_by_name_and_the_loss_stays_the_cross_entropy():
    tokens, mask = (torch.from_numpy(array) for array in random_batches()(0))
    model = Counting()
    with torch.no_grad():
        expected = cross_entropy(model(tokens[:, :-1])[mask], tokens[:, 1:][mask])
        size, drift = (float(term / mask.sum()) for term in model.further_losses(mask))
    (first, *_) = train(Counting())
    assert first.loss == pytest.approx(expected.item(), rel=1e-6)
    assert first.terms == pytest.approx({"size": size, "drift": drift}, rel=1e-5)


def test_the_gradient_is_that_of_the_sum():
    tokens, mask = (torch.from_numpy(array) for array in random_batches()(0))
    model = Counting()
    loss = cross_entropy(model(tokens[:, :-1])[mask], tokens[:, 1:][mask])
    (loss + sum(model.further_losses(mask)) / mask.sum()).backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm().item()
    assert train(Counting())[0].grad_norm == pytest.approx(norm, rel=1e-5)
    assert train(Counting(weights=(0.0, 0.0)))[0].grad_norm != pytest.approx(norm, rel=1e-3)


def test_terms_do_not_depend_on_the_micro_batch_size():
    whole, parts = train(Counting()), train(Counting(), micro_batch_size=1)
    for one, other in zip(whole, parts, strict=True):
        assert other.terms == pytest.approx(one.terms, rel=1e-3)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)


def test_a_step_counts_all_of_its_micro_batches_and_nothing_else():
    model = Counting()
    records = steps_of(model, micro_batch_size=2, steps=3, warmup_steps=1)
    for _ in records:
        with torch.no_grad():  # an evaluation between two steps
            model(torch.zeros(3, SEQ, dtype=torch.int64))
    # the first is what came before the first step, with nothing to learn from
    assert model.updates[1:] == [(4 * SEQ, True)] * 3 and not model.updates[0][1]
    assert model.bias == 3


def test_a_forward_pass_knows_the_seed_and_the_step_wherever_the_run_was_cut():
    def places(first_step):
        model = Counting()
        list(steps_of(model, first_step=first_step))
        return model.points

    assert places(4) == [TrainingPoint(7, 0, 6), TrainingPoint(7, 4, 6), None, TrainingPoint(7, 5, 6), None]
    assert places(0)[0] == TrainingPoint(7, 0, 6)  # a restart prepares itself as the beginning did


def looped(**changes):
    """Return the looped family of the tests after 6 steps, and what they did without their seconds."""
    model = build_model(MYTHOS, vocab_size=VOCAB, max_seq_len=SEQ, seed=1)
    parameters = training_parameters(**changes)
    module = prepare(model, parameters)
    records = train_steps(
        model, make_optimizer(model, parameters), random_batches(), parameters, first_step=0, module=module
    )
    return model, [(record.loss, record.terms, record.grad_norm) for record in records]


def test_what_is_computed_again_for_its_gradient_is_counted_once():
    (plain, expected), (again, found) = looped(), looped(activation_checkpointing=True)
    assert found == expected
    assert plain.core.block.feed_forward.bias.abs().max() > 0.005, "it has moved"
    assert tensors_sha256(model_tensors(again)) == tensors_sha256(model_tensors(plain))


def test_loops_and_routers_do_not_depend_on_the_micro_batch_size():
    (whole, expected), (parts, found) = looped(), looped(micro_batch_size=1)
    for (loss, terms, norm), (other_loss, other_terms, other_norm) in zip(expected, found, strict=True):
        assert other_loss == pytest.approx(loss, rel=1e-5) and other_norm == pytest.approx(norm, rel=1e-3)
        assert other_terms == pytest.approx(terms, rel=1e-3, abs=1e-6)
    assert torch.allclose(whole.core.block.feed_forward.bias, parts.core.block.feed_forward.bias, atol=1e-6)


class NotFinite(Objective):
    """Gives terms that are not finite in its third forward pass."""

    passes = 0

    def forward(self, *arguments):
        sums = super().forward(*arguments)
        self.passes += 1
        return sums * torch.tensor([1.0, math.inf, 1.0]) if self.passes == 3 else sums


def test_a_step_with_a_term_that_is_not_finite_is_skipped_and_its_counts_are_dropped():
    model = Counting()
    records = list(steps_of(model, module=NotFinite(model)))
    assert [record.skipped for record in records] == [False, False, True, False, False, False]
    assert math.isfinite(records[2].loss) and math.isinf(records[2].terms["size"])
    assert [updated for _, updated in model.updates[1:]] == [True, True, False, True, True, True]
    assert model.bias == 5


def test_a_run_that_stops_says_which_term_was_not_finite():
    model = Counting()
    with pytest.raises(NonFiniteError, match=r"step 2 \(numbered from 0, of 6\): loss \d\.\d+, size inf, drift -?\d"):
        list(steps_of(model, module=NotFinite(model), max_skipped_in_a_row=0))


def test_a_family_names_what_does_not_decay():
    model = Counting()
    decaying, others = (group["params"] for group in make_optimizer(model, training_parameters()).param_groups)
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert {names[parameter].rpartition(".")[2] for parameter in decaying} == {
        "embedding",
        "query_key_value",
        "attention_output",
        "gate_up",
    }
    assert len(decaying) + len(others) == len(names)


RECORDS = [
    StepRecord(step, 48 * (step + 1), 40, 5.0, 0.1, 1.0, skipped=False, terms={"size": 0.5 + step, "drift": -0.25})
    for step in range(3)
]


def test_the_history_has_a_column_for_each_term(tmp_path):
    history = StepHistory(("size", "drift"))
    for record in RECORDS:
        history.append(record)
    history.write(tmp_path / "history.parquet")
    names = pq.read_schema(tmp_path / "history.parquet").names
    assert names == [*HISTORY.names, "size", "drift"] and term_names(names) == ["size", "drift"]
    again = StepHistory.read(tmp_path / "history.parquet")
    assert again.last == RECORDS[-1]
    again.append(RECORDS[0])
    assert again.column("size").tolist() == [0.5, 1.5, 2.5, 0.5]


@pytest.mark.parametrize("terms", [(), ("size",), ("drift", "size")])
def test_steps_with_other_terms_than_those_before_are_refused(terms):
    with pytest.raises(CheckpointError, match="another version of the model"):
        StepHistory(terms).append(RECORDS[0])


def test_terms_are_told_while_it_trains(caplog):
    told = []
    with listening(told.append):
        _Speed(48).watch(RECORDS)
    assert told[0]["size"] == [0.5, 1.5, 2.5] and told[0]["drift"] == [-0.25] * 3
    with caplog.at_level(logging.INFO):
        list(with_progress(RECORDS, first_step=0, steps=3))
    assert "loss 5.0000, size 2.5, drift -0.25, lr" in caplog.records[-1].getMessage()
