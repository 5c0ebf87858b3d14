"""Folders of Hugging Face ``LlamaForCausalLM`` (config.json, safetensors, tokenizer.json), read and written exactly.

The layouts differ in two ways: query, key and value rows are one matrix here and three there, as are the gate and up
rows. Both pair the rotary dimensions (j, j + D/2), so no row moves, and a model written and read again has the same
bits. Tensors are copied one at a time: reading holds one model, writing one shard beside the tensors given.

What this family cannot compute exactly (biases, scaled rotary frequencies, quantised weights ...) is refused. A key
that config.json lacks means what transformers takes it for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from everytoken.models.errors import ModelsError
from everytoken.models.families import empty_model
from everytoken.models.language_model import LanguageModel
from everytoken.models.parameters import LlamaParameters
from everytoken.shards import atomic_folder

_CONFIG_FILE, _TOKENIZER_FILE = "config.json", "tokenizer.json"
_MODEL_FILE, _INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000  # as the hub's own libraries cut

_WEIGHT_DTYPES = ("F32", "BF16", "F16")  # each is exact in float32
_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class LlamaFacts:
    """What a Llama checkpoint says beside its tensors; ``eos_id`` is None when it names none or several."""

    parameters: LlamaParameters
    vocab_size: int
    max_seq_len: int
    eos_id: int | None


@dataclass(frozen=True)
class Piece:
    """Rows ``first`` to ``first + rows`` of our tensor ``ours`` are the tensor ``name`` of Hugging Face."""

    name: str
    ours: str
    first: int
    rows: int


def tensor_pieces(facts: LlamaFacts) -> Iterator[Piece]:
    """Yield every tensor of Hugging Face's layout and where it lies in ours, in the order of the forward pass."""
    p = facts.parameters
    d, head_width = p.d_model, p.d_model // p.n_heads
    yield Piece("model.embed_tokens.weight", "embedding", 0, facts.vocab_size)
    for layer in range(p.n_layers):
        theirs, ours = f"model.layers.{layer}", f"blocks.{layer}"
        yield Piece(f"{theirs}.input_layernorm.weight", f"{ours}.attention_norm.weight", 0, d)
        first = 0
        for part, heads in (("q", p.n_heads), ("k", p.n_kv_heads), ("v", p.n_kv_heads)):
            rows = heads * head_width
            yield Piece(f"{theirs}.self_attn.{part}_proj.weight", f"{ours}.query_key_value", first, rows)
            first += rows
        yield Piece(f"{theirs}.self_attn.o_proj.weight", f"{ours}.attention_output", 0, d)
        yield Piece(f"{theirs}.post_attention_layernorm.weight", f"{ours}.feed_forward_norm.weight", 0, d)
        yield Piece(f"{theirs}.mlp.gate_proj.weight", f"{ours}.gate_up", 0, p.d_ff)
        yield Piece(f"{theirs}.mlp.up_proj.weight", f"{ours}.gate_up", p.d_ff, p.d_ff)
        yield Piece(f"{theirs}.mlp.down_proj.weight", f"{ours}.down", 0, d)
    yield Piece("model.norm.weight", "final_norm.weight", 0, d)
    if not p.tied_embeddings:
        yield Piece(_HEAD, "output", 0, facts.vocab_size)


@torch.no_grad()
def model_of_tensors(facts: LlamaFacts, read: Callable[[str], Tensor], where: str) -> LanguageModel:
    """Return a float32 model in eval mode, filled from ``read(name)`` with Hugging Face's names, one tensor at a time.

    Raises:
        ModelsError: a tensor has another shape than the facts say; ``where`` names its file.
    """
    model = empty_model(facts.parameters, vocab_size=facts.vocab_size, max_seq_len=facts.max_seq_len)
    own = dict(model.named_parameters())
    for piece in tensor_pieces(facts):
        target, source = own[piece.ours].narrow(0, piece.first, piece.rows), read(piece.name)
        if source.shape != target.shape:
            raise ModelsError(
                f"{where}: {piece.name} has the shape {list(source.shape)}, expected {list(target.shape)} "
                "after its configuration; the two are not of one model"
            )
        target.copy_(source)
    return model.eval()


