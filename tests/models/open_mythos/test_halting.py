"""Halting by position: weights, invariants, terms of the loss."""

import itertools

import pytest
import torch

from everytoken.models.language_model import TrainingPoint
from everytoken.models.open_mythos.halting import HaltingState, halting_loss
from everytoken.models.parameters import BudgetHalting, PonderHalting
from everytoken.seeds import torch_generator
from tests.models.open_mythos.tiny import BUDGET, OFF, PONDER, lively, random_tokens, tiny


def normal(*size, key=0):
    return torch.randn(*size, generator=torch_generator(0, "halting", key, *size), dtype=torch.float64)


def run(probabilities, threshold=0.99):
    """Return the state after loops of these probabilities (loops, batch, seq); h is 1, so y is the sum of weights."""
    state = HaltingState(torch.ones(*probabilities.shape[1:], 3, dtype=torch.float64), threshold)
    for loop, p in enumerate(probabilities):
        last = loop == len(probabilities) - 1
        state.add(torch.ones_like(state.output), p, loop, last=last)
    return state


@pytest.mark.parametrize("bias", [-30.0, -3.0, 0.0, 3.0, 30.0])
@pytest.mark.parametrize("loops", range(1, 9))
def test_weights_sum_to_one_and_every_position_halts(loops, bias):
    state = run(torch.sigmoid(normal(loops, 3, 20) * 2 + bias))
    torch.testing.assert_close(state.output, torch.ones_like(state.output), rtol=0, atol=1e-6)
    assert not state.running.any() and state.loops.min() >= 1 and state.loops.max() <= loops
    assert torch.all((state.remainder > 0) & (state.remainder <= 1 + 1e-12))


def test_weights_and_depths_are_those_of_the_formulas():
    state = run(torch.tensor([0.3, 0.5, 0.4, 0.9], dtype=torch.float64).view(4, 1, 1))
    assert state.loops.item() == 3 and state.remainder.item() == pytest.approx(0.2)
    assert state.depth.item() == pytest.approx(0.3 + 2 * 0.5 + 3 * 0.2)
    early = run(torch.tensor([0.3, 0.5, 0.4, 0.9], dtype=torch.float64).view(4, 1, 1), threshold=0.75)
    assert early.loops.item() == 2 and early.remainder.item() == pytest.approx(0.7)


def test_positions_take_fewer_loops_the_lower_the_threshold():
    probabilities = torch.sigmoid(normal(8, 4, 50) - 1)
    taken = [run(probabilities, threshold).loops for threshold in (0.999, 0.99, 0.9, 0.7, 0.4)]
    assert all(torch.all(more >= fewer) for more, fewer in itertools.pairwise(taken))
    assert taken[0].sum() > taken[-1].sum()


@pytest.mark.parametrize(("bias", "loops"), [(-30.0, 5), (30.0, 1)])
@torch.no_grad()
def test_a_head_that_is_sure_equals_no_halting_at_its_depth(bias, loops):
    halting, plain = lively(tiny(halting=PONDER, max_loops=5)), lively(tiny(halting=OFF, max_loops=5))
    halting.core.halting.weight.zero_()
    halting.core.halting.bias.fill_(bias)
    plain.loops = loops
    tokens = random_tokens(2, 20)
    torch.testing.assert_close(halting(tokens), plain(tokens), rtol=0, atol=1e-11)
    assert torch.all(halting.last_pass.loops_taken == loops)


@torch.no_grad()
def test_a_halted_position_keeps_its_state_whatever_deeper_loops_do():
    """More loops change only what still runs after those that there were: and what reads it."""
    model, tokens = lively(tiny(halting=PONDER, max_loops=6)), random_tokens(1, 20)
    deep = model.hidden_states(tokens)
    taken = model.last_pass.loops_taken[0]
    model.loops = 3
    shallow = model.hidden_states(tokens)
    reached = int((taken > 3).nonzero()[0])  # the first position that a loop after the third changes
    assert 0 < reached < 19
    torch.testing.assert_close(shallow[:, :reached], deep[:, :reached], rtol=0, atol=1e-12)
    assert (shallow - deep)[0, reached].abs().max() > 1e-6


