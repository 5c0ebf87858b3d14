"""Llama models from GGUF files of llama.cpp: dequantised weights, and the tokenizer rebuilt as ``tokenizer.json``.

llama.cpp pairs the rotary dimensions (2j, 2j + 1) where Hugging Face and this package pair (j, j + D/2); its converter
has therefore moved the rows of the query and key matrices of each head, and that is undone here. Dequantisation is
that of the ``gguf`` package (llama.cpp's own, in numpy), a tensor at a time.

Needs the extra ``gguf``. Importing this module does not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from everytoken.models.errors import ModelsError
from everytoken.models.hugging_face import LlamaFacts, model_of_tensors, tensor_pieces
from everytoken.models.language_model import LanguageModel
from everytoken.models.parameters import LlamaParameters

# The last parts of Hugging Face's names, and llama.cpp's.
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}
# What llama.cpp calls the cutting of a text before BPE; only those that are known here to the byte.
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTE_LEVEL]},
}
_CONTROL = 3  # token type of special tokens
_NORMAL = 1


class GgufFile:
    """A GGUF file of a Llama model.

    Raises:
        ModelsError: the package ``gguf`` is not installed, or the file is missing, damaged, or of a model that this
            family does not compute exactly; the message names the key.
    """

    def __init__(self, path: Path) -> None:
        try:
            import gguf
        except ImportError as error:
            raise ModelsError("reading GGUF files needs the package gguf: pip install 'everytoken[gguf]'") from error
        self.path = path
        self._dequantize = gguf.quants.dequantize
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ModelsError(f"{path} is no GGUF file that can be read: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.facts = self._facts()

    def model(self) -> LanguageModel:
        """Return the model in float32, in eval mode."""
        names = {piece.name: _gguf_name(piece.name) for piece in tensor_pieces(self.facts)}
        if missing := sorted(set(names.values()) - set(self._tensors)):
            raise ModelsError(f"{self.path} has no tensor {', '.join(missing[:4])} ({len(missing)} are missing)")
        if superfluous := sorted(set(self._tensors) - set(names.values())):
            raise ModelsError(
                f"{self.path} has the tensor {', '.join(superfluous[:4])} ({len(superfluous)} in all), which a Llama "
                "without biases and rope scaling does not have; it would compute something else here"
            )
        return model_of_tensors(self.facts, lambda name: self._tensor(name, names[name]), str(self.path))

    def tokenizer_json(self) -> bytes:
        """Return the tokenizer as ``tokenizer.json``, laid out as Hugging Face writes it.

        Raises:
            ModelsError: its way of cutting text is none of those known here to the byte, or tokens are of a kind that
                byte-level BPE does not have.
        """
        kind, cutter = self._value("tokenizer.ggml.model"), self._value("tokenizer.ggml.pre")
        if kind != "gpt2" or cutter not in _PRE_TOKENIZERS:
            raise ModelsError(
                f"{self.path}: tokenizer.ggml.model is {kind!r} and tokenizer.ggml.pre {cutter!r}; expected 'gpt2' and "
                f"one of {sorted(_PRE_TOKENIZERS)}. Take tokenizer.json from where the model was published"
            )
        tokens, types = self._value("tokenizer.ggml.tokens"), self._value("tokenizer.ggml.token_type")
        if other := sorted(set(types) - {_NORMAL, _CONTROL}):
            raise ModelsError(f"{self.path}: tokenizer.ggml.token_type has {other}, expected {_NORMAL} and {_CONTROL}")
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        added = [
            {"id": number, "content": token, **flags}
            for number, (token, of_type) in enumerate(zip(tokens, types, strict=True))
            if of_type == _CONTROL
        ]
        description = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": _PRE_TOKENIZERS[cutter],
            "post_processor": None,
            "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: number for number, token in enumerate(tokens)},
                "merges": self._value("tokenizer.ggml.merges"),
            },
        }
        return json.dumps(description, indent=2, ensure_ascii=False).encode()

    def token(self, number: int) -> str:
        """Return the token with an id."""
        return str(self._value("tokenizer.ggml.tokens")[number])

    def chat_template(self) -> str | None:
        """Return the chat template in Jinja; None where the file has none."""
        found = self._value("tokenizer.chat_template")
        return None if found is None else str(found)

    def special_tokens(self) -> dict[str, str]:
        """Return the special tokens that it names, as ``{"bos_token": "<s>"}``."""
        ids = {name: self._value(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
        return {f"{name}_token": self.token(number) for name, number in ids.items() if number is not None}

    def _facts(self) -> LlamaFacts:
        width, heads = self._value("llama.embedding_length"), self._value("llama.attention.head_count")
        head_width = width // heads if width and heads else None
        exact: list[tuple[str, tuple[Any, ...]]] = [  # key, what it may be
            ("general.architecture", ("llama",)),
            ("llama.rope.dimension_count", (head_width, None)),
            ("llama.rope.scaling.type", ("none", None)),
            ("llama.rope.scale_linear", (1, None)),
            ("llama.attention.key_length", (head_width, None)),
            ("llama.attention.value_length", (head_width, None)),
            ("llama.attention.sliding_window", (None,)),
            ("llama.expert_count", (0, None)),
        ]
        for key, allowed in exact:
            if (found := self._value(key)) not in allowed:
                shown = " or ".join("absent" if value is None else repr(value) for value in allowed)
                raise ModelsError(f"{self.path}: {key} is {found!r}, expected {shown}; it would compute something else")
        try:
            parameters = LlamaParameters(
                family="llama",
                d_model=width,
                n_layers=self._required("llama.block_count"),
                n_heads=self._required("llama.attention.head_count"),
                n_kv_heads=self._value("llama.attention.head_count_kv") or heads,
                d_ff=self._required("llama.feed_forward_length"),
                tied_embeddings="output.weight" not in self._tensors,
                rope_theta=_shortest(self._value("llama.rope.freq_base") or 10000.0),
                norm_eps=_shortest(self._required("llama.attention.layer_norm_rms_epsilon")),
                init_std=0.02,  # the file has none; no weight is drawn
            )
        except ValidationError as error:
            raise ModelsError(f"{self.path} describes no Llama that can be built here: {error}") from error
        return LlamaFacts(
            parameters,
            vocab_size=len(self._required("tokenizer.ggml.tokens")),
            max_seq_len=self._required("llama.context_length"),
            eos_id=self._value("tokenizer.ggml.eos_token_id"),
        )

    def _value(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def _required(self, key: str) -> Any:
        if (value := self._value(key)) is None:
            raise ModelsError(f"{self.path} has no {key}: it is not the file of a Llama, or an incomplete one")
        return value

    def _tensor(self, name: str, gguf_name: str) -> Tensor:
        stored = self._tensors[gguf_name]
        try:
            values = self._dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise ModelsError(f"{self.path}: {gguf_name} is {stored.tensor_type.name}, which cannot be read") from error
        tensor = torch.from_numpy(np.require(values, np.float32, ["C", "W"]))  # a copy of what is mapped read-only
        if name.endswith("q_proj.weight"):
            return _half_split_rows(tensor, self.facts.parameters.n_heads)
        if name.endswith("k_proj.weight"):
            return _half_split_rows(tensor, self.facts.parameters.n_kv_heads)
        return tensor


def _gguf_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, *rest = name.removesuffix(".weight").split(".")  # model.layers.3.mlp.up_proj
    return f"blk.{layer}.{_LAYER_NAMES['.'.join(rest)]}.weight"


def _half_split_rows(matrix: Tensor, heads: int) -> Tensor:
    """Return the rows (heads * D, d) with rotary pair j of a head at (j, j + D/2) instead of (2j, 2j + 1)."""
    rows, columns = matrix.shape
    return matrix.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _shortest(value: float) -> float:
    """Return the float64 with the shortest decimal form that is this float32: 1e-05 and not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
