"""Against transformers itself: the same logits both ways, and the same bits after a round trip."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from everytoken.models import LlamaParameters, ModelsError
from everytoken.models.families import build_model
from everytoken.models.hugging_face import LlamaFacts, read_facts, read_model, write_hugging_face
from everytoken.seeds import torch_generator
from tests.training.tiny import EOS, byte_encoder

VOCAB, CONTEXT = 257, 64
SHAPES = {  # tied embeddings, key-value heads of 4
    "tied, grouped": (True, 2),
    "untied, grouped": (False, 1),
    "tied, all heads": (True, 4),
    "untied, all heads": (False, 4),
}


@pytest.fixture(scope="module")
def transformers():
    import transformers

    return transformers


def tokens(*shape):
    return torch.randint(0, VOCAB, shape, generator=torch_generator(0, "test tokens"))


def facts(tied=True, n_kv_heads=2):
    parameters = LlamaParameters(
        family="llama",
        d_model=32,
        n_layers=2,
        n_heads=4,
        n_kv_heads=n_kv_heads,
        d_ff=48,
        tied_embeddings=tied,
        rope_theta=20000.0,
        norm_eps=1e-5,
        init_std=0.3,  # large, so that logits differ by much
    )
    return LlamaFacts(parameters, VOCAB, CONTEXT, 0)


def our_model(of):
    model = build_model(of.parameters, vocab_size=of.vocab_size, max_seq_len=of.max_seq_len, seed=3).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms that are all 1 would hide that two were exchanged
                parameter.uniform_(0.5, 1.5, generator=torch_generator(3, name))
    return model


def write(folder, of, model, tmp_path, **changes):
    byte_encoder(tmp_path)
    content = (tmp_path / "tokenizer.json").read_bytes()
    write_hugging_face(folder, of, model.state_dict().__getitem__, tokenizer=content, eos_token=EOS, **changes)


@pytest.fixture
def folder(tmp_path):
    """A folder as transformers reads it, whose config.json the tests change."""
    write(tmp_path / "model", facts(), our_model(facts()), tmp_path)
    return tmp_path / "model"


def with_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_of_transformers_has_the_same_logits_here(transformers, tmp_path, shape):
    tied, kv_heads = SHAPES[shape]
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
        tie_word_embeddings=tied,
        eos_token_id=5,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            centre = 1 if name.endswith("norm.weight") else 0
            parameter.normal_(centre, 0.3, generator=torch_generator(1, name))
    theirs.save_pretrained(tmp_path / "model")
    found = read_facts(tmp_path / "model")
    ours = read_model(tmp_path / "model", found)
    assert (found.max_seq_len, found.eos_id, found.parameters.tied_embeddings) == (CONTEXT, 5, tied)
    with torch.no_grad():
        expected = theirs(tokens(2, 40)).logits
        torch.testing.assert_close(ours(tokens(2, 40)), expected, rtol=0, atol=1e-4)
    assert expected.std() > 1


@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_of_ours_has_the_same_logits_and_greedy_tokens_in_transformers(transformers, tmp_path, shape):
    of = facts(*SHAPES[shape])
    ours = our_model(of)
    write(tmp_path / "model", of, ours, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert type(theirs) is transformers.LlamaForCausalLM
    assert (theirs.dtype, theirs.generation_config.eos_token_id) == (torch.float32, 0)
    prompt = tokens(1, 8)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens(2, 40)).logits, ours(tokens(2, 40)), rtol=0, atol=1e-4)
        expected = prompt
        for _ in range(8):
            expected = torch.cat((expected, ours(expected)[:, -1:].argmax(-1)), dim=1)
        continued = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False)
    assert continued.tolist() == expected[:, : continued.shape[1]].tolist()


def test_transformers_trains_the_embedding_of_eos_further(transformers, tmp_path):
    write(tmp_path / "model", facts(tied=False), our_model(facts(tied=False)), tmp_path)
    assert "pad_token_id" not in json.loads((tmp_path / "model" / "config.json").read_text())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.tensor([[0, 3, 5, 0, 7]])  # 0 is EOS
    theirs(input_ids=ids, labels=ids).loss.backward()
    gradient = theirs.get_input_embeddings().weight.grad
    assert (gradient[[0, 3, 5]].abs().sum(1) > 0).all()


def test_the_tokenizer_of_an_export_is_that_of_training(transformers, folder, tmp_path):
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    text = "Two  spaces,\n\nblank lines\t\r\n and é中."
    assert theirs(text)["input_ids"] == byte_encoder(tmp_path).encode([text]).values[:-1].tolist()
    assert theirs.decode(theirs(text)["input_ids"]) == text
    assert {theirs.eos_token_id, theirs.bos_token_id, theirs.pad_token_id} == {0}
    assert theirs.model_max_length == CONTEXT


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("shard_bytes", [10**9, 20_000])
def test_a_model_written_and_read_again_has_the_same_bits(tmp_path, shape, shard_bytes):
    of = facts(*SHAPES[shape])
    model = our_model(of)
    write(tmp_path / "model", of, model, tmp_path, shard_bytes=shard_bytes)
    again_facts = read_facts(tmp_path / "model")
    again = read_model(tmp_path / "model", again_facts).state_dict()
    assert again_facts == of
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())
    files = sorted((tmp_path / "model").glob("*.safetensors"))
    assert [file.name for file in files] == ["model.safetensors"] or len(files) > 2
    assert all(file.stat().st_size <= max(shard_bytes, 4 * VOCAB * 32) + 4096 for file in files)


def test_shards_open_in_transformers(transformers, tmp_path):
    write(tmp_path / "model", facts(), our_model(facts()), tmp_path, shard_bytes=20_000)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens(1, 9)).logits, our_model(facts())(tokens(1, 9)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_weights_are_widened_exactly(folder, dtype):
    narrow = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(narrow, folder / "model.safetensors")
    model = read_model(folder, read_facts(folder))
    assert torch.equal(model.output_weight(), narrow["model.embed_tokens.weight"].float())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        ({"head_dim": 16}, "head_dim is 16, expected 8"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 'rope_scaling is "llama3"'),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 'rope_scaling is "linear"'),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, 'rope_parameters.rope_type is "yarn"'),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"model_type": "qwen2"}, 'model_type is "qwen2"'),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"rope_scaling": "linear"}, 'rope_scaling is "linear", expected an object or null'),
        ({"rms_norm_eps": None}, "has no rms_norm_eps"),
        ({"num_key_value_heads": 3}, "multiple of model.n_kv_heads"),
    ],
)
def test_what_would_compute_something_else_is_refused_by_its_key(folder, changes, message):
    with_config(folder, **changes)
    with pytest.raises(ModelsError, match=message):
        read_facts(folder)


def test_keys_that_older_versions_do_not_write_mean_what_they_mean_there(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key in ("rope_parameters", "head_dim", "attention_bias", "mlp_bias", "hidden_act", "dtype"):
        del config[key]
    path.write_text(json.dumps(config | {"eos_token_id": [0, 2], "rope_scaling": None}))
    found = read_facts(folder)
    assert (found.parameters, found.eos_id) == (facts().parameters, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}, "q_proj.bias"),
        (lambda t: {n: v for n, v in t.items() if n != "model.norm.weight"}, "no tensor model.norm.weight"),
        (lambda t: t | {"model.norm.weight": torch.zeros(31)}, r"has the shape \[31\], expected \[32\]"),
        (lambda t: t | {"model.norm.weight": torch.zeros(32, dtype=torch.float64)}, "model.norm.weight is F64"),
        (lambda t: t | {"lm_head.weight": torch.zeros(VOCAB, 32)}, "lm_head.weight is not the embedding"),
    ],
)
def test_tensors_that_are_not_those_of_the_configuration_are_refused_by_name(folder, change, message):
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    with pytest.raises(ModelsError, match=message):
        read_model(folder, read_facts(folder))


def test_a_tied_head_and_old_buffers_may_be_in_the_file(folder):
    tensors = load_file(folder / "model.safetensors")
    extra = {
        "lm_head.weight": tensors["model.embed_tokens.weight"].clone(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    save_file(tensors | extra, folder / "model.safetensors")
    read_model(folder, read_facts(folder))


def test_a_pickle_a_damaged_file_and_an_index_that_leaves_the_folder_are_refused(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelsError, match="is damaged"):
        read_model(folder, read_facts(folder))
    path.rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelsError, match=r"pytorch_model.bin is a pickle"):
        read_model(folder, read_facts(folder))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../other.safetensors"}}))
    with pytest.raises(ModelsError, match="not a file of this folder"):
        read_model(folder, read_facts(folder))
    index.write_text("{}")
    with pytest.raises(ModelsError, match="no index of safetensors"):
        read_model(folder, read_facts(folder))


def test_a_missing_folder_and_an_export_without_eos_are_errors(tmp_path):
    with pytest.raises(ModelsError, match=r"cannot read .*config.json"):
        read_facts(tmp_path / "absent")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelsError, match="holds no JSON object"):
        read_facts(tmp_path)
    of = LlamaFacts(facts().parameters, VOCAB, CONTEXT, None)
    with pytest.raises(ModelsError, match="needs an EOS id"):
        write(tmp_path / "model", of, our_model(of), tmp_path)
    assert not (tmp_path / "model").exists()


def test_an_export_that_fails_leaves_no_folder(tmp_path):
    class Broken(dict):
        def __getitem__(self, name):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_hugging_face(tmp_path / "model", facts(), Broken().__getitem__, tokenizer=b"{}", eos_token=EOS)
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_an_export_can_be_read_by_others(folder):
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in folder.iterdir())
