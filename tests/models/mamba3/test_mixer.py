"""The layer alone: against a complex oracle, against the layers that it contains, and on parity by construction."""

import math

import pytest
import torch
from torch.nn.functional import silu, softplus

from everytoken.models.mamba3 import Mixer, chunked_scan
from everytoken.models.mamba3.complex_ssd import ComplexSsd
from everytoken.models.parameters import Mamba3Parameters
from everytoken.seeds import torch_generator
from tests.models.mamba3.shapes import LITE, MAMBA3


def mixer(**changes) -> Mixer:
    """Return a layer in float64, drawn wide enough that its gates, steps and phases matter."""
    layer = Mixer(MAMBA3.model_copy(update=changes)).double()
    generator = torch_generator(1, "mixer")
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4
            parameter.copy_(noise if name.startswith(("project", "step")) else parameter + noise)
    return layer


def some_input(seq: int, width: int = 64) -> torch.Tensor:
    return torch.randn(2, seq, width, generator=torch_generator(2, "input"), dtype=torch.float64)


def parts_of(layer: Mixer, x: torch.Tensor) -> list[torch.Tensor]:
    return list((x @ layer.project_in.T).split(layer._split, dim=-1))


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_one_input_a_token_is_a_complex_recurrence(share):
    """h_t = e^(a + i turn) h_(t-1) + ..., read out by Re(conj(C) h), is what rotated keys and queries give."""
    layer, seq = mixer(rotated_share=share), 37
    x = some_input(seq)
    heads, width, n, pairs = layer.heads, layer.width, layer.state_width, layer.pairs
    with torch.no_grad():
        gate, inputs, keys, queries, step, decay, weight, angle = parts_of(layer, x)
        inputs, gate = (y.view(2, seq, heads, width) for y in (inputs, gate))
        keys = layer.key_norm(keys)[:, :, None] + layer.key_bias[:, 0]
        queries = layer.query_norm(queries)[:, :, None] + layer.query_bias[:, 0]
        delta = softplus(step + layer.step_bias)
        slope = torch.where(decay >= 0, 1 + decay, 1 / (1 - decay)).clamp(min=1e-4)
        log_decay, weight = -slope * delta, weight.sigmoid()
        turn = delta[..., None] * math.pi * angle.tanh()[:, :, None]  # (batch, seq, heads, pairs)
        still = torch.zeros(2, seq, heads, n - 2 * pairs, dtype=torch.float64)

        def as_complex(y):  # pairs that turn, then those that do not
            return torch.cat(
                (torch.complex(y[..., :pairs], y[..., pairs : 2 * pairs]), y[..., 2 * pairs :] + 0j), dim=-1
            )

        keys, queries, turn = as_complex(keys), as_complex(queries), torch.cat((turn, still), dim=-1)
        state = torch.zeros(2, heads, width, keys.shape[-1], dtype=torch.complex128)
        last = torch.zeros_like(state)
        outputs = []
        for t in range(seq):
            back = torch.exp(log_decay[:, t, :, None] - 1j * turn[:, t])[..., None, :]
            new = inputs[:, t, :, :, None] * keys[:, t, :, None, :]
            share_of_last = ((1 - weight) * delta)[:, t, :, None, None]
            state = back * (state + share_of_last * last) + (weight * delta)[:, t, :, None, None] * new
            last = new
            read = (queries[:, t, :, None, :].conj() * state).sum(-1).real + layer.skip[:, None] * inputs[:, t]
            outputs.append((read * silu(gate[:, t])).flatten(1))
        expected = torch.stack(outputs, dim=1) @ layer.project_out.T
        found = layer(x)
    assert float(expected.abs().max()) > 10
    assert float((found - expected).abs().max()) < 1e-12 * float(expected.abs().max())


def test_without_rotation_and_with_one_point_it_is_the_scan_of_mamba_2():
    layer, seq = mixer(), 37
    x = some_input(seq)
    with torch.no_grad():
        rows = torch.cat([torch.full((size,), number) for number, size in enumerate(layer._split)])
        layer.project_in[rows == 7] = 0.0  # no angle
        layer.project_in[rows == 6] = 0.0
        gate, inputs, keys, queries, step, decay, _, _ = parts_of(layer, x)
        rates = layer._rates(step, decay, torch.full_like(step, torch.inf))  # lambda 1
        assert torch.equal(rates.last, torch.zeros_like(step))
        inputs = inputs.view(2, seq, layer.heads, layer.width)
        keys = layer.key_norm(keys)[:, :, None] + layer.key_bias[:, 0]
        queries = layer.query_norm(queries)[:, :, None] + layer.query_bias[:, 0]
        found, _ = chunked_scan(
            queries[..., None, :],
            keys[..., None, :],
            inputs[..., None, :],
            rates.log_decay,
            rates.now,
            rates.now,
            chunk=16,
        )
        sums = rates.log_decay.cumsum(1)  # Mamba-2: y_t = sum_(j <= t) exp(sum a) Delta_j (C_t B_j) x_j
        between = (sums[:, :, None] - sums[:, None]).exp() * rates.step[:, None]
        between = between * torch.ones(seq, seq).tril()[None, :, :, None]
        expected = torch.einsum("btjh,bthn,bjhn,bjhp->bthp", between, queries, keys, inputs)
        whole = _with_weight_of_one(layer)(x)
        gated = (expected + layer.skip[:, None] * inputs) * silu(gate.view_as(inputs))
    whole = whole.detach()
    assert float((found[..., 0, :] - expected).abs().max()) < 1e-12 * float(expected.abs().max())
    assert float((whole - gated.flatten(2) @ layer.project_out.T).abs().max()) < 1e-12 * float(whole.abs().max())