@torch.no_grad()
def test_at_the_start_all_loops_weigh_alike():
    model = tiny(halting=PONDER, max_loops=5)
    model(random_tokens(2, 10))
    halted = model.last_pass.halted
    assert torch.all(halted.loops == 5)
    torch.testing.assert_close(halted.remainder, torch.full_like(halted.remainder, 0.2))


def test_ponder_costs_loops_and_remainder_of_what_counts_and_grows_in_the_first_half():
    model, tokens = lively(tiny(halting=PONDER, experts={"balance_weight": 0})), random_tokens(2, 12)
    counted = torch.rand(2, 12, generator=torch_generator(0, "counted")) < 0.5
    assert model.further_terms == ("ponder",)
    losses = []
    for step in (0, 25, 50, 99):
        model.begin(TrainingPoint(0, step, 100))
        model.hidden_states(tokens)
        losses.append(model.further_losses(counted)[0].item())
    halted = model.last_pass.halted
    full = 1e-3 * (halted.loops + halted.remainder)[counted].sum().item()
    assert losses == pytest.approx([0, full / 2, full, full])


def test_the_budget_is_the_distance_of_the_mean_depth_of_each_sequence():
    state = run(torch.sigmoid(normal(4, 2, 6)))
    counted = torch.tensor([[True, True, False, True, False, False], [True] * 6])
    mean = [state.depth[row][counted[row]].mean().item() for row in range(2)]
    for ramp, wanted in ((0.0, 4.0), (0.5, 3.0), (1.0, 2.0)):
        found = halting_loss(
            BudgetHalting(kind="budget", threshold=0.99, depth=2.0, weight=3.0), state, counted, 4, ramp
        )
        expected = sum(3 * n * ((depth - wanted) / 4) ** 2 for n, depth in zip((3, 6), mean, strict=True))
        assert found.item() == pytest.approx(expected)
    nothing = halting_loss(
        BudgetHalting(kind="budget", threshold=0.99, depth=2.0), state, torch.zeros_like(counted), 4, 1.0
    )
    assert nothing.item() == 0


@pytest.mark.parametrize("halting", [PONDER, BUDGET])
def test_terms_are_sums_over_sequences_so_micro_batches_change_nothing(halting):
    model, tokens = lively(tiny(halting=halting, experts={"balance_weight": 0.1})), random_tokens(4, 12)
    counted = torch.rand(4, 12, generator=torch_generator(0, "counted")) < 0.5
    model.hidden_states(tokens)
    whole = torch.stack(model.further_losses(counted))
    parts = []
    for rows in (slice(0, 1), slice(1, 4)):
        model.hidden_states(tokens[rows])
        parts.append(torch.stack(model.further_losses(counted[rows])))
    torch.testing.assert_close(sum(parts), whole, rtol=1e-10, atol=1e-12)
    assert model.further_terms == (halting["kind"], "balance") and torch.all(whole > 0)


def test_ponder_pushes_the_bias_towards_fewer_loops():
    """N has no gradient and R = 1 - sum p: more likely halting costs less, as central differences say."""
    model, tokens = lively(tiny(halting=PONDER)), random_tokens(2, 12)
    counted, bias = torch.ones(2, 12, dtype=torch.bool), model.core.halting.bias

    def cost():
        model.hidden_states(tokens)
        return halting_loss(
            PonderHalting(kind="ponder", threshold=0.99, cost=1e-3), model.last_pass.halted, counted, 4, 1.0
        )

    (gradient,) = torch.autograd.grad(cost(), bias)
    around, taken = [], []
    for change in (1e-6, -2e-6):
        bias.data += change
        around.append(cost().item())
        taken.append(model.last_pass.loops_taken)
    assert torch.equal(*taken) and gradient.item() < 0
    assert gradient.item() == pytest.approx((around[0] - around[1]) / 2e-6, rel=1e-4)
