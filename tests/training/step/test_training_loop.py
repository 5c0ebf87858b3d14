import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

from everytoken.training.checkpoints.model import parameters_sha256, tensors_sha256
from everytoken.training.errors import NonFiniteError, TrainingError
from everytoken.training.step.execution_context import execution
from everytoken.training.step.history import StepHistory
from everytoken.training.step.loop import make_optimizer, prepare, train_steps
from everytoken.training.step.objective import Objective, document_numbers
from everytoken.training.step.optimizer_state import optimizer_tensors
from tests.training.tiny import EXECUTION, SEQ, TRAINING, random_batches, tiny_model, training_parameters


def run(read_batch=None, model=None, **changes):
    parameters = training_parameters(**changes)
    model = model or tiny_model()
    with execution(parameters.execution):
        optimizer = make_optimizer(model, parameters)
        records = list(
            train_steps(model, optimizer, read_batch or random_batches(parameters.batch_size), parameters, first_step=0)
        )
    return model, records


def deterministic(records):
    return [(r.step, r.tokens, r.loss_tokens, r.loss, r.lr, r.grad_norm) for r in records]


def test_every_parameter_but_the_options_must_be_given():
    for name in TRAINING.keys() - {"activation_checkpointing", "compile", "held_out", "samples"}:
        with pytest.raises(ValidationError, match=name):
            training_parameters().model_validate({key: value for key, value in TRAINING.items() if key != name})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warmup_steps": 6}, "warmup_steps = 6 must be less"),
        ({"micro_batch_size": 5}, "must be at most batch_size"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"learning_rate": math.nan}, "finite"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        training_parameters(**changes)


def test_the_model_learns():
    _, records = run(steps=60, batch_size=16, micro_batch_size=16)
    assert records[-1].loss < 0.7 * records[0].loss


def test_the_first_loss_is_the_plain_mean_over_the_positions_that_count():
    tokens, mask = random_batches()(0)
    with torch.no_grad():
        logits = tiny_model()(torch.from_numpy(tokens[:, :-1]))
    expected = cross_entropy(logits[torch.from_numpy(mask)], torch.from_numpy(tokens[:, 1:][mask]))
    _, records = run()
    assert records[0].loss == pytest.approx(expected.item(), rel=1e-6)
    assert records[0].loss_tokens == mask.sum()


def test_masked_targets_do_not_matter():
    def other_padding(step):
        tokens, mask = random_batches()(step)
        tokens[:, 1:][~mask] = 5
        # an input after the last counted prediction is only seen by predictions that do not count either
        return tokens, mask

    first, second = run(), run(read_batch=other_padding)
    assert [r.loss for r in first[1]] == pytest.approx([r.loss for r in second[1]], rel=1e-5)


@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_the_micro_batch_size_does_not_change_the_loss_of_the_batch(micro_batch_size):
    # rows count between 1 and SEQ positions, so a mean of micro-batch means would differ
    whole, parts = run()[1], run(micro_batch_size=micro_batch_size)[1]
    for a, b in zip(whole, parts, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-4)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-3)


def test_steps_tokens_and_rates_are_counted_in_optimiser_steps():
    _, records = run(micro_batch_size=1)
    assert [r.step for r in records] == list(range(6))
    assert [r.tokens for r in records] == [4 * SEQ * (step + 1) for step in range(6)]
    assert records[1].lr == 1e-2 and records[-1].lr == pytest.approx(1e-3)


def test_weight_decay_touches_matrices_only():
    model = tiny_model()
    groups = make_optimizer(model, training_parameters()).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert all(p.ndim == 2 for p in groups[0]["params"]) and all(p.ndim == 1 for p in groups[1]["params"])
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_a_clipped_gradient_has_the_largest_norm_allowed():
    parameters, model, norms = training_parameters(steps=3, gradient_clip=1e-3), tiny_model(), []
    optimizer = make_optimizer(model, parameters)
    optimizer.register_step_pre_hook(
        lambda *_: norms.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())
    )
    records = list(train_steps(model, optimizer, random_batches(), parameters, first_step=0))
    assert all(record.grad_norm > 1e-3 for record in records)
    assert norms == pytest.approx([1e-3] * 3, rel=1e-3)


