"""Dispatch, mixture, and what keeps experts busy."""

import pytest
import torch

from everytoken.models.elementwise import swiglu
from everytoken.models.open_mythos.balance import LoadCounter, balance_values
from everytoken.models.open_mythos.dispatch import grouped, in_blocks, in_padded_groups, one_by_one, routed
from everytoken.models.open_mythos.experts import MixtureOfExperts, Routing
from everytoken.models.parameters import ExpertsParameters
from everytoken.seeds import torch_generator
from tests.models.open_mythos.tiny import EXPERTS

D = 16


def normal(*size, key=0, dtype=torch.float64):
    return torch.randn(*size, generator=torch_generator(0, "experts", key, *size), dtype=dtype)


def mixture(dtype=torch.float64, **changes):
    made = MixtureOfExperts(D, ExpertsParameters.model_validate({**EXPERTS, **changes})).to(dtype)
    for number, parameter in enumerate(made.parameters()):
        parameter.data.copy_(normal(*parameter.shape, key=number, dtype=dtype) / 3)
    return made


def dense(experts, x, chosen=None):
    """Return the mixture by all experts on all rows, gated by the softmax over those that are chosen."""
    rows = x.flatten(0, 1)
    logits = rows @ experts.router.T
    if chosen is None:
        chosen = (logits + experts.bias).topk(experts.per_token).indices
    gates = torch.full_like(logits, -torch.inf).scatter(1, chosen, logits.gather(1, chosen)).softmax(-1)
    each = torch.einsum("edf,nef->ned", experts.down, swiglu(torch.einsum("efd,nd->nef", experts.gate_up, rows)))
    return (torch.einsum("ne,ned->nd", gates, each) + experts.shared(rows, None)[0]).view_as(x)


