"""Evaluation and generation make every tensor on the model's device: shown on torch's device ``meta``.

A tensor of ``meta`` has a shape and no numbers, so a tensor on another device is seen wherever it is made. Ids and
masks are numpy arrays before they are copied to the device, and results come back to the CPU by one copy.
"""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from everytoken.generation import PrefixReader
from everytoken.generation.prefix import PREFIX_BLOCK
from everytoken.models.causal_attention import document_mask
from everytoken.models.families import build_model, empty_model
from everytoken.shards import recipe_value
from everytoken.training import BitsPerByteParameters, PromptParameters, TrainingError
from everytoken.training.evaluation.generation import generate
from everytoken.training.evaluation.held_out import evaluate_held_out, prepare_held_out
from everytoken.training.evaluation.language_modelling import document_nats
from everytoken.training.step import Objective, Ranks, document_numbers, execution, open_device
from tests.models.tiny_llama import LLAMA
from tests.training.tiny import EXECUTION, HELD_OUT_SOURCES, HELD_OUT_TEXTS, SEQ, DocumentsPart, byte_encoder

META = torch.device("meta")
_COPY = torch.ops.aten._to_copy.default
_FROM_NUMPY = torch.ops.aten.lift_fresh.default  # also of torch.tensor: what it makes may only be copied to the device