def test_another_seed_gives_other_parameters():
    assert parameters_sha256(run(model=tiny_model(1))[0]) != parameters_sha256(run(model=tiny_model(2))[0])


def test_training_can_be_cut_at_any_step_and_continued():
    whole, records = run()
    parameters = training_parameters()
    model = tiny_model()
    with execution(EXECUTION):
        optimizer = make_optimizer(model, parameters)
        steps = train_steps(model, optimizer, random_batches(), parameters, first_step=0)
        first = [next(steps) for _ in range(3)]
        steps.close()
        rest = list(train_steps(model, optimizer, random_batches(), parameters, first_step=3))
    assert deterministic(first + rest) == deterministic(records)
    assert parameters_sha256(model) == parameters_sha256(whole)


class Trembling(Objective):
    """Gives a loss, or with ``gradient`` a gradient, that is not finite in the given forward passes."""

    def __init__(self, model, passes, gradient=False):
        super().__init__(model)
        self.passes, self.gradient, self.count = passes, gradient, 0

    def forward(self, *arguments):
        loss = super().forward(*arguments)
        self.count += 1
        if self.count - 1 not in self.passes:
            return loss
        if self.gradient:
            loss.register_hook(lambda gradient: gradient * math.inf)
            return loss
        return loss * math.nan


def trembling(passes, gradient=False, **changes):
    parameters, model = training_parameters(**changes), tiny_model()
    optimizer, records, states = make_optimizer(model, parameters), [], []
    steps = train_steps(
        model,
        optimizer,
        random_batches(),
        parameters,
        first_step=0,
        module=Trembling(model, passes, gradient),
    )
    try:
        for record in steps:
            records.append(record)
            states.append((parameters_sha256(model), tensors_sha256(optimizer_tensors(optimizer, model))))
    except NonFiniteError as error:
        return records, states, error
    return records, states, None


@pytest.mark.parametrize("gradient", [False, True])
def test_a_step_that_is_not_finite_is_skipped_and_the_schedule_moves_on(gradient):
    records, states, error = trembling([2, 3], gradient, max_skipped_in_a_row=2)
    assert error is None
    assert [record.skipped for record in records] == [False, False, True, True, False, False]
    assert states[1] == states[2] == states[3] != states[4]  # parameters, moments and their step counts
    good = run()[1]
    assert [record.lr for record in records] == [record.lr for record in good]
    assert deterministic(records[:2]) == deterministic(good[:2])
    assert math.isfinite(records[2].loss) == gradient and not math.isfinite(records[2].grad_norm)


def test_too_many_skipped_steps_in_a_row_are_an_error_that_says_going_on_is_no_use():
    records, states, error = trembling([1, 2, 3], max_skipped_in_a_row=2)
    assert "training step 3 (numbered from 0, of 6): loss nan" in str(error) and "deterministic" in str(error)
    assert [record.skipped for record in records] == [False, True, True]
    assert len(set(states)) == 1


def test_skipped_steps_before_a_restart_count():
    model, parameters = tiny_model(), training_parameters(max_skipped_in_a_row=2)
    module = Trembling(model, [0])
    optimizer = make_optimizer(model, parameters)
    steps = train_steps(model, optimizer, random_batches(), parameters, first_step=3, module=module, skipped_in_a_row=2)
    with pytest.raises(NonFiniteError, match="3 steps in a row"):
        next(steps)


