"""A tiny model and a tokenizer of bytes with chat marks, for the tests of generation."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from everytoken.generation import ChatFiles, ChatFormat, GenerationParameters, JinjaTemplate, jinja_of_marks
from everytoken.models import build_model
from everytoken.training.checkpoints.model import CheckpointConfig, save_model
from tests.models.tiny_llama import LLAMA

EOS, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = {role: (f"{START}{role}\n", END) for role in ("system", "user", "assistant", "tool")}
TALKING = LLAMA.model_copy(update={"init_std": 0.3})  # so large that its logits differ


def byte_tokenizer():
    symbols = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(symbols, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS, START, END])
    return tokenizer


def chat_format(tokenizer=None):
    tokenizer = tokenizer or byte_tokenizer()
    template = JinjaTemplate(jinja_of_marks(MARKS, "\n"), {"bos_token": EOS})
    return ChatFormat(tokenizer, template, frozenset({tokenizer.token_to_id(EOS), tokenizer.token_to_id(END)}))


def talking_model(context=400, seed=1):
    return build_model(TALKING, vocab_size=259, max_seq_len=context, seed=seed).eval()


def save_checkpoint(folder, context):
    """Write a checkpoint of the tiny model that talks."""
    config = CheckpointConfig(
        format="everytoken-checkpoint/1", model=TALKING, vocab_size=259, seq_length=context, eos_id=256
    )
    save_model(folder, talking_model(context), config)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    ChatFiles(jinja_of_marks(MARKS, "\n"), {"bos_token": EOS, "eos_token": EOS}, (256, 258)).write(folder)
    return folder


def generation(**changes):
    return GenerationParameters(**{"seed": 5, "max_new_tokens": 12, "temperature": 1.0, **changes})


def said(speaking):
    """Return the pieces of a reply, and the reply."""
    pieces = []
    while True:
        try:
            pieces.append(next(speaking))
        except StopIteration as ended:
            return pieces, ended.value


def greedy_without_cache(model, prompt, count):
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]