def read_facts(folder: Path) -> LlamaFacts:
    """Read ``config.json`` of a ``LlamaForCausalLM`` folder.

    Raises:
        ModelsError: the file is missing, lacks a key, or asks for something that this family does not compute; the
            message names the key.
    """
    path = folder / _CONFIG_FILE
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelsError(f"cannot read {path}: {error}. Expected the folder of a Hugging Face model") from error
    if not isinstance(config, dict):
        raise ModelsError(f"{path} holds no JSON object; expected the configuration of a Hugging Face model")
    rope, scaling = _mapping(config, "rope_parameters", path), _mapping(config, "rope_scaling", path)
    _refuse_what_differs(config, rope, scaling, path)
    heads = _required(config, "num_attention_heads", path)
    theta = rope.get("rope_theta", config.get("rope_theta"))
    eos = config.get("eos_token_id")
    try:
        parameters = LlamaParameters(
            family="llama",
            d_model=_required(config, "hidden_size", path),
            n_layers=_required(config, "num_hidden_layers", path),
            n_heads=heads,
            n_kv_heads=config.get("num_key_value_heads") or heads,
            d_ff=_required(config, "intermediate_size", path),
            tied_embeddings=config.get("tie_word_embeddings", False),
            rope_theta=10000.0 if theta is None else theta,
            norm_eps=_required(config, "rms_norm_eps", path),
            init_std=config.get("initializer_range", 0.02),
        )
    except ValidationError as error:
        raise ModelsError(f"{path} describes no Llama that can be built here: {error}") from error
    return LlamaFacts(
        parameters,
        vocab_size=_required(config, "vocab_size", path),
        max_seq_len=_required(config, "max_position_embeddings", path),
        eos_id=eos if isinstance(eos, int) else None,
    )


def _required(config: Mapping[str, Any], key: str, path: Path) -> Any:
    if config.get(key) is None:
        raise ModelsError(f"{path} has no {key}: it is not that of a LlamaForCausalLM, or incomplete")
    return config[key]


