"""What differs between loops, and the bound of their state."""

import math

import pytest
import torch

from everytoken.models import ModelsError
from everytoken.models.open_mythos.recurrence import DepthAdapter, Injection, loop_embeddings
from everytoken.seeds import torch_generator
from tests.models.open_mythos.tiny import lively, random_tokens, tiny


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_decay_is_strictly_between_0_and_1_in_float32_whatever_the_parameters(dtype):
    injection = Injection(61 * 5).to(dtype)
    injection.a.data = torch.arange(-30, 31, dtype=dtype).repeat(5)
    injection.delta.data = torch.tensor([-30, -3, 0, 3, 30], dtype=dtype).repeat_interleave(61)
    injection.b.data.fill_(1.0)
    decay, gain = injection()
    assert decay.dtype == torch.float32 and decay.min() > 0 and decay.max() < 0.9991
    (decay.sum() + gain.sum()).backward()
    for parameter in injection.parameters():
        assert torch.isfinite(parameter.grad).all()


@pytest.mark.slow
@torch.no_grad()
def test_the_state_stays_bounded_for_256_loops():
    model = lively(tiny(max_loops=8)).float()
    model.core.injection.a.fill_(-30.0)  # the slowest decay there is
    sizes = {}
    extend = model.core.norm.forward
    model.core.norm.forward = lambda x: sizes.update({len(sizes): x.abs().max().item()}) or extend(x)
    model.loops = 256
    assert torch.isfinite(model(random_tokens(1, 8))).all()
    decay, gain = model.core.injection()
    model.core.injection.a.fill_(0.0)
    sizes.clear()
    model(random_tokens(1, 8))
    assert len(sizes) == 256 and sizes[255] < 2 * sizes[15]
    assert decay.max() < 1 and torch.isfinite(gain).all()


def test_no_gradient_is_nan_at_the_ends_of_the_decay():
    model = lively(tiny()).float()
    model.core.injection.a.data[:] = torch.tensor([-30.0, 30.0]).repeat(16)
    model(random_tokens(1, 8)).square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_loops_are_told_apart_and_the_last_stands_for_deeper_ones():
    table = loop_embeddings(3, 4, 6)
    for loop in range(3):
        expected = [math.sin(loop), math.sin(loop / 100), math.cos(loop), math.cos(loop / 100), 0, 0]
        assert table[loop].tolist() == pytest.approx(expected)
    adapter = DepthAdapter(6, 2, 3).double()
    for parameter in adapter.parameters():
        parameter.data.normal_(generator=torch_generator(0, "adapter"))
    v = torch.randn(1, 4, 6, generator=torch_generator(0, "v"), dtype=torch.float64)
    assert torch.equal(adapter(v, 2), adapter(v, 9)) and not torch.equal(adapter(v, 1), adapter(v, 2))
    expected = (v @ adapter.reduce.T * adapter.scale[1]) @ adapter.expand.T
    torch.testing.assert_close(adapter(v, 1), expected, rtol=0, atol=1e-12)


def test_one_loop_is_that_of_the_formulas():
    model, tokens = lively(tiny(max_loops=1)), random_tokens(1, 6)
    core, seen = model.core, {}
    core.norm.register_forward_hook(lambda module, inputs, out: seen.update(u=inputs[0], normed=out))
    core.block.register_forward_hook(lambda module, inputs, out: seen.update(block_in=inputs[0], v=out[0]))
    model.prelude[-1].register_forward_hook(lambda module, inputs, out: seen.update(e=out[0]))
    model.coda[0].register_forward_hook(lambda module, inputs, out: seen.update(y=inputs[0]))
    with torch.no_grad():
        model(tokens)
        e, v = seen["e"], seen["v"]
        decay, gain = core.injection()
        torch.testing.assert_close(seen["u"], 2 * e + core.loop_embedding(0), rtol=0, atol=1e-12)
        torch.testing.assert_close(seen["block_in"], seen["normed"], rtol=0, atol=0)
        torch.testing.assert_close(seen["y"], decay * e + gain * e + v + core.adapter(v, 0), rtol=0, atol=1e-12)


def test_numbers_of_loops_below_1_are_refused_and_the_default_is_that_of_the_shape():
    model = tiny(max_loops=4)
    assert model.loops == 4
    with pytest.raises(ModelsError, match="at least 1, found 0"):
        model.loops = 0
    assert model.loops == 4
