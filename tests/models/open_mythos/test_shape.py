"""Parameters, sizes and initial tensors."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

from everytoken.models import OpenMythosParameters
from everytoken.models.families import empty_model
from tests.models.open_mythos.tiny import BUDGET, DEV, GQA, MLA, PONDER, REFERENCE_32B, random_tokens, shape, tiny


def counts(parameters, vocab_size, max_seq_len):
    """Return all parameters, and those that act on a token, of a model that holds no numbers."""
    with torch.device("meta"):
        model = empty_model(
            OpenMythosParameters.model_validate(parameters), vocab_size=vocab_size, max_seq_len=max_seq_len
        )
    total = active = model.parameter_count()
    for block in model.layers():
        if hasattr(block.feed_forward, "router"):
            experts = block.feed_forward.gate_up.numel() + block.feed_forward.down.numel()
            idle = len(block.feed_forward.router) - block.feed_forward.per_token
            active -= experts * idle // len(block.feed_forward.router)
    return total, active


def test_the_dev_shape_has_12_595_million_parameters():
    assert counts(DEV, 32000, 256) == (12_595_265, 11_808_833)
    # without halting there is no halting head, which would never have a gradient
    assert counts({**DEV, "halting": {"kind": "off"}}, 32000, 256)[0] == 12_595_265 - 257


@pytest.mark.parametrize(
    ("experts", "d_ff", "millions"),
    [({"shared_width": 1}, 341, (12.20, 11.42)), ({"shared_width": 1, "layers": "all"}, None, (19.02, 15.09))],
)
def test_other_readings_of_the_dev_shape_have_other_sizes(experts, d_ff, millions):
    found = counts({**DEV, "d_ff": d_ff, "experts": {**DEV["experts"], **experts}}, 32000, 256)
    assert tuple(round(count / 1e6, 2) for count in found) == pytest.approx(millions, abs=0.011)


def test_the_reference_shape_has_32_billion_parameters_of_which_3_7_are_active():
    total, active = counts(REFERENCE_32B, 128256, 8192)
    assert (total, active) == (32_028_355_009, 3_716_803_009)


def test_work_counts_each_loop_and_each_chosen_expert():
    """Six operations a token for each entry of a matrix that acts on it; attention beside, over the mean window."""
    model = tiny()
    prelude, core = (6 * (32 * 64 + 32 * 32 + 3 * 32 * 24), 6 * (32 * 64 + 32 * 32 + 4 * 32 + 4 * 3 * 32 * 12))
    adapter, head, attention = 6 * 2 * 4 * 32, 6 * 61 * 32, 6 * 32 * 40
    once = 2 * (prelude + attention) + head
    assert model.flop_per_token(40) == once + 4 * (core + adapter + attention)
    assert tiny(gradient_loops=1).flop_per_token(40) == once + 2 * (core + adapter + attention)
    deeper = tiny(depth={"kind": "uniform", "least": 2, "most": 10})
    assert deeper.flop_per_token(40) == once + 6 * (core + adapter + attention)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": {"per_token": 5}}, "exceeds experts.n_experts"),
        ({"d_ff": None}, "exactly where layers is recurrent"),
        ({"experts": {"layers": "all"}}, "exactly where layers is recurrent"),
        ({"loop_embedding": 34}, "exceeds model.d_model"),
        ({"loop_embedding": 7}, "multiple of 2"),
        ({"attention": {**MLA, "v": 9}}, "exceeds attention.nope"),
        ({"attention": {**MLA, "rope": 3}}, "multiple of 2"),
        ({"attention": {**GQA, "n_kv_heads": 3}}, "multiple of model.n_kv_heads"),
        ({"attention": {**MLA, "n_kv_heads": 3}}, "Extra inputs"),
        ({"halting": {**BUDGET, "depth": 5}}, "exceeds model.max_loops"),
        ({"halting": {**PONDER, "cost": 0.1}}, "less than or equal to 0.001"),
        ({"depth": {"kind": "uniform", "least": 3, "most": 2}}, "exceeds depth.most"),
        ({"gradient_loops": 0}, "greater than 0"),
    ],
)
def test_shapes_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        shape(**changes)


@pytest.mark.parametrize("attention", [GQA, MLA])
@pytest.mark.parametrize("halting", [{"kind": "off"}, PONDER])
def test_initial_loss_is_close_to_that_of_uniform_guessing(attention, halting):
    model, tokens = tiny(vocab_size=1000, attention=attention, halting=halting), random_tokens(16, 25, high=1000)
    with torch.no_grad():
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(loss.item() - math.log(1000)) < 0.15


def test_tensors_begin_as_stated_and_depend_on_seed_and_name_alone():
    changes = {"d_model": 64, "attention": GQA, "halting": PONDER, "max_loops": 5, "experts": {"d_ff": 48}}
    model, again, other = (tiny(seed=seed, vocab_size=300, **changes) for seed in (1, 1, 2))
    residual = 0.02 / math.sqrt(2 * 7)
    for (name, parameter), same, different in zip(
        model.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(parameter, same)
        if name.endswith(("adapter.expand", "halting.weight", "injection.a")):
            assert not parameter.any()
        elif name.endswith("halting.bias"):
            assert parameter.item() == pytest.approx(-math.log(4))
        elif parameter.ndim > 1 and not name.endswith("adapter.scale"):
            assert not torch.equal(parameter, different)
            expected = {"reduce": 1 / 8, "output": residual, "down": residual}.get(name.rpartition(".")[2], 0.02)
            assert parameter.std().item() == pytest.approx(expected, rel=0.12), name
        elif not name.endswith("injection.delta"):
            assert torch.all(parameter == 1), name
    decay, gain = model.core.injection()
    torch.testing.assert_close(decay, torch.full((64,), math.sqrt(0.2)))
    torch.testing.assert_close(gain, torch.full((64,), math.log(5) / 2))
    assert not model.core.block.feed_forward.bias.any()


def test_a_large_model_has_smaller_matrices():
    model = tiny(vocab_size=2, d_model=2048, n_heads=2, attention={"kind": "gqa", "n_kv_heads": 1}, d_ff=16)
    expected = math.sqrt(2 / (5 * 2048))
    assert model.prelude[0].feed_forward.gate_up.std().item() == pytest.approx(expected, rel=0.05) and expected < 0.02


@pytest.mark.parametrize("kind", ["uniform", "poisson"])
def test_the_depth_of_a_step_depends_on_seed_and_step_alone(kind):
    from everytoken.models.language_model import TrainingPoint
    from everytoken.models.open_mythos.depth import loops_of_step

    depth = {"kind": "uniform", "least": 2, "most": 6} if kind == "uniform" else {"kind": "poisson", "mean": 8}
    parameters = shape(depth=depth)
    drawn = [loops_of_step(parameters, TrainingPoint(3, step, 2000)) for step in range(2000)]
    assert drawn[7::-1] == [loops_of_step(parameters, TrainingPoint(3, step, 9)) for step in range(7, -1, -1)]
    assert drawn != [loops_of_step(parameters, TrainingPoint(4, step, 2000)) for step in range(2000)]
    assert sum(drawn) / 2000 == pytest.approx(parameters.mean_loops, rel=0.05)
    assert (min(drawn), max(drawn)) == (2, 6) if kind == "uniform" else min(drawn) >= 1 and max(drawn) > 20
