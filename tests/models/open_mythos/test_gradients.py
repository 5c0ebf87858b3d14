"""Gradients, causality, independence of rows, and arithmetic."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from everytoken.models.language_model import TrainingPoint
from everytoken.seeds import torch_generator
from tests.models.open_mythos.tiny import ATTENTIONS, BUDGET, GQA, MLA, OFF, PONDER, lively, random_tokens, tiny


@pytest.mark.parametrize(
    ("attention", "halting", "layers"),
    [(GQA, OFF, "recurrent"), (MLA, PONDER, "all"), (GQA, BUDGET, "recurrent")],
)
def test_the_largest_gradient_of_every_tensor_agrees_with_central_differences(attention, halting, layers):
    changes = {"experts": {"layers": layers, "balance_weight": 0.1}, "d_ff": 24 if layers == "recurrent" else None}
    model = lively(tiny(attention=attention, halting=halting, **changes))
    tokens, counted = random_tokens(2, 11), torch.ones(2, 10, dtype=torch.bool)

    def loss():
        logits = model(tokens[:, :-1])
        terms = sum(model.further_losses(counted)) / 20
        return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) + terms

    def choices():
        last = model.last_pass
        return [last.loops_taken, *(routing.load for _, routing in last.routings)]

    gradients = torch.autograd.grad(loss(), list(model.parameters()))
    before, step = choices(), 1e-6
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        index = gradient.abs().argmax()
        entry = parameter.data.view(-1)
        around = []
        for change in (step, -2 * step):
            entry[index] += change
            with torch.no_grad():
                around.append(loss().item())
            assert all(map(torch.equal, choices(), before)), f"{name}: the choice of experts or loops changed"
        entry[index] += step
        expected = (around[0] - around[1]) / (2 * step)
        assert gradient.view(-1)[index].item() == pytest.approx(expected, rel=1e-4, abs=1e-8), name


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("halting", [OFF, PONDER])
@torch.no_grad()
def test_a_token_changes_only_states_at_and_after_it(attention, halting):
    model, tokens = lively(tiny(attention=attention, halting=halting)), random_tokens(2, 16)
    for position in (0, 7, 15):
        changed = tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % 61
        difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
        assert torch.all(difference[:position] < 1e-12) and difference[position:].max() > 1e-6


@torch.no_grad()
def test_a_row_has_the_same_logits_alone_and_in_a_batch():
    model, tokens = lively(tiny(halting=PONDER)).float(), random_tokens(4, 16)
    whole = model(tokens)
    for row in range(4):
        torch.testing.assert_close(model(tokens[row : row + 1])[0], whole[row], rtol=0, atol=1e-4)


def test_loops_without_gradient_change_no_value_and_the_last_ones_have_theirs():
    full, cut = lively(tiny(max_loops=4)), lively(tiny(max_loops=4, gradient_loops=1))
    tokens = random_tokens(2, 10)
    weights = torch.randn(2, 10, 61, generator=torch_generator(0, "weights"), dtype=torch.float64)
    gradients = {}
    for model in (full, cut):
        (model(tokens) * weights).sum().backward()
        gradients[model] = model.core.adapter.scale.grad
        assert all(parameter.grad is not None for parameter in model.parameters())
    torch.testing.assert_close(full(tokens), cut(tokens), rtol=0, atol=1e-12)
    assert gradients[full].abs().amax(1).min() > 0 and not gradients[cut][:3].any()
    torch.testing.assert_close(gradients[full][3], gradients[cut][3], rtol=0, atol=1e-9)


@pytest.mark.parametrize("halting", [OFF, PONDER])
def test_recomputed_blocks_give_the_same_bits_and_count_once(halting):
    tokens, counted = random_tokens(2, 10), torch.ones(2, 10, dtype=torch.bool)
    results = []
    for again in (False, True):
        model = tiny(halting=halting)
        model.activation_checkpointing = again
        model.begin(TrainingPoint(0, 60, 100))
        loss = model(tokens).square().sum() + sum(model.further_losses(counted))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        model.after_step(lambda total: total, updated=True)
        results.append([loss, *gradients, model.core.block.feed_forward.bias])
    assert all(map(torch.equal, *results)) and results[0][-1].any()


def test_passes_outside_training_do_not_move_the_bias():
    model, tokens = tiny(), random_tokens(2, 10)
    model.begin(TrainingPoint(0, 0, 100))
    with torch.no_grad():
        model(tokens)
    model.begin(None)
    model(tokens)
    model.after_step(lambda total: total, updated=True)
    assert not model.core.block.feed_forward.bias.any()


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
def test_states_and_halting_are_float32_under_autocast(attention):
    model, tokens, seen = tiny(attention=attention, halting=PONDER), random_tokens(1, 8), []
    model.core.norm.register_forward_hook(lambda module, inputs, out: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        states = model.hidden_states(tokens)
    halted = model.last_pass.halted
    assert {*seen, states.dtype, halted.output.dtype, halted.remainder.dtype} == {torch.float32}
    exact = model.hidden_states(tokens)
    torch.testing.assert_close(states, exact, rtol=0, atol=0.1)


def test_weight_decay_acts_on_matrices_and_experts_alone():
    model = tiny(attention=MLA, halting=PONDER)
    decayed = {name for name, parameter in model.named_parameters() if model.decays(name, parameter)}
    spared = {name for name, _ in model.named_parameters()} - decayed
    assert {name.rpartition(".")[2] for name in decayed} == {
        *("embedding", "query_down", "query_up", "key_value_down", "key_value_up", "output"),
        *("gate_up", "down", "router", "reduce", "expand"),
    }
    assert {"core.injection.a", "core.injection.delta", "core.injection.b", "core.adapter.scale"} <= spared
    assert {"core.halting.weight", "core.halting.bias", "final_norm.weight"} <= spared
