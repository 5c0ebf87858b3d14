"""The optimiser's state goes to a file and back to the bit, and fits its model or is refused."""

import pickle

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

from everytoken.seeds import torch_generator
from everytoken.training.checkpoints import read_tensors, write_tensors
from everytoken.training.checkpoints.model import load_model_tensors, model_tensors, tensors_sha256
from everytoken.training.errors import CheckpointError
from everytoken.training.step.optimizer_state import (
    OPTIMIZER_FILE,
    flat_state,
    load_optimizer_tensors,
    optimizer_tensors,
)


class Tied(nn.Module):
    """A matrix used twice under two names, a vector, a buffer, a part that some steps do not use, a frozen one."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.embedding = nn.Embedding(5, 4, dtype=dtype)
        self.norm = nn.LayerNorm(4, bias=False, dtype=dtype)
        self.seldom = nn.Linear(4, 4, bias=False, dtype=dtype)
        self.frozen = nn.Linear(4, 4, bias=False, dtype=dtype).requires_grad_(False)
        self.head = nn.Linear(4, 5, bias=False, dtype=dtype)
        self.head.weight = self.embedding.weight
        self.register_buffer("bias", torch.zeros(5, dtype=dtype))
        generator = torch_generator(0, "tied")
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(generator=generator)

    def forward(self, tokens, seldom):
        x = self.frozen(self.norm(self.embedding(tokens)))
        return self.head(self.seldom(x) if seldom else x) + self.bias


def adamw(model, **options):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-2, **options)


def train(model, optimizer, first, end):
    for step in range(first, end):
        tokens = torch.randint(5, (3,), generator=torch_generator(1, step))
        optimizer.zero_grad(set_to_none=True)
        model(tokens, seldom=step >= 6).square().mean().backward()
        optimizer.step()


def whole_state(model, optimizer):
    return tensors_sha256(model_tensors(model)), tensors_sha256(optimizer_tensors(optimizer, model))


@pytest.mark.parametrize("cut", [0, 4, 8])
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False, "fused": False}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_to_the_bit(tmp_path, cut, options, dtype):
    model = Tied(dtype)
    optimizer = adamw(model, **options)
    train(model, optimizer, 0, cut)
    path = tmp_path / OPTIMIZER_FILE
    write_tensors(path, optimizer_tensors(optimizer, model))
    resumed = Tied(dtype)
    load_model_tensors(resumed, model_tensors(model), "the model")
    resumed_optimizer = adamw(resumed, **options)
    load_optimizer_tensors(resumed_optimizer, resumed, read_tensors(path), str(path))
    assert whole_state(resumed, resumed_optimizer) == whole_state(model, optimizer)
    train(model, optimizer, cut, 10)
    train(resumed, resumed_optimizer, cut, 10)
    assert whole_state(resumed, resumed_optimizer) == whole_state(model, optimizer)


def trained_pair():
    model = Tied()
    optimizer = adamw(model, fused=True)
    train(model, optimizer, 0, 8)
    return model, optimizer


def test_each_parameter_has_its_three_tensors_and_a_tied_one_has_them_once():
    model, optimizer = trained_pair()
    tensors = optimizer_tensors(optimizer, model)
    assert list(tensors) == [
        f"{kind}/{name}.weight"
        for name in ("embedding", "norm", "seldom")
        for kind in ("step", "exp_avg", "exp_avg_sq")
    ]
    assert [tensors[f"step/{name}.weight"].item() for name in ("embedding", "norm", "seldom")] == [8, 8, 2]
    assert list(model_tensors(model)) == ["bias", "embedding.weight", "norm.weight", "seldom.weight", "frozen.weight"]


def test_a_parameter_that_was_never_updated_has_zeros():
    model = Tied()
    optimizer = adamw(model, fused=True)
    train(model, optimizer, 0, 3)
    tensors = optimizer_tensors(optimizer, model)
    for kind in ("step", "exp_avg", "exp_avg_sq"):
        assert not tensors[f"{kind}/seldom.weight"].any()
        assert tensors[f"{kind}/embedding.weight"].any()


def test_what_is_loaded_is_a_copy():
    model, optimizer = trained_pair()
    tensors = optimizer_tensors(optimizer, model)
    other = Tied()
    other_optimizer = adamw(other, fused=True)
    load_optimizer_tensors(other_optimizer, other, tensors, "here")
    before = tensors_sha256(tensors)
    train(other, other_optimizer, 0, 1)
    assert tensors_sha256(tensors) == before


def without(tensors):
    del tensors["exp_avg/norm.weight"]


def with_another(tensors):
    tensors["exp_avg/other.weight"] = tensors["exp_avg/norm.weight"]


def of_another_shape(tensors):
    tensors["exp_avg_sq/seldom.weight"] = tensors["exp_avg_sq/seldom.weight"][:3]


def of_another_type(tensors):
    tensors["step/norm.weight"] = tensors["step/norm.weight"].double()


DAMAGES = [
    (without, r"here does not fit the optimiser: exp_avg/norm\.weight is missing"),
    (with_another, r"exp_avg/other\.weight is superfluous"),
    (of_another_shape, r"exp_avg_sq/seldom\.weight: expected float32 \(4, 4\), found float32 \(3, 4\)"),
    (of_another_type, r"step/norm\.weight: expected float32 \(\), found float64 \(\)"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(damage, message):
    model, optimizer = trained_pair()
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, model).items()}
    before = whole_state(model, optimizer)
    damage(tensors)
    with pytest.raises(CheckpointError, match=message):
        load_optimizer_tensors(optimizer, model, tensors, "here")
    assert whole_state(model, optimizer) == before


def test_a_model_that_does_not_fit_is_refused_and_changes_nothing():
    model = Tied()
    before = tensors_sha256(model_tensors(model))
    tensors = {name: torch.zeros_like(tensor) for name, tensor in model_tensors(model).items()}
    tensors["norm.weight"] = tensors["norm.weight"].bfloat16()
    tensors["head.weight"] = tensors.pop("embedding.weight")
    with pytest.raises(
        CheckpointError,
        match=r"^file: embedding\.weight is missing; head\.weight is superfluous; "
        r"norm\.weight: expected float32 \(4,\), found bfloat16 \(4,\)$",
    ):
        load_model_tensors(model, tensors, "file")
    assert tensors_sha256(model_tensors(model)) == before


def test_an_optimiser_of_another_model_is_refused():
    with pytest.raises(CheckpointError, match=r"3 parameters of the optimiser are not the model's"):
        optimizer_tensors(adamw(Tied()), Tied())


def test_a_third_moment_is_refused():
    model = Tied()
    with pytest.raises(CheckpointError, match="amsgrad=True, expected False"):
        optimizer_tensors(adamw(model, amsgrad=True), model)


def test_a_pickle_is_never_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was opened",))

    (tmp_path / OPTIMIZER_FILE).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors is missing or damaged"):
        read_tensors(tmp_path / OPTIMIZER_FILE)


def test_torch_names_the_full_state_of_sharded_models_alike():
    model, optimizer = trained_pair()
    full = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))["state"]
    ours = optimizer_tensors(optimizer, model)
    assert tensors_sha256({name: flat_state(full)[name] for name in ours}) == tensors_sha256(ours)