def _mapping(config: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    found = config.get(key) or {}
    if not isinstance(found, dict):
        raise ModelsError(f"{path}: {key} is {json.dumps(found)}, expected an object or null")
    return found


def _refuse_what_differs(
    config: Mapping[str, Any], rope: Mapping[str, Any], scaling: Mapping[str, Any], path: Path
) -> None:
    """Raise for the first key under which transformers computes something else than this family does."""
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    head_width = width // heads if heads and width else None
    exact: list[tuple[str, Any, tuple[Any, ...]]] = [  # key, what it is, what it may be
        ("model_type", config.get("model_type"), ("llama",)),
        ("architectures", config.get("architectures"), (["LlamaForCausalLM"],)),
        ("hidden_act", config.get("hidden_act"), ("silu", None)),
        ("attention_bias", config.get("attention_bias"), (False, None)),
        ("mlp_bias", config.get("mlp_bias"), (False, None)),
        ("attention_dropout", config.get("attention_dropout"), (0, None)),
        ("sliding_window", config.get("sliding_window"), (None,)),
        ("quantization_config", config.get("quantization_config"), (None,)),
        ("rope_interleaved", config.get("rope_interleaved"), (False, None)),
        ("partial_rotary_factor", config.get("partial_rotary_factor"), (1, None)),
        ("head_dim", config.get("head_dim"), (head_width, None)),
        ("rope_scaling", scaling.get("rope_type", scaling.get("type")), ("default", None)),
        ("rope_parameters.rope_type", rope.get("rope_type"), ("default", None)),
        ("rope_parameters.partial_rotary_factor", rope.get("partial_rotary_factor"), (1, None)),
    ]
    for key, found, allowed in exact:
        if found not in allowed:
            shown = " or ".join("absent" if value is None else json.dumps(value) for value in allowed)
            raise ModelsError(
                f"{path}: {key} is {json.dumps(found)}, expected {shown}. This model would not compute the same here, "
                "so it is not imported"
            )


def read_model(folder: Path, facts: LlamaFacts) -> LanguageModel:
    """Return the model of a folder in float32, in eval mode; bfloat16 and float16 weights are widened, which is exact.

    Raises:
        ModelsError: there are no safetensors, one is missing or damaged, or the tensors are not exactly those that
            ``config.json`` asks for.
    """
    files = _files_of_tensors(folder)
    expected = {piece.name for piece in tensor_pieces(facts)}
    # buffers that old versions of transformers saved; newer ones pass over them too
    found = {name for name in files if not name.endswith("rotary_emb.inv_freq")}
    tied_head = facts.parameters.tied_embeddings and _HEAD in found
    if missing := sorted(expected - found):
        raise ModelsError(f"{folder} has no tensor {', '.join(missing[:4])} ({len(missing)} are missing)")
    if superfluous := sorted(found - expected - ({_HEAD} if tied_head else set())):
        raise ModelsError(
            f"{folder} has the tensor {', '.join(superfluous[:4])} ({len(superfluous)} in all), which a Llama without "
            "biases does not have; it is not imported, since it would compute something else"
        )

    def read(name: str) -> Tensor:
        return _read_tensor(files[name], name)

    model = model_of_tensors(facts, read, str(folder))
    if tied_head and not torch.equal(read(_HEAD).float(), model.output_weight()):
        raise ModelsError(
            f"{folder}: tie_word_embeddings is true, and {_HEAD} is not the embedding; set tie_word_embeddings to "
            f"false in {_CONFIG_FILE} if the matrix is meant to be used"
        )
    return model


def _files_of_tensors(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor by name, from the index of the shards or from the only file."""
    index = folder / _INDEX_FILE
    if index.is_file():
        try:
            weight_map = json.loads(index.read_bytes())["weight_map"]
            names = {str(name): str(file) for name, file in weight_map.items()}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelsError(f"{index} is no index of safetensors ({error!r}); fetch the model again") from error
        if outside := sorted(file for file in set(names.values()) if Path(file).name != file):
            raise ModelsError(f"{index} points to {outside[0]}, which is not a file of this folder")
        return {name: folder / file for name, file in names.items()}
    path = folder / _MODEL_FILE
    if not path.is_file():
        others = sorted(file.name for file in folder.glob("*.bin"))
        raise ModelsError(
            f"{folder} has no {_MODEL_FILE} and no {_INDEX_FILE}"
            + (f". {others[0]} is a pickle, which can run code: convert it to safetensors first" if others else "")
        )
    try:
        with safe_open(path, framework="pt") as tensors:
            return dict.fromkeys(tensors.keys(), path)
    except SafetensorError as error:
        raise ModelsError(f"{path} is damaged ({error}); fetch the model again") from error


def _read_tensor(path: Path, name: str) -> Tensor:
    try:
        with safe_open(path, framework="pt") as tensors:
            dtype = tensors.get_slice(name).get_dtype()
            if dtype not in _WEIGHT_DTYPES:
                raise ModelsError(
                    f"{path}: {name} is {dtype}, expected {', '.join(_WEIGHT_DTYPES)}: weights of another type cannot "
                    "be had exactly in float32"
                )
            tensor: Tensor = tensors.get_tensor(name)
            return tensor
    except (OSError, SafetensorError) as error:
        raise ModelsError(f"cannot read {name} from {path} ({error}); fetch the model again") from error


def write_hugging_face(
    folder: Path,
    facts: LlamaFacts,
    read: Callable[[str], Tensor],
    *,
    tokenizer: bytes,
    eos_token: str,
    special_tokens: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    generation: Mapping[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a folder that ``transformers`` opens as ``LlamaForCausalLM`` and tokenizer; it appears whole or not at all.

    Args:
        folder: replaced when it is there already.
        facts: ``eos_id`` must be given; it is EOS and BOS, and padding where texts are generated or encoded.
        read: gives our tensors by our names (``model.state_dict().__getitem__``), float32.
        tokenizer: bytes of ``tokenizer.json``, copied as they are.
        eos_token: the token with the id ``eos_id``.
        special_tokens: texts of special tokens that are others than EOS, as ``{"bos_token": "<s>"}``.
        generation: what ``generation_config.json`` says besides; what is empty is left out.
        shard_bytes: weights of more bytes are cut into files of at most that many, with an index.
    """
    if facts.eos_id is None:
        raise ModelsError("an exported model needs an EOS id; a checkpoint's config.json has it")
    special = {"bos_token_id": facts.eos_id, "eos_token_id": facts.eos_id}
    with atomic_folder(folder) as temporary:
        _write_json(temporary / _CONFIG_FILE, {**_config(facts), **special})
        # config.json names no padding: transformers would never train the embedding of that token again
        more = {name: value for name, value in (generation or {}).items() if value}
        _write_json(temporary / "generation_config.json", {**special, "pad_token_id": facts.eos_id, **more})
        if chat_template is not None:
            (temporary / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
        (temporary / _TOKENIZER_FILE).write_bytes(tokenizer)
        _write_json(
            temporary / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": eos_token,
                "eos_token": eos_token,
                "pad_token": eos_token,
                **(special_tokens or {}),
                "clean_up_tokenization_spaces": False,
                "model_max_length": facts.max_seq_len,
            },
        )
        _write_tensors(temporary, facts, read, shard_bytes)


def _config(facts: LlamaFacts) -> dict[str, object]:
    p = facts.parameters
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": facts.vocab_size,
        "max_position_embeddings": facts.max_seq_len,
        "hidden_size": p.d_model,
        "intermediate_size": p.d_ff,
        "num_hidden_layers": p.n_layers,
        "num_attention_heads": p.n_heads,
        "num_key_value_heads": p.n_kv_heads,
        "head_dim": p.d_model // p.n_heads,
        "hidden_act": "silu",
        "rms_norm_eps": p.norm_eps,
        # version 4 of transformers reads rope_theta, version 5 rope_parameters
        "rope_theta": p.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": p.rope_theta},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": p.init_std,
        "tie_word_embeddings": p.tied_embeddings,
        "use_cache": True,
        "torch_dtype": "float32",
        "dtype": "float32",
    }


def _write_tensors(folder: Path, facts: LlamaFacts, read: Callable[[str], Tensor], shard_bytes: int) -> None:
    """Write the tensors in order, into one file or into shards of at most ``shard_bytes`` (or one tensor)."""
    sizes = {piece.name: _bytes_of(piece, facts.parameters) for piece in tensor_pieces(facts)}
    shards: list[list[Piece]] = [[]]
    held = 0
    for piece in tensor_pieces(facts):
        if shards[-1] and held + sizes[piece.name] > shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(piece)
        held += sizes[piece.name]
    weight_map = {}
    for number, members in enumerate(shards, 1):
        file = _MODEL_FILE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {piece.name: read(piece.ours).detach().narrow(0, piece.first, piece.rows) for piece in members}
        save_file(tensors, folder / file, metadata={"format": "pt"})  # transformers asks for this entry
        (folder / file).chmod(0o644)  # safetensors gives it to the owner alone
        weight_map.update(dict.fromkeys(tensors, file))
    if len(shards) > 1:
        _write_json(folder / _INDEX_FILE, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map})


def _bytes_of(piece: Piece, parameters: LlamaParameters) -> int:
    columns = 1
    if not piece.name.endswith("norm.weight"):
        columns = parameters.d_ff if piece.ours.endswith(".down") else parameters.d_model
    return 4 * piece.rows * columns


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
