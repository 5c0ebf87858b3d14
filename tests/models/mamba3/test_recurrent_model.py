"""The decoder with a recurrent state: what it computes in chunks, in pieces and token by token is the same."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from everytoken.models import ComplexSsdParameters, KeyValueCache, Mamba3Parameters, ModelsError, empty_model
from everytoken.models.mamba3 import RecurrentState
from tests.models.mamba3.shapes import MAMBA3, VOCABULARY, small_model, some_tokens

SHAPES = [("mamba3", {"rank": 1}), ("mamba3", {"rank": 2}), ("mamba3", {"rank": 4}), ("complex_ssd_lite", {})]
CHUNKS = (1, 4, 16, 53, 64)
REFERENCE = {"d_model": 1024, "n_layers": 28, "state_width": 128, "head_width": 64, "d_ff": 2272, "chunk": 64}
DEVELOPMENT = {"d_model": 256, "n_layers": 8, "state_width": 64, "head_width": 64, "d_ff": 640, "chunk": 64}


@pytest.mark.parametrize(
    ("changes", "vocabulary", "count"),
    [
        (REFERENCE, 50_257, 434_359_040),
        ({**REFERENCE, "rank": 4, "d_ff": 1984, "chunk": 16}, 50_257, 432_982_784),
        (DEVELOPMENT, 8192, 9_532_800),
        ({**DEVELOPMENT, "rank": 2}, 8192, 9_827_712),
        ({**DEVELOPMENT, "rank": 4}, 8192, 10_392_960),
    ],
)
def test_the_specified_shapes_have_the_specified_numbers_of_parameters(changes, vocabulary, count):
    with torch.device("meta"):
        model = empty_model(MAMBA3.model_copy(update=changes), vocab_size=vocabulary, max_seq_len=2048)
    assert model.parameter_count() == count


def test_the_lite_variant_has_as_many_parameters_as_the_published_model():
    shape = {"d_model": 1024, "n_layers": 28, "n_heads": 16, "state_width": 64, "d_ff": 2048, "chunk": 64}
    parameters = ComplexSsdParameters(family="complex_ssd_lite", norm_eps=1e-5, init_std=0.02, **shape)
    with torch.device("meta"):
        model = empty_model(parameters, vocab_size=50_257, max_seq_len=2048)
    assert model.parameter_count() == 433_662_400 == 28 * 13_649_936 + 51_463_168 + 1_024


@pytest.mark.parametrize(("family", "changes"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_chunks_pieces_and_single_tokens_give_the_same_states(family, changes, dtype):
    tokens, outputs = some_tokens(3, 53), []
    for chunk in CHUNKS:
        model = small_model(family, larger=8, chunk=chunk, **changes).to(dtype)
        with torch.no_grad():
            whole, pieces, single = model.hidden_states(tokens), model.new_cache(), model.new_cache()
            in_pieces = [model.hidden_states(part, pieces) for part in torch.split(tokens, [20, 17, *[1] * 16], dim=1)]
            one_by_one = [model.hidden_states(tokens[:, i : i + 1], single) for i in range(53)]
        assert pieces.length == single.length == 53
        outputs += [whole, torch.cat(in_pieces, dim=1), torch.cat(one_by_one, dim=1)]
    assert max(float(output.abs().max()) for output in outputs) > 2
    furthest = max(float((output - outputs[0]).abs().max()) for output in outputs)
    assert furthest < (1e-11 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize(("family", "changes"), SHAPES)
def test_a_token_changes_nothing_before_it(family, changes):
    model, tokens = small_model(family, larger=8, **changes), some_tokens(1, 40)
    changed = tokens.clone()
    changed[0, 23] = (changed[0, 23] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = model.hidden_states(tokens), model.hidden_states(changed)
    assert torch.equal(before[:, :23], after[:, :23])
    assert not torch.equal(before[:, 23:], after[:, 23:])


@pytest.mark.parametrize(("family", "changes"), SHAPES)
@pytest.mark.parametrize("chunk", [4, 16, 64])
def test_a_document_in_a_window_is_what_it_is_alone(family, changes, chunk):
    lengths = [7, 1, 20, 25]
    numbers = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths)).expand(2, -1)
    model, tokens = small_model(family, larger=8, chunk=chunk, **changes).double(), some_tokens(2, 53)
    with torch.no_grad():
        together = model.hidden_states(tokens, documents=numbers)
        alone = torch.cat([model.hidden_states(part) for part in torch.split(tokens, lengths, dim=1)], dim=1)
    assert float((together - alone).abs().max()) < 1e-11


def test_the_loss_of_a_new_model_is_that_of_a_uniform_guess():
    model, tokens = small_model(), some_tokens(8, 65)
    with torch.no_grad():
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(float(loss) - math.log(VOCABULARY)) < 0.15


def test_a_row_is_the_same_alone_and_in_a_batch():
    model, tokens = small_model(larger=8), some_tokens(5, 40)
    with torch.no_grad():
        together = model.hidden_states(tokens)
        alone = torch.cat([model.hidden_states(row[None]) for row in tokens])
    assert float((together - alone).abs().max()) < 1e-4


@pytest.mark.parametrize(("family", "changes"), SHAPES)
def test_the_state_is_as_large_after_ten_thousand_tokens_as_after_one(family, changes):
    model = small_model(family, **changes)
    cache = model.new_cache()
    with torch.inference_mode():
        model.hidden_states(some_tokens(1, 1), cache)
        size = cache.bytes
        for start in range(0, 10_000, 250):
            model.hidden_states(some_tokens(1, 250, seed=start), cache)
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in _tensors(cache)}
    assert cache.length == 10_001 > model.max_seq_len
    assert cache.bytes == size == sum(storages.values()), "no view of something larger"


def test_a_copied_state_goes_on_alone():
    model, tokens = small_model(larger=8), some_tokens(1, 30)
    cache = model.new_cache()
    with torch.inference_mode():
        model.hidden_states(tokens[:, :20], cache)
        copied = cache.clone()
        model.hidden_states(some_tokens(1, 10, seed=9), cache)
        rest = model.hidden_states(tokens[:, 20:], copied)
        whole = model.hidden_states(tokens)
    assert copied.length == 30
    assert float((rest - whole[:, 20:]).abs().max()) < 1e-4


def test_a_state_does_not_go_back():
    cache = RecurrentState(1)
    cache.length = 5
    cache.truncate(5)
    assert not cache.can_truncate
    with pytest.raises(ModelsError, match="a recurrent state of 5 tokens cannot go back to 4; read the first 4 again"):
        cache.truncate(4)


def test_a_cache_of_another_family_is_refused():
    with pytest.raises(ModelsError, match=r"a recurrent model needs its own state .* found KeyValueCache"):
        small_model().hidden_states(some_tokens(1, 3), KeyValueCache(2))


@pytest.mark.parametrize(("family", "changes"), SHAPES)
def test_weight_decay_acts_on_matrices_alone(family, changes):
    model = small_model(family, **changes)
    without = {name.rpartition(".")[2] for name, p in model.named_parameters() if not model.decays(name, p)}
    scales = {"value_scale", "gate_scale", "output_scale"} if changes.get("rank", 1) > 1 else set()
    own = {"step_bias", "skip", "key_bias", "query_bias"} if family == "mamba3" else {"decay"}
    assert without == {"weight"} | own | scales


def test_new_steps_are_spread_over_two_powers_of_ten():
    steps = torch.cat(
        [torch.nn.functional.softplus(block.mixer.step_bias) for block in small_model(n_layers=40).blocks]
    )
    steps = steps.detach()
    assert 1e-3 <= float(steps.min()) < 2e-3
    assert 0.05 < float(steps.max()) <= 0.1 * (1 + 1e-6)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(
        ValueError, match=r"model.expand \* model.d_model = 128 must be a multiple of model.head_width = 48"
    ):
        Mamba3Parameters(**{**MAMBA3.model_dump(), "head_width": 48})


@pytest.mark.parametrize(("family", "changes"), [SHAPES[0], SHAPES[1], SHAPES[3]])
def test_gradients_are_those_of_central_differences(family, changes):
    model = small_model(family, larger=8, chunk=4, n_layers=1, **changes).double().train()
    tokens = some_tokens(2, 12)

    def loss() -> torch.Tensor:
        return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    loss().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        place, step = int(parameter.grad.abs().argmax()), 1e-6
        entry = parameter.data.view(-1)
        values = []
        for sign in (1, -1):
            entry[place] += sign * step
            with torch.no_grad():
                values.append(float(loss()))
            entry[place] -= sign * step
        measured = (values[0] - values[1]) / (2 * step)
        assert measured == pytest.approx(float(parameter.grad.view(-1)[place]), rel=1e-4, abs=1e-9), name


def test_recomputed_layers_give_the_same_gradients():
    tokens, found = some_tokens(2, 30), []
    for again in (False, True):
        model = small_model(larger=8).train()
        model.activation_checkpointing = again
        cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(kept, recomputed) for kept, recomputed in zip(*found, strict=True))


def _tensors(cache: RecurrentState) -> list[torch.Tensor]:
    return [tensor for layer in cache.layers if layer is not None for tensor in layer.tensors]


@pytest.mark.parametrize("family", ["mamba3", "complex_ssd_lite"])
def test_what_a_backward_pass_needs_is_linear_in_the_length(family: str) -> None:
    model, kept = small_model(family), []

    def bytes_of(length: int) -> int:
        sizes: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            kept.append(tensor)  # so that no storage is used twice
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model.hidden_states(some_tokens(1, length))
        return sum(sizes.values())

    first, second, third = (bytes_of(length) for length in (128, 192, 256))
    assert first > 10**6
    assert third - second == pytest.approx(second - first, rel=1e-2)