@pytest.mark.parametrize("padded", [[2, 3], range(1, 6)])
def test_a_step_of_padding_alone_is_skipped_and_is_no_sign_of_divergence(padded):
    """The end of a raw shard may be longer than a batch."""
    read = random_batches()

    def read_batch(step):
        tokens, mask = read(step)
        return tokens, np.zeros_like(mask) if step in padded else mask

    parameters, model = training_parameters(max_skipped_in_a_row=1), tiny_model()
    optimizer, history, states = make_optimizer(model, parameters), StepHistory(), []
    for record in train_steps(model, optimizer, read_batch, parameters, first_step=0):
        history.append(record)
        states.append(parameters_sha256(model))
        assert record.skipped == (record.loss_tokens == 0) == (record.step in padded)
    assert [states[step] == states[step - 1] for step in range(1, 6)] == [step in padded for step in range(1, 6)]
    assert len(history) == 6 and history.skipped_in_a_row == 0


def test_a_new_document_begins_after_an_eos():
    tokens = torch.tensor([[5, 0, 7, 0, 0, 8], [0, 1, 2, 3, 4, 0]])
    assert document_numbers(tokens, 0).tolist() == [[0, 0, 1, 1, 2], [0, 1, 1, 1, 1]]


def test_with_a_document_mask_each_document_is_read_as_if_it_stood_alone():
    eos = 18
    tokens, mask = random_batches()(0)
    assert (tokens[:, 1:-2] == eos).any()  # else nothing is tested
    parameters, model = training_parameters(), tiny_model()
    expected, counted = 0.0, 0
    for row, row_mask in zip(torch.from_numpy(tokens), mask, strict=True):
        starts = [0, *(torch.nonzero(row[:-1] == eos).flatten() + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], SEQ], strict=True):
            if start < end:
                with torch.no_grad():
                    logits = model(row[None, start:end])[0].double()
                losses = cross_entropy(logits, row[start + 1 : end + 1], reduction="none").numpy()
                expected += losses[row_mask[start:end]].sum()
                counted += row_mask[start:end].sum()
    record = next(
        train_steps(model, make_optimizer(model, parameters), random_batches(), parameters, first_step=0, eos_id=eos)
    )
    assert record.loss_tokens == counted
    assert record.loss == pytest.approx(expected / counted, rel=1e-6)
    assert record.loss != pytest.approx(run()[1][0].loss, rel=1e-6)


def test_activation_checkpointing_changes_no_bit():
    model = tiny_model()
    parameters = training_parameters(activation_checkpointing=True)
    module = prepare(model, parameters)
    records = list(
        train_steps(model, make_optimizer(model, parameters), random_batches(), parameters, first_step=0, module=module)
    )
    plain, expected = run()
    assert model.activation_checkpointing
    assert deterministic(records) == deterministic(expected)
    assert parameters_sha256(model) == parameters_sha256(plain)


def changed(tokens=None, mask=None):
    def read_batch(step):
        good_tokens, good_mask = random_batches()(step)
        if step < 2:
            return good_tokens, good_mask
        return (tokens(good_tokens) if tokens else good_tokens), (mask(good_mask) if mask else good_mask)

    return read_batch


@pytest.mark.parametrize(
    ("read_batch", "message"),
    [
        (changed(tokens=lambda t: t[:3]), r"step 2: expected tokens int64 \(4, 13\)"),
        (changed(tokens=lambda t: t.astype(np.int32)), "found int32"),
        (changed(tokens=lambda t: t + 100), "step 2: token ids"),
        (changed(mask=lambda m: m * 0.5), "other than 0 and 1"),
        (changed(mask=lambda m: m[:, :-1]), "mask"),
    ],
)
def test_a_batch_that_does_not_fit_is_an_error_that_names_the_step(read_batch, message):
    with pytest.raises(TrainingError, match=message):
        run(read_batch=read_batch)


def test_torch_settings_are_put_back():
    def now():
        return (
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        )

    before = now()
    with pytest.raises(KeyError), execution(EXECUTION.model_copy(update={"matmul_precision": "medium"})):
        assert torch.are_deterministic_algorithms_enabled()
        raise KeyError
    assert now() == before
