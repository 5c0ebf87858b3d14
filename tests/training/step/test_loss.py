import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, linear

from everytoken.seeds import torch_generator
from everytoken.training.step import loss as loss_module
from everytoken.training.step.loss import cross_entropy_sum, token_losses


def drawn(rows, width, vocab, seed=0, dtype=torch.float64, scale=1.0):
    generator = torch_generator(seed, "loss")
    hidden = torch.randn(rows, width, generator=generator, dtype=dtype) * scale
    weight = torch.randn(vocab, width, generator=generator, dtype=dtype)
    targets = torch.randint(0, vocab, (rows,), generator=generator)
    counted = torch.rand(rows, generator=generator) < 0.6
    return hidden.requires_grad_(), weight.requires_grad_(), targets, counted


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 150), st.integers(1, 12), st.integers(2, 40), st.integers(0, 5))
def test_loss_and_gradients_equal_the_plain_ones(rows, width, vocab, seed):
    hidden, weight, targets, counted = drawn(rows, width, vocab, seed)
    ours = cross_entropy_sum(hidden, weight, targets, counted)
    gradients = torch.autograd.grad(ours * 0.25, (hidden, weight))
    plain = cross_entropy(linear(hidden[counted], weight), targets[counted], reduction="sum")
    expected = torch.autograd.grad(plain * 0.25, (hidden, weight))
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    for found, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)


def test_the_size_of_a_chunk_does_not_matter(monkeypatch):
    hidden, weight, targets, counted = drawn(300, 8, 50)
    whole = cross_entropy_sum(hidden, weight, targets, counted)
    monkeypatch.setattr(loss_module, "CHUNK_BYTES", 64 * 50 * 8)
    torch.testing.assert_close(cross_entropy_sum(hidden, weight, targets, counted), whole, rtol=1e-13, atol=0)


def test_gradients_agree_with_central_differences():
    hidden, weight, targets, counted = drawn(7, 3, 5)
    assert torch.autograd.gradcheck(lambda h, w: cross_entropy_sum(h, w, targets, counted), (hidden, weight))


def test_rows_that_do_not_count_get_no_gradient_and_may_hold_anything():
    hidden, weight, targets, counted = drawn(40, 8, 20)
    with torch.no_grad():
        hidden[~counted] = float("nan")
    total = cross_entropy_sum(hidden, weight, targets, counted)
    total.backward()
    assert torch.isfinite(total) and torch.all(hidden.grad[~counted] == 0) and torch.isfinite(weight.grad).all()


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_token_losses_are_the_plain_losses_also_of_very_unlikely_targets(scale):
    hidden, weight, targets, _ = drawn(100, 8, 30, dtype=torch.float32, scale=scale)
    expected = cross_entropy(linear(hidden.double(), weight.double()), targets, reduction="none").detach()
    found = token_losses(hidden, weight, targets)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * scale)


def test_bfloat16_products_stay_close_to_float32():
    hidden, weight, targets, counted = drawn(200, 16, 30, dtype=torch.float32)
    exact = cross_entropy_sum(hidden, weight, targets, counted)
    with torch.autocast("cpu", torch.bfloat16):
        rough = cross_entropy_sum(hidden, weight, targets, counted)
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=1e-2)
    assert rough.item() != exact.item()


def test_a_batch_in_which_nothing_counts_has_no_loss_and_no_gradient():
    hidden, weight, targets, counted = drawn(20, 4, 5)
    total = cross_entropy_sum(hidden, weight, targets, torch.zeros_like(counted))
    total.backward()
    assert total == 0 and not hidden.grad.any() and not weight.grad.any()


def test_no_rows_have_no_losses():
    hidden, weight, targets, _ = drawn(1, 4, 5)
    assert token_losses(hidden[:0], weight, targets[:0]).shape == (0,)


def test_a_bfloat16_output_matrix_needs_no_autocast_and_gets_gradients_of_its_own_type():
    hidden, weight, targets, counted = drawn(300, 16, 30, dtype=torch.float32)
    exact = cross_entropy_sum(hidden, weight, targets, counted)
    gradients = torch.autograd.grad(exact, (hidden, weight))
    narrow = weight.detach().bfloat16().requires_grad_()
    for states in (hidden, hidden.detach().bfloat16().requires_grad_()):
        rough = cross_entropy_sum(states, narrow, targets, counted)
        assert rough.dtype == torch.float32
        assert rough.item() == pytest.approx(exact.item(), rel=1e-2)
        found = torch.autograd.grad(rough, (states, narrow))
        assert [gradient.dtype for gradient in found] == [states.dtype, torch.bfloat16]
        for one, other in zip(found, gradients, strict=True):
            assert (one.float() - other).norm() < 0.02 * other.norm()


def test_the_gradient_of_a_nearly_certain_target_keeps_its_digits_in_bfloat16():
    # the target's probability is 0.999, which bfloat16 rounds to 1
    width = 8
    weight = torch.zeros(2, width, requires_grad=True)
    with torch.no_grad():
        weight[1, 0] = 1.0
    hidden = torch.zeros(1, width)
    hidden[0, 0] = 6.90625
    targets, counted = torch.tensor([1]), torch.tensor([True])
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = torch.autograd.grad(cross_entropy_sum(hidden, weight, targets, counted), weight)
    (wanted,) = torch.autograd.grad(cross_entropy((hidden @ weight.T), targets), weight)
    assert found[1, 0].item() == pytest.approx(wanted[1, 0].item(), rel=0.01)


def test_evaluation_rounds_logits_to_bfloat16_and_nothing_after_them():
    hidden, weight, targets, _ = drawn(100, 16, 30, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = token_losses(hidden, weight, targets)
    logits = linear(hidden.bfloat16(), weight.bfloat16()).double()
    torch.testing.assert_close(found.double(), cross_entropy(logits, targets, reduction="none"), rtol=1e-5, atol=1e-5)


def test_the_parts_of_a_batch_add_up_and_the_same_call_gives_the_same_bits():
    hidden, weight, targets, counted = drawn(2000, 8, 500, dtype=torch.float32)
    totals = []
    for _ in range(2):
        total = cross_entropy_sum(hidden, weight, targets, counted)
        totals.append([total, *torch.autograd.grad(total, (hidden, weight))])
    assert all(torch.equal(one, other) for one, other in zip(*totals, strict=True))
    halves = [
        cross_entropy_sum(hidden[rows], weight, targets[rows], counted[rows]) for rows in (slice(700), slice(700, None))
    ]
    torch.testing.assert_close(sum(halves), totals[0][0], rtol=1e-6, atol=0)


@pytest.mark.parametrize(("budget", "sizes"), [(130, [128, 128, 44]), (191, [128, 128, 44]), (1, [64] * 4 + [44])])
def test_rows_are_taken_in_chunks_of_whole_multiples_of_64(budget, sizes, monkeypatch):
    """The chunks decide in which order gradients are added, and so their last bits."""
    monkeypatch.setattr(loss_module, "CHUNK_BYTES", budget * 16 * 4)  # of rows of 16 float32
    chunks = [(rows, len(logits)) for rows, _, logits in loss_module._chunks(torch.ones(300, 4), torch.ones(16, 4))]
    assert [rows.stop - rows.start for rows, _ in chunks] == sizes
    assert [rows.start for rows, _ in chunks] == [sum(sizes[:i]) for i in range(len(sizes))]
    assert all(padded % 64 == 0 and padded - size < 64 for (_, padded), size in zip(chunks, sizes, strict=True))