def _with_weight_of_one(layer: Mixer) -> Mixer:
    rates = layer._rates
    layer._rates = lambda step, decay, share: rates(step, decay, torch.full_like(share, torch.inf))
    return layer


def test_rank_two_with_an_idle_second_input_is_rank_one():
    one, two, x = mixer(), mixer(rank=2), some_input(37)
    with torch.no_grad():
        for name in ("project_out", "step_bias", "skip", "key_norm.weight", "query_norm.weight"):
            two.get_parameter(name).copy_(one.get_parameter(name))
        starts = [sum(two._split[:i]) for i in range(9)]
        pieces = list(one.project_in.split(one._split))
        for number in (2, 3):  # the second key and query are never read
            pieces[number] = torch.cat((pieces[number], torch.ones_like(pieces[number])))
        two.project_in.copy_(torch.cat(pieces))
        assert starts[-1] == two.project_in.shape[0]
        for name in ("key_bias", "query_bias"):
            two.get_parameter(name)[:, :1] = one.get_parameter(name)
        for name in ("value_scale", "gate_scale", "output_scale"):
            two.get_parameter(name)[:, 0], two.get_parameter(name)[:, 1] = 1.0, 0.0
        expected, found = one(x), two(x)
    assert float((found - expected).abs().max()) < 1e-12 * float(expected.abs().max())


def parity_layer(turns: bool) -> Mixer:
    """Return a layer of one head whose output has the sign of the parity of the ones that it has read.

    Inputs are one-hot: start, 0, 1. The start writes once, a one turns the state by pi, and nothing else happens.
    """
    shape = {"d_model": 4, "expand": 1, "head_width": 4, "state_width": 2, "rank": 1, "rotated_share": 1.0, "chunk": 64}
    layer = Mixer(Mamba3Parameters(**{**MAMBA3.model_dump(), **shape})).double()
    with torch.no_grad():
        gate, value, _, _, _, decay, weight, angle = layer.project_in.zero_().split(layer._split)
        gate[0], value[0, 0] = 10.0, 1.0
        decay[:], weight[:] = -1e6, 50.0  # the slowest decay; the last token has no share
        if turns:
            angle[0, 2] = 50.0
        layer.step_bias.fill_(math.log(math.e - 1))  # softplus of it is 1
        layer.key_norm.weight.zero_()
        layer.query_norm.weight.zero_()
        for bias in (layer.key_bias, layer.query_bias):
            bias.copy_(torch.tensor([[[1.0, 0.0]]]))
        layer.skip.zero_()
        layer.project_out.copy_(torch.eye(4))
    return layer


@pytest.mark.parametrize("token_by_token", [False, True])
def test_a_rotating_state_keeps_parity_for_500_steps(token_by_token):
    bits = torch.randint(0, 2, (500,), generator=torch_generator(3, "bits"))
    inputs = torch.eye(4, dtype=torch.float64)[torch.cat((torch.tensor([0]), 1 + bits))][None]
    layer = parity_layer(turns=True)
    with torch.no_grad():
        if token_by_token:
            state, outputs = None, []
            for t in range(501):
                out, state = layer.extend(inputs[:, t : t + 1], state)
                outputs.append(out)
            read = torch.cat(outputs, dim=1)[0, :, 0]
        else:
            read = layer(inputs)[0, :, 0]
        read = read / silu(torch.tensor(10.0, dtype=torch.float64))
        still = parity_layer(turns=False)(inputs)[0, :, 0]
    parity = 1 - 2 * (bits.cumsum(0) % 2)
    assert torch.equal(read[1:].sign().long(), parity)
    assert float(read.abs().min()) > 0.95
    assert bool((still > 0).all()), "a state that does not turn has one sign"


def test_the_lite_variant_is_its_complex_recurrence():
    layer, x, seq = ComplexSsd(LITE).double(), some_input(37), 37
    generator = torch_generator(4, "lite")
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3
            parameter.copy_(noise - torch.tensor([1.0, 0.0]) if name == "decay" else noise)
        inputs, keys, queries, step = (x @ layer.project_in.T).split(layer._split, dim=-1)
        keys, queries = (
            torch.complex(*part.view(2, seq, 2, layer.heads, layer.state_width).unbind(2)) for part in (keys, queries)
        )
        inputs, step = inputs.view(2, seq, layer.heads, layer.width), softplus(step)
        state = torch.zeros(2, layer.heads, layer.width, layer.state_width, dtype=torch.complex128)
        outputs = []
        for t in range(seq):
            back = torch.exp(step[:, t] * torch.complex(*layer.decay.unbind(1)))
            state = back[..., None, None] * state + inputs[:, t, :, :, None] * keys[:, t, :, None, :]
            outputs.append((queries[:, t, :, None, :] * state).sum(-1).real.flatten(1))
        expected = torch.stack(outputs, dim=1) @ layer.mix_heads.T @ layer.project_out.T
        found = layer(x)
    assert float((found - expected).abs().max()) < 1e-12 * float(expected.abs().max())