@pytest.mark.parametrize(("n_experts", "per_token"), [(4, 2), (4, 4), (16, 3), (16, 16)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_values_and_gradients_are_those_of_the_dense_computation(n_experts, per_token, dtype, tolerance):
    experts, x = mixture(dtype, n_experts=n_experts, per_token=per_token), normal(2, 20, D, dtype=dtype)
    x.requires_grad_()
    inputs, weights = [x, *experts.parameters()], normal(2, 20, D, key=1, dtype=dtype)
    found, expected = experts(x, None)[0], dense(experts, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=tolerance * 10, atol=tolerance * 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_ways_to_dispatch_agree_also_where_experts_have_no_row(dtype):
    sizes = torch.tensor([5, 0, 1, 9, 0])
    rows, gate_up, down = normal(15, D, dtype=dtype), normal(5, 32, D, dtype=dtype), normal(5, D, 16, dtype=dtype)
    inputs = [x.requires_grad_() for x in (rows, gate_up, down)]
    weights = normal(15, D, key=1, dtype=dtype)
    ways = [one_by_one, in_padded_groups] if dtype == torch.float64 else [one_by_one, in_padded_groups, grouped]
    results = []
    for way in ways:
        out = way(rows, sizes, gate_up, down)
        results.append([out, *torch.autograd.grad((out * weights).sum(), inputs)])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.5}[dtype]
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(two, one, rtol=tolerance, atol=tolerance)
    assert not results[0][2][1].any() and torch.isfinite(results[0][2]).all()


@pytest.mark.parametrize("n_experts", [4, 16])
def test_rows_of_zeros_that_fill_a_block_change_neither_values_nor_gradients(n_experts):
    experts, x = mixture(n_experts=n_experts), normal(3, 150, D).requires_grad_()
    running = torch.rand(3, 150, generator=torch_generator(0, "running")) < 0.8
    weights, inputs = normal(3, 150, D, key=1) * running.unsqueeze(-1), [x, *experts.parameters()]
    found, expected = experts(x, running)[0], dense(experts, x)
    torch.testing.assert_close(found, expected * running.unsqueeze(-1), rtol=0, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_products_have_few_numbers_of_rows_except_where_a_few_rows_are_read():
    computed = set()
    for count in range(640):
        out = in_blocks(torch.zeros(count, 2), lambda rows: computed.add(len(rows)) or rows)
        assert len(out) == count
    assert computed == {*range(64), *range(64, 641, 64)}


def test_identical_experts_are_one_whatever_the_routing():
    experts, x = mixture(), normal(1, 30, D)
    experts.gate_up.data[:] = experts.gate_up.data[:1].clone()
    experts.down.data[:] = experts.down.data[:1].clone()
    one = swiglu(x @ experts.gate_up[0].T) @ experts.down[0].T + experts.shared(x, None)[0]
    torch.testing.assert_close(experts(x, None)[0], one, rtol=0, atol=1e-12)


def test_permuted_tokens_have_permuted_results_and_no_token_is_dropped():
    experts, x = mixture(), normal(1, 50, D)
    experts.router.data[1:] = -experts.router.data[:1]  # nearly all choose alike
    order = torch.randperm(50, generator=torch_generator(0, "order"))
    y, routing = experts(x, None)
    torch.testing.assert_close(experts(x[:, order], None)[0], y[:, order], rtol=0, atol=1e-12)
    assert routing.load.sum() == 100 and routing.load.max() > 35


def test_positions_that_do_not_run_are_not_computed_and_do_not_count():
    experts, x = mixture(), normal(2, 12, D)
    running = torch.rand(2, 12, generator=torch_generator(0, "running")) < 0.4
    whole, some = experts(x, None), experts(x, running)
    torch.testing.assert_close(some[0], whole[0] * running.unsqueeze(-1), rtol=0, atol=1e-12)
    assert torch.equal(some[1].load.sum(1), 2 * running.sum(1)) and torch.equal(some[1].positions, running.sum(1))
    assert not experts(x, torch.zeros_like(running))[0].any()


def test_equal_scores_go_to_the_experts_of_lowest_number():
    experts = mixture(n_experts=8)
    experts.router.data.zero_()
    _, routing = experts(normal(1, 5, D), None)
    assert routing.load.tolist() == [[5, 5, 0, 0, 0, 0, 0, 0]]


def test_the_bias_changes_the_selection_alone_and_has_no_gradient():
    experts, x = mixture(per_token=1), normal(2, 20, D)
    before, routing = experts(x, None)
    experts.bias += 3.0  # of all: the selection stays
    same, _ = experts(x, None)
    assert torch.equal(same, before) and not experts.bias.requires_grad and "bias" in experts.state_dict()
    experts.bias[2] += 100.0
    forced, moved = experts(x, None)
    assert moved.load[:, 2].tolist() == [20, 20] and not torch.equal(routing.load, moved.load)
    torch.testing.assert_close(forced, dense(experts, x, torch.full((40, 1), 2)), rtol=0, atol=1e-12)


def test_the_router_computes_in_float32_under_autocast():
    experts, x = mixture(torch.float32, n_experts=16), normal(4, 64, D, dtype=torch.float32)
    exact = experts(x, None)[1]
    with torch.autocast("cpu", torch.bfloat16):
        y, routing = experts(x, None)
    assert y.dtype == torch.bfloat16
    assert torch.equal(routing.load, exact.load) and torch.equal(routing.score, exact.score)


@torch.no_grad()
def test_a_skewed_router_is_balanced_by_the_bias():
    experts, counter = mixture(torch.float32, n_experts=64, per_token=4, d_ff=2), LoadCounter()
    x = normal(1, 512, D, dtype=torch.float32)
    experts.router.data *= 3.0
    skew = torch.linspace(0, 4, 64)
    x[..., 0], experts.router.data[:, 0] = 1.0, skew

    def ratio(load):
        return (load.max() / load.double().mean()).item()

    logits = x[0] @ experts.router.T
    assert ratio((logits).topk(4).indices.flatten().bincount(minlength=64)) > 3
    for _ in range(2000):  # the selection alone: products of experts do not matter here
        load = (logits + experts.bias).topk(4).indices.flatten().bincount(minlength=64)
        counter.count(experts, Routing(load[None], logits, logits, load))
        counter.move_biases(1e-2, lambda total: total, updated=True)
    assert ratio(load) < 1.6 and abs(experts.bias.mean().item()) < 1e-6


@torch.no_grad()
def test_a_step_moves_the_bias_by_the_counts_of_all_calls_and_processes_and_a_skipped_one_by_none():
    experts, counter = mixture(torch.float32, n_experts=2, per_token=1), LoadCounter()
    empty = torch.zeros(1)

    def count(*load):
        counter.count(experts, Routing(torch.tensor([load]), empty, empty, empty))

    count(9, 0)
    counter.move_biases(0.5, lambda total: total, updated=False)
    assert experts.bias.tolist() == [0, 0]
    count(3, 1)
    count(0, 1)
    counter.move_biases(0.5, lambda total: total + torch.tensor([[0, 5]]), updated=True)  # 3 and 2, and others' 0 and 5
    assert experts.bias.tolist() == [0.5, -0.5]
    counter.move_biases(0.5, lambda total: total, updated=True)
    assert experts.bias.tolist() == [0.5, -0.5]


def test_the_auxiliary_loss_is_one_where_experts_are_equally_busy_and_counts_calls_with_positions():
    even = Routing(torch.tensor([[4, 4]]), torch.tensor([[2.0, 2.0]]), torch.zeros(1), torch.tensor([4]))
    skewed = Routing(torch.tensor([[4, 0]]), torch.tensor([[4.0, 0.0]]), torch.zeros(1), torch.tensor([4]))
    none = Routing(torch.tensor([[0, 0]]), torch.tensor([[0.0, 0.0]]), torch.zeros(1), torch.tensor([0]))
    assert balance_values([even], 2).tolist() == [1.0]
    assert balance_values([skewed], 1).tolist() == [2.0]
    assert balance_values([Routing(*skewed[:2], *skewed[2:]), none], 1).tolist() == [2.0]


def test_routed_rows_are_weighted_by_their_gates():
    x, gate_up, down = normal(3, D), normal(2, 8, D), normal(2, D, 4)
    chosen, gates = torch.tensor([[0, 1], [1, 0], [1, 0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    each = torch.stack([swiglu(x @ up.T) @ back.T for up, back in zip(gate_up, down, strict=True)])
    expected = torch.stack([each[0, 0], (each[0, 1] + each[1, 1]) / 2, each[0, 2]])
    torch.testing.assert_close(routed(x, chosen, gates.double(), gate_up, down), expected, rtol=0, atol=1e-12)
