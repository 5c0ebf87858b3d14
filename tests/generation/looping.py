"""A tiny model that loops a block and halts, for the tests of generation."""

from __future__ import annotations

from pathlib import Path

import torch

from everytoken.generation import ChatFiles, jinja_of_marks
from everytoken.models import OpenMythos
from everytoken.training.checkpoints.model import CheckpointConfig, save_model
from tests.generation.talking import EOS, MARKS, byte_tokenizer
from tests.models.open_mythos.tiny import ATTENTIONS, PONDER, lively, tiny

LOOPS = 4


def looping_model(attention: str = "mla", context: int = 400) -> OpenMythos:
    return lively(tiny(vocab_size=259, max_seq_len=context, attention=ATTENTIONS[attention], halting=PONDER)).float()


def save_looping_checkpoint(folder: Path, attention: str = "mla", context: int = 400) -> Path:
    """Write a checkpoint of the model, with its tokenizer and how one chats with it."""
    model = looping_model(attention, context)
    config = CheckpointConfig(
        format="everytoken-checkpoint/1", model=model.shape, vocab_size=259, seq_length=context, eos_id=256
    )
    save_model(folder, model, config)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    ChatFiles(jinja_of_marks(MARKS, "\n"), {"bos_token": EOS, "eos_token": EOS}, (256, 258)).write(folder)
    return folder


def greedy_with_loops(model: OpenMythos, prompt: list[int], count: int) -> tuple[list[int], float]:
    """Return the most likely tokens, each after a pass over all before it, and the mean loops of their positions."""
    tokens, taken = list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
            taken.append(int(model.last_pass.loops_taken[0, -1]))
    return tokens[len(prompt) :], sum(taken) / len(taken)
