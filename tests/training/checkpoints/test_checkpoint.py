import json
import resource

import pytest
import torch

from everytoken.training.checkpoints.model import (
    CheckpointConfig,
    load_config,
    load_model,
    parameters_sha256,
    read_tensors,
    save_model,
    tensors_sha256,
    write_tensors,
)
from everytoken.training.errors import CheckpointError
from tests.models.tiny_llama import LLAMA
from tests.training.tiny import SEQ, VOCAB, tiny_model

CONFIG = CheckpointConfig(format="everytoken-checkpoint/1", model=LLAMA, vocab_size=VOCAB, seq_length=SEQ, eos_id=0)


def test_a_loaded_model_computes_what_the_saved_one_did(tmp_path):
    model = tiny_model().eval()
    save_model(tmp_path, model, CONFIG)
    loaded = load_model(tmp_path)
    assert load_config(tmp_path) == CONFIG
    assert not loaded.training
    assert parameters_sha256(loaded) == parameters_sha256(model)
    tokens = torch.arange(SEQ)[None]
    assert torch.equal(loaded(tokens), model(tokens))


def test_equal_models_give_equal_bytes(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_model(tmp_path / name, tiny_model(), CONFIG)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_nothing_is_pickled(tmp_path):
    save_model(tmp_path, tiny_model(), CONFIG)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_the_digest_sees_every_value_and_name():
    model = tiny_model()
    before = parameters_sha256(model)
    with torch.no_grad():
        model.final_norm.weight[3] += 1e-7
    assert parameters_sha256(model) != before


def remove_config(folder):
    (folder / "config.json").unlink()


def add_unknown_key(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dropout": 0.1}))


def other_width(folder):
    config = json.loads((folder / "config.json").read_text())
    config["model"]["d_ff"] = 25
    (folder / "config.json").write_text(json.dumps(config))


def other_depth(folder):
    config = json.loads((folder / "config.json").read_text())
    config["model"]["n_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))


def other_type(folder):
    tensors = read_tensors(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", {name: tensor.bfloat16() for name, tensor in tensors.items()})


def truncate_tensors(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def remove_tensors(folder):
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_config, "config.json is missing"),
        (add_unknown_key, "dropout"),
        (other_width, "does not hold the tensors"),
        (other_depth, "does not hold the tensors"),
        (other_type, "expected float32 .*, found bfloat16"),
        (truncate_tensors, "missing or damaged"),
        (remove_tensors, "missing or damaged"),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_its_reason(tmp_path, damage, message):
    save_model(tmp_path, tiny_model(), CONFIG)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path)


def test_a_full_disk_names_the_file(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"model\.safetensors cannot be written: .*File too large"):
            save_model(tmp_path, tiny_model(), CONFIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_digest_of_tensors_is_of_name_type_shape_and_bytes():
    tensor = torch.arange(6, dtype=torch.float32)
    digests = {
        tensors_sha256({name: value})
        for name, value in (
            ("a", tensor),
            ("b", tensor),
            ("a", tensor.view(2, 3)),
            ("a", tensor.view(torch.int32)),
            ("a", tensor.flip(0)),
        )
    }
    assert len(digests) == 5
    assert tensors_sha256({"a": tensor.view(2, 3).T}) == tensors_sha256({"a": tensor.view(2, 3).T.contiguous()})
