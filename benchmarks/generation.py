"""Tokens a second of a chat: ours next to transformers' generate, the same weights, greedy, float32, in one run.

python benchmarks/generation.py CHECKPOINT [--tokens 64] [--rounds 5] [--threads 2]

CHECKPOINT is a checkpoint folder with a chat template, as `everytoken import` writes it of SmolLM2-135M-Instruct. Each
round lets both answer the same message, one after the other, and the order changes from round to round. Reading the
prompt is part of both times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from everytoken.generation import GenerationParameters, OpenedModel, speak
from everytoken.serving import open_model
from everytoken.training.checkpoints import export_checkpoint

_MESSAGE = "Tell me a long story about a river, a bridge and the people who live there."


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Print tokens a second of both; return the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    opened = open_model(given.checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        export_checkpoint(given.checkpoint, Path(folder) / "exported", tokenizer=None)
        from transformers import AutoModelForCausalLM

        theirs = AutoModelForCausalLM.from_pretrained(Path(folder) / "exported", dtype=torch.float32)
    prompt = opened.chat_format().tokens([{"role": "user", "content": _MESSAGE}])
    rates: dict[str, list[float]] = {"everytoken": [], "transformers": []}
    for number in range(given.rounds):
        runs = [("everytoken", lambda: _ours(opened, prompt, given.tokens))]
        runs.append(("transformers", lambda: _theirs(theirs, prompt, given.tokens)))
        for name, run in runs if number % 2 == 0 else reversed(runs):
            started = time.perf_counter()
            tokens = run()
            rates[name].append(tokens / (time.perf_counter() - started))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = statistics.median(a / b for a, b in zip(*rates.values(), strict=True))
    print(f"{given.tokens} tokens after {len(prompt)}, {given.threads} threads, load {os.getloadavg()[0]:.1f}")
    for name, rate in medians.items():
        print(f"{name:<14}{rate:8.1f} tokens/s")
    print(f"ratio {ratio:.2f} (median of {given.rounds} rounds)")
    return {**medians, "ratio": ratio}


def _ours(opened: OpenedModel, prompt: list[int], tokens: int) -> int:
    parameters = GenerationParameters(seed=0, max_new_tokens=tokens, temperature=0)
    speaking = speak(opened.reader(), opened.tokenizer, prompt, parameters, ends=frozenset())
    while True:
        try:
            next(speaking)
        except StopIteration as ended:
            return len(ended.value.tokens)


@torch.inference_mode()
def _theirs(model: Any, prompt: list[int], tokens: int) -> int:
    ids = torch.tensor([prompt])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
    )
    return int(made.shape[1]) - len(prompt)


if __name__ == "__main__":
    main()
