"""From facts about a corpus to values of its configuration: pure functions, each with the reason that is written."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import NamedTuple

from everytoken.new_environment.errors import NewEnvironmentError
from everytoken.new_environment.sample import SampleFacts

LEAST_CHARACTERS = 20_000
MOST_STEPS = {"mini": 3_000, "demo": 20_000, "135m": 100_000}
BATCH_WINDOWS = 2  # of the default run, as its learning rate is for them


class Decisions(NamedTuple):
    """Values of the parameters that the corpus decides.

    ``threshold``: None where nothing is scored. ``held_out_share`` 0: there is no evaluation while the model trains.
    """

    vocab_size: int
    seq_length: int
    threshold: int | None
    held_out_share: float
    model_size: str
    steps: int
    warmup_steps: int
    max_bad_share: float
    estimated_tokens: int


def require_enough(facts: SampleFacts) -> None:
    """Check that there is text enough for the smallest vocabulary and some windows.

    Raises:
        NewEnvironmentError: there is less.
    """
    if facts.estimated_characters < LEAST_CHARACTERS:
        raise NewEnvironmentError(
            f"{facts.root} has {facts.estimated_characters:,} characters of text, and a vocabulary and windows need "
            f"{LEAST_CHARACTERS:,} or more. Give more files."
        )


def decide(facts: SampleFacts, classes: Mapping[int, int] | None = None) -> Decisions:
    """Return the values for a corpus.

    Args:
        classes: documents of the sample by class of the embedded scorer; None where it does not know the language.
    """
    repeated = facts.duplicates / max(1, len(facts.lengths))  # the ingestion leaves them out
    characters = round(facts.estimated_characters * (1 - repeated))
    tokens = tokens_of_characters(characters)
    seq_length = window_length(facts.lengths, tokens)
    size = model_size(tokens)
    steps = training_steps(tokens, seq_length, size)
    return Decisions(
        vocab_size=vocabulary_size(characters),
        seq_length=seq_length,
        threshold=None if classes is None or facts.shape is not None else annotation_threshold(classes),
        held_out_share=held_out_share(facts.estimated_documents),
        model_size=size,
        steps=steps,
        warmup_steps=max(1, steps // 20),
        max_bad_share=max_bad_share(sum(facts.bad.values()), len(facts.lengths)),
        estimated_tokens=tokens,
    )


def tokens_of_characters(characters: int) -> int:
    """Return about how many tokens so many characters have: 3.5 characters each, as of a small vocabulary."""
    return round(characters / 3.5)


def vocabulary_size(characters: int) -> int:
    """Return a power of two, from 512 to 32,768, with at least about 1,000 characters for each token.

    >>> [vocabulary_size(n) for n in (10_000, 1_500_000, 30_000_000, 10**10)]
    [512, 1024, 16384, 32768]
    """
    return min(1 << 15, max(1 << 9, 1 << max(0, (characters // 1_000).bit_length() - 1)))


def window_length(lengths: tuple[int, ...], tokens: int) -> int:
    """Return the predictions of a window: enough for the median document, and for a corpus to have 500 of them.

    >>> window_length((4_000,) * 9, 10**6), window_length((300,), 10**6), window_length((10**5,), 10**9)
    (512, 128, 1024)
    """
    needed = statistics.median(lengths) / 3.5
    choices = (64, 128, 256, 512, 1_024)
    allowed = [length for length in choices if length * 500 <= tokens] or [64]
    allowed = [length for length in allowed if length <= 512 or tokens >= 100_000_000]
    return next((length for length in allowed if length >= needed), allowed[-1])


def annotation_threshold(classes: Mapping[int, int]) -> int | None:
    """Return 3, or the highest class below it that 2 % of the documents reach; None where too few reach any.

    >>> annotation_threshold({0: 90, 3: 10}), annotation_threshold({0: 95, 1: 5}), annotation_threshold({0: 100})
    (3, 1, None)
    """
    total = sum(classes.values())
    for threshold in (3, 2, 1):
        if sum(count for number, count in classes.items() if number >= threshold) >= max(1, 0.02 * total):
            return threshold
    return None


def held_out_share(documents: int) -> float:
    """Return the share that holds out about 20 documents, from 5 % to 20 %; nothing of fewer than 50 documents.

    >>> [held_out_share(n) for n in (3, 50, 200, 5_000)]
    [0.0, 0.2, 0.1, 0.05]
    """
    return 0.0 if documents < 50 else round(min(0.2, max(0.05, 20 / documents)), 2)


def model_size(tokens: int) -> str:
    """Return the name of a size: the smallest for what two cores train in minutes, a larger one for larger corpora.

    >>> model_size(10**6), model_size(10**8), model_size(10**10)
    ('mini', 'demo', '135m')
    """
    return "mini" if tokens < 50_000_000 else "demo" if tokens < 2_000_000_000 else "135m"


def training_steps(tokens: int, seq_length: int, size: str) -> int:
    """Return the steps that read the corpus about twice, at least 50; of a size at most what a first run should take.

    >>> training_steps(500_000, 256, "mini"), training_steps(100, 64, "mini"), training_steps(10**8, 256, "demo")
    (1953, 50, 20000)
    """
    return min(MOST_STEPS[size], max(50, round(2 * tokens / (BATCH_WINDOWS * seq_length))))


def max_bad_share(bad: int, good: int) -> float:
    """Return the share of bad rows that a run allows: none where the sample has none, else twice what it has.

    >>> max_bad_share(0, 100), max_bad_share(1, 99), max_bad_share(90, 10)
    (0.0, 0.02, 1.0)
    """
    return round(min(1.0, 2 * bad / max(1, bad + good)), 3)
