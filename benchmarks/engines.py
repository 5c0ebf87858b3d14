"""How fast the engines are on one core beside the reference, what proof costs, and which are equal.

``python benchmarks/engines.py TOKENIZER.json ... [--megabytes 32] [--cases 100000] [--seed 42]`` prints for each
tokenizer: MB/s of CPU time on the Python standard library's own sources (median of interleaved passes, after a first
one that warms caches; bare, and with the guard that runs use), the time of a whole certificate for that engine alone,
and the verdict with the first difference; and on how many of the texts the bare engine, without its guard, differs.
"""

from __future__ import annotations

import os

os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", FASTOKENS_BPE_THREADS="1")

import argparse
import logging
import statistics
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from everytoken.tokens import TokenizerError
from everytoken.tokens.engines import (
    REFERENCE,
    TokenizerEngine,
    adversarial_cases,
    compare_engines,
    installed_engines,
    open_engine,
    open_guarded,
    reference_version,
)
from everytoken.tokens.tokenizer import DocumentTokenizer, open_tokenizer

EOS = "<|endoftext|>"
POLICY = "literal"
PASSES = 5
BATCH_CHARACTERS = 1 << 20


def corpus(wanted: float) -> list[list[str]]:
    """Return batches of files of the standard library."""
    batches: list[list[str]] = [[]]
    size = characters = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if size >= wanted:
            break
        text = path.read_text(encoding="utf-8", errors="replace")
        size, characters = size + len(text.encode()), characters + len(text)
        batches[-1].append(text)
        if characters >= BATCH_CHARACTERS:
            batches.append([])
            characters = 0
    return [batch for batch in batches if batch]


def seconds(engine: TokenizerEngine, batches: Sequence[Sequence[str]]) -> float:
    begin = time.process_time()
    for batch in batches:
        engine.encode(batch)
    return time.process_time() - begin


def bare_differences(tokenizer: DocumentTokenizer, engine: TokenizerEngine, texts: Sequence[str]) -> str:
    """Say on how many texts an engine without guard differs."""
    expected, cuts = open_engine(REFERENCE, tokenizer.content, POLICY).encode(texts)
    try:
        found, offsets = engine.encode(texts)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"fails: {error}"
    wrong = [
        number
        for number in range(len(texts))
        if not np.array_equal(expected[cuts[number] : cuts[number + 1]], found[offsets[number] : offsets[number + 1]])
    ]
    return f"{len(wrong)} of {len(texts)}" + (f", first {ascii(texts[wrong[0]])[:60]}" if wrong else "")


def report(path: Path, batches: Sequence[Sequence[str]], cases: int, seed: int) -> None:
    tokenizer = open_tokenizer(path, EOS)
    size = sum(len(text.encode()) for batch in batches for text in batch) / 1e6
    print(f"\n{path}: {size:.1f} MB of text, {cases} cases, seed {seed}")
    engines: dict[str, tuple[TokenizerEngine, TokenizerEngine]] = {}
    reference = open_engine(REFERENCE, tokenizer.content, POLICY)
    engines[REFERENCE] = (reference, reference)
    for name in installed_engines():
        try:
            engines[name] = open_engine(name, tokenizer.content, POLICY), open_guarded(name, tokenizer, POLICY)
        except TokenizerError as error:
            print(f"  {error}")
    taken: dict[tuple[str, int], list[float]] = {}
    for again in range(PASSES + 1):
        for name, both in engines.items():
            for guarded, engine in enumerate(both):
                if name == REFERENCE and guarded:
                    continue
                spent = seconds(engine, batches)
                if again:
                    taken.setdefault((name, guarded), []).append(spent)
    slow = statistics.median(taken[REFERENCE, 0])
    texts = [text for _, text in adversarial_cases(tokenizer.content, [EOS], cases, seed)]
    for name, (bare, _) in engines.items():
        version = reference_version() if name == REFERENCE else installed_engines()[name]
        median = statistics.median(taken[name, 0])
        line = f"  {name + ' ' + version:<20}{size / median:>8.1f} MB/s, x{slow / median:<5.1f}"
        if name == REFERENCE:
            print(line)
            continue
        line += f" with guard {size / statistics.median(taken[name, 1]):>6.1f} MB/s"
        begin = time.process_time()
        facts, _ = compare_engines(
            tokenizer,
            engines={name: version},
            special_tokens_in_text=POLICY,
            documents=[],
            cases=cases,
            seed=seed,
        )
        difference = facts["engines"][name]["difference"]
        print(f"{line}; certificate {time.process_time() - begin:.1f} s CPU: {difference or 'equal'}")
        print(f"{'':22}without its guard it differs on {bare_differences(tokenizer, bare, texts)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", nargs="+", type=Path)
    parser.add_argument("--megabytes", type=float, default=32)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=42)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    batches = corpus(given.megabytes * 1e6)
    for path in given.tokenizers:
        report(path, batches, given.cases, given.seed)


if __name__ == "__main__":
    main()
