"""The memory that is calculated, beside the tensors that exist on torch's device ``meta``."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from everytoken.generation import PrefixReader
from everytoken.generation.prefix import PREFIX_BLOCK
from everytoken.models import cache_bytes_per_token, empty_model
from everytoken.training import BitsPerByteParameters
from everytoken.training.evaluation.language_modelling import document_nats
from everytoken.training.run import evaluation_memory, generation_memory
from everytoken.training.run.inference_memory import _READ_AT_ONCE
from tests.models.tiny_llama import LLAMA
from tests.training.tiny import EXECUTION

META, VOCAB, SEQ = torch.device("meta"), 2_000, 512
MODEL = LLAMA.model_copy(update={"d_model": 128, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "d_ff": 352})


class Peak(TorchDispatchMode):
    """The most bytes that tensors of ``meta`` hold at once, those of a model included."""

    def __init__(self, model):
        super().__init__()
        self.bytes = self._held = sum(tensor.nbytes for tensor in model.parameters())
        self._own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        self._alive = {}

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        named = named or {}
        with self:
            made = function.decompose(*arguments, **named)
        if made is not NotImplemented:
            return made
        if function is torch.ops.aten._to_copy.default and named.get("device") == torch.device("cpu"):
            return torch.zeros(arguments[0].shape, dtype=named.get("dtype") or arguments[0].dtype)
        made = function(*arguments, **named)
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.device == META:
                self._note(tensor)
        return made

    def _note(self, tensor):
        key, size = tensor.untyped_storage()._cdata, tensor.untyped_storage().nbytes()
        if key in self._own:  # a view
            return
        tensors = self._alive.setdefault(key, [])
        if not tensors:
            self._held += size
            self.bytes = max(self.bytes, self._held)

        def gone(one):
            tensors.remove(one)
            if not tensors:
                self._held -= size
                self._alive.pop(key, None)

        tensors.append(weakref.ref(tensor, gone))


def meta_model(max_seq_len):
    with META:
        return empty_model(MODEL, vocab_size=VOCAB, max_seq_len=max_seq_len).eval()


@pytest.mark.parametrize("batch_size", [1, 8])
def test_an_evaluation_holds_at_most_the_bytes_that_are_calculated_and_not_much_less(batch_size):
    model = meta_model(SEQ)
    documents = [np.zeros(SEQ + 1, np.int64)] * batch_size
    with (
        torch.fx.experimental._config.patch(meta_nonzero_assume_all_nonzero=True),
        Peak(model) as peak,
        torch.inference_mode(),
    ):
        document_nats(model, documents, BitsPerByteParameters(batch_size=batch_size, execution=EXECUTION))
    calculated = evaluation_memory(
        MODEL, vocab_size=VOCAB, seq_length=SEQ, batch_size=batch_size, precision="float32"
    ).total
    assert 0.8 * calculated <= peak.bytes <= calculated


@pytest.mark.parametrize("tokens", [40, 300, 1000])
def test_a_text_holds_at_most_the_bytes_that_are_calculated_and_not_much_less(tokens):
    model = meta_model(tokens)
    reader = PrefixReader(model)
    with Peak(model) as peak:
        reader.read_prompt([1] * (tokens - 5))
        for _ in range(5):
            reader.read_token(1)
    calculated = generation_memory(MODEL, vocab_size=VOCAB, tokens=tokens, sequences=1, precision="float32").total
    assert 0.8 * calculated <= peak.bytes <= calculated


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_bytes_of_a_token_in_the_cache_are_those_of_its_tensors(precision):
    model = empty_model(MODEL, vocab_size=VOCAB, max_seq_len=64)
    cache = model.new_cache()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        model.hidden_states(torch.zeros(1, 10, dtype=torch.int64), cache)
    assert cache.bytes == 2 * 10 * cache_bytes_per_token(MODEL, precision)


def test_a_prompt_is_read_in_blocks_of_as_many_tokens_as_are_planned():
    assert _READ_AT_ONCE == PREFIX_BLOCK