class Devices(TorchDispatchMode):
    """Records what is made elsewhere than on ``meta``, and what is given to a function there from elsewhere.

    A copy from ``meta`` to the CPU gives zeros: the result that comes back. What is made of results alone is a result.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made, self.back = 0, 0
        self.elsewhere, self.mixed = [], []
        self._results: dict[int, torch.Tensor] = {}  # kept, so that no id is used twice

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        named = named or {}
        with self:  # in inference mode some functions arrive whole: look at what they are made of
            made = function.decompose(*arguments, **named)
        if made is not NotImplemented:
            return made
        given = [leaf for leaf in tree_leaves((arguments, named)) if isinstance(leaf, torch.Tensor)]
        if function is _COPY and given[0].device == META and named.get("device") == torch.device("cpu"):
            self.back += 1
            made = torch.zeros(given[0].shape, dtype=named.get("dtype") or given[0].dtype)
            self._results[id(made)] = made
            return made
        made = function(*arguments, **named)
        tensors = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        if given and all(id(tensor) in self._results for tensor in given):
            self._results |= {id(tensor): tensor for tensor in tensors}
            return made
        self.made += len(tensors)
        if function is not _FROM_NUMPY or tensors[0].dtype not in (torch.int64, torch.bool):
            self.elsewhere += [f"{function} {tuple(tensor.shape)}" for tensor in tensors if tensor.device != META]
        if function is not _COPY and len({tensor.device for tensor in given}) > 1:
            self.mixed.append(f"{function} {[tuple(tensor.shape) for tensor in given]}")
        return made


@contextmanager
def only_meta():
    """Check that the body makes all tensors on ``meta``, and gives none from elsewhere to a function there."""
    settings = torch.fx.experimental._config
    # where a mask says which rows count, their number is not known there: all of them
    with settings.patch(meta_nonzero_assume_all_nonzero=True), execution(EXECUTION), Devices() as devices:
        yield devices
    assert devices.elsewhere == devices.mixed == []
    assert devices.made > 50


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return byte_encoder(tmp_path_factory.mktemp("tokenizer"))


def meta_model(max_seq_len=SEQ):
    with META:
        return empty_model(LLAMA, vocab_size=257, max_seq_len=max_seq_len).eval()


def ids(batch, seq):
    return torch.zeros(batch, seq, dtype=torch.int64, device=META)


def test_a_model_that_is_built_on_a_device_and_moved_there_is_all_there():
    moved = build_model(LLAMA, vocab_size=257, max_seq_len=SEQ, seed=1).to(META)
    for model in (moved, meta_model()):
        assert {tensor.device for tensor in (*model.parameters(), *model.buffers())} == {META}


def test_the_layers_make_nothing_elsewhere():
    model = meta_model()
    with only_meta(), torch.no_grad():
        assert model.hidden_states(ids(2, SEQ)).shape == (2, SEQ, LLAMA.d_model)
        documents = document_numbers(ids(2, SEQ + 1), eos_id=256)
        assert document_mask(documents)[0].shape == (2, 1, SEQ, SEQ)
        model.hidden_states(ids(2, SEQ), documents=documents)
        assert model(ids(2, SEQ)).device == META


def test_a_cache_is_made_and_grows_where_the_model_is():
    model = meta_model()
    cache = model.new_cache()
    with only_meta(), torch.inference_mode():
        for length in (3, 4, 1, 4):  # a prompt, a block with a mask, one token, more than there is room for
            model.hidden_states(ids(1, length), cache)
        cache.clone().truncate(2)
    assert cache.length == 12 and cache.bytes > 0


def test_a_prompt_is_read_there_and_its_logits_come_back():
    reader = PrefixReader(meta_model(max_seq_len=4 * PREFIX_BLOCK))
    with only_meta() as devices:
        assert reader.read_prompt([1] * (2 * PREFIX_BLOCK + 5)).device.type == "cpu"
        assert reader.read_token(2).shape == (257,)
        reader.read_prompt([1] * (PREFIX_BLOCK + 7))
    assert devices.back == 3


def test_bits_per_byte_are_computed_there_and_the_losses_come_back():
    documents = [np.zeros(length, np.int64) for length in (3, SEQ + 1, 2 * SEQ + 5)]
    with only_meta() as devices, torch.inference_mode():
        nats = document_nats(meta_model(), documents, BitsPerByteParameters(batch_size=2, execution=EXECUTION))
    assert nats == [0.0, 0.0, 0.0] and devices.back > 0


@pytest.mark.parametrize("eos_id", [None, 256])
def test_held_out_losses_are_computed_there_and_their_sums_come_back_once(encoder, eos_id):
    part = DocumentsPart(HELD_OUT_TEXTS, HELD_OUT_SOURCES)
    chunks = prepare_held_out(encoder, [part], seq_length=SEQ, documents=100, seed=7)
    with only_meta() as devices:
        records = evaluate_held_out(
            Objective(meta_model()),
            chunks,
            step=0,
            batch_size=2,
            execution_parameters=EXECUTION,
            processes=Ranks(0, 1, "alone", META),
            eos_id=eos_id,
        )
    assert [record.nats for record in records] == [0.0, 0.0] and devices.back == 1


def test_the_check_sees_a_tensor_that_is_made_elsewhere():
    with pytest.raises(AssertionError, match=r"aten\.arange\S* \(3,\)"), only_meta():
        for _ in range(60):
            ids(2, 3)
        torch.arange(3)
    with pytest.raises(AssertionError, match=r"aten\.index_put_\S* \[\(2, 3\), \(2,\)"), only_meta():
        for _ in range(60):
            ids(2, 3)
        ids(2, 3)[torch.tensor([True, False])] = 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_refused():
    assert open_device("cpu") == torch.device("cpu")
    with pytest.raises(TrainingError, match="device is cuda, and torch finds no such device here; use device: cpu"):
        open_device("cuda")


def test_only_a_device_other_than_the_cpu_is_recorded():
    for kind, values in ((BitsPerByteParameters, {"batch_size": 2}), (PromptParameters, PROMPTS)):
        plain, on_gpu = (kind(**values, **device, execution=EXECUTION) for device in ({}, {"device": "cuda"}))
        assert "device" not in recipe_value(plain, "evaluation")
        assert recipe_value(on_gpu, "evaluation") == {**recipe_value(plain, "evaluation"), "device": "cuda"}


PROMPTS = {"seed": 1, "max_new_tokens": 3, "temperature": 1.0, "prompts": ("ab",)}


def test_texts_are_drawn_from_a_model_wherever_it_is(encoder):
    with Devices() as devices:
        (text,) = generate(meta_model(), encoder, PromptParameters(**PROMPTS, execution=EXECUTION))
    assert devices.mixed == []
    assert len(text.tokens) <= 3 and devices.back >= 1
