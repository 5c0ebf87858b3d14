"""Comparison of tokenizer engines with the reference, text by text.

What is compared is what a run uses: engines with their guard (`everytoken.tokens.engines.guard`). An engine is equal
when it loads the tokenizer, gives the same ids and offsets for all texts, and gives them again for a slice of the
texts in batches of other sizes and in other order, after all that it has seen: its caches may not matter. An engine
that raises or panics on a text is not equal. Memory is bounded: texts come and go in batches, of a very long one its
begin.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TypedDict

import numpy as np

from everytoken.measurements import rate
from everytoken.progress import progress
from everytoken.tokens.engines.adversarial import adversarial_cases
from everytoken.tokens.engines.guard import check_cut, open_guarded
from everytoken.tokens.engines.kept_verdicts import ComparedOn, EngineVerdict, KeptVerdicts
from everytoken.tokens.engines.registry import REFERENCE, TokenizerEngine
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer import DocumentTokenizer, SpecialTokens

logger = logging.getLogger(__name__)

_BATCH_TEXTS = 4096
_BATCH_CHARACTERS = 1 << 20
_SLICE_TEXTS = 400
_SLICE_CHARACTERS = 1 << 14
_TIMED_CHARACTERS = 4 << 20
_TIMED_PASSES = 3
_SHOWN_BYTES = 64

Slice = list[tuple[str, str, np.ndarray]]


class EngineProof(TypedDict):
    """Statistics of a certificate, see `compare_engines`."""

    tokenizer_sha256: str
    special_tokens_in_text: SpecialTokens
    seed: int
    cases: int
    documents: int
    documents_digest: str
    reference: dict[str, str]
    engines: dict[str, EngineVerdict]


class EngineSpeeds(TypedDict):
    """What was measured: MB/s of UTF-8 by engine, and the name of the fastest that is equal."""

    megabytes_per_second: dict[str, float | None]
    fastest: str


def compare_engines(
    tokenizer: DocumentTokenizer,
    *,
    engines: Mapping[str, str],
    special_tokens_in_text: SpecialTokens,
    documents: Iterable[tuple[str, str]],
    cases: int,
    seed: int,
    kept_in: Path | None = None,
) -> tuple[EngineProof, EngineSpeeds]:
    """Compare engines with the reference on the adversarial set, then on documents.

    Args:
        engines: version of each engine, by name.
        special_tokens_in_text: what becomes of special tokens that a text spells.
        documents: a label (part and row, or file and line) and a text each; of a very long text its begin is compared.
        kept_in: folder of verdicts on the adversarial set (`everytoken.tokens.engines.kept_verdicts`): these are not
            found out again, and new ones are kept there if it can be written. None: all are found out.

    Returns:
        Statistics - tokenizer_sha256, special_tokens_in_text, seed, cases, documents and documents_digest (the texts
        that were compared, none without engines), reference (name, version), engines (by name: version, equal,
        difference) - and what was measured: megabytes_per_second of UTF-8 by engine (reference and equal ones, warm,
        on the documents or else on adversarial texts) and fastest, the name of the fastest of these.
    """
    reference = open_guarded(REFERENCE, tokenizer, special_tokens_in_text)
    sha256 = hashlib.sha256(tokenizer.content).hexdigest()
    on = ComparedOn(sha256, tokenizer.eos_token, special_tokens_in_text, reference.version, cases, seed)
    kept = KeptVerdicts(kept_in, on) if kept_in is not None and engines else None
    with nullcontext(False) if kept is None else kept.being_completed() as can_keep:
        found = kept.find(engines) if kept is not None else {}
        trials = [
            _Trial(name, version, tokenizer, special_tokens_in_text, found.get(name))
            for name, version in engines.items()
        ]
        fresh = [trial for trial in trials if trial.name not in found]
        generated, sampled = _Texts(cases // _SLICE_TEXTS + 1), _Texts(1)
        if any(trial.difference is None for trial in fresh):
            texts = adversarial_cases(tokenizer.content, [tokenizer.eos_token], cases, seed)
            labelled = ((f"case {number} ({family})", text) for number, (family, text) in enumerate(texts))
            _compare(fresh, reference, generated, progress(labelled, cases, "engine proof, generated texts", "text"))
        if any(trial.difference is None for trial in trials):
            _compare(trials, reference, sampled, documents)
        for trial in trials:
            trial.check_again(generated.slice + sampled.slice)
        measured = _speeds(reference, trials, _timed(sampled, generated))
        for trial in fresh:
            if kept is not None and can_keep:
                kept.keep(trial.name, trial.verdict, trial.speed)
    for trial in trials:
        if trial.difference is not None:
            logger.warning("the engine %s %s is not used: %s", trial.name, trial.version, trial.difference)
    return {
        "tokenizer_sha256": sha256,
        "special_tokens_in_text": special_tokens_in_text,
        "seed": seed,
        "cases": cases if trials else 0,
        "documents": sampled.texts,
        "documents_digest": sampled.digest.hexdigest(),
        "reference": {"name": REFERENCE, "version": reference.version},
        "engines": {trial.name: trial.verdict for trial in sorted(trials, key=lambda trial: trial.name)},
    }, measured


@dataclass
class _Texts:
    """What was compared: how many, their digest, a slice of them with their ids, and those that speed is measured on.

    Attributes:
        every: of so many texts one is in the slice.
    """

    every: int
    texts: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    slice: Slice = field(default_factory=list)
    timed: list[tuple[str, str]] = field(default_factory=list)
    timed_characters: int = 0

    def add(self, labels: Sequence[str], texts: Sequence[str], ids: np.ndarray, offsets: np.ndarray) -> None:
        for number, (label, text) in enumerate(zip(labels, texts, strict=True)):
            data = text.encode()
            self.digest.update(len(data).to_bytes(8, "little") + data)
            if self.timed_characters < _TIMED_CHARACTERS:
                self.timed.append((label, text))
                self.timed_characters += len(text)
            chosen = self.texts % self.every == 0 and len(self.slice) < _SLICE_TEXTS
            if chosen and len(text) <= _SLICE_CHARACTERS:
                self.slice.append((label, text, ids[offsets[number] : offsets[number + 1]].copy()))
            self.texts += 1


class _Trial:
    """One engine, and the first difference found."""

    def __init__(
        self,
        name: str,
        version: str,
        tokenizer: DocumentTokenizer,
        special_tokens_in_text: SpecialTokens,
        found: tuple[EngineVerdict, float | None] | None = None,
    ) -> None:
        self.name, self.version = name, version
        self.difference: str | None = None
        self.speed: float | None = None
        self._tokenizer = tokenizer
        if found is not None:
            self.difference, self.speed = found[0]["difference"], found[1]
            if self.difference is not None:
                return
        try:
            self.engine: TokenizerEngine = open_guarded(name, tokenizer, special_tokens_in_text)
        except TokenizerError as error:
            self.difference = str(error)

    @property
    def verdict(self) -> EngineVerdict:
        return {"version": self.version, "equal": self.difference is None, "difference": self.difference}

    def check(self, labels: Sequence[str], texts: Sequence[str], ids: np.ndarray, offsets: np.ndarray) -> None:
        """Encode the texts and compare; after a difference nothing is done."""
        if self.difference is not None:
            return
        try:
            found, cuts = self._encode(texts)
        except _Failed as error:
            self.difference = self._failure(labels, texts, error)
            return
        if np.array_equal(ids, found) and np.array_equal(offsets, cuts):
            return
        for number, (label, text) in enumerate(zip(labels, texts, strict=True)):
            expected = ids[offsets[number] : offsets[number + 1]]
            got = found[cuts[number] : cuts[number + 1]]
            if not np.array_equal(expected, got):
                self.difference = f"{label}: {self._described(text, expected, got)}"
                return

    def check_again(self, texts: Slice) -> None:
        """Encode texts that were equal once more: one by one, in batches of other sizes, and in other order."""
        for size in (1, 2, 7, 64, len(texts)):
            for start in range(0, len(texts), size) if size else ():
                batch = texts[start : start + size][::-1]
                offsets = np.concatenate([[0], np.cumsum([len(ids) for _, _, ids in batch])])
                labels = [f"{label}, encoded again in a batch of {len(batch)}" for label, _, _ in batch]
                ids = np.concatenate([ids for _, _, ids in batch])
                self.check(labels, [text for _, text, _ in batch], ids, offsets)

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        try:
            ids, offsets = self.engine.encode(texts)
            check_cut(self.engine, ids, offsets, len(texts), self._tokenizer.vocab_size)
        except BaseException as error:  # a panic of a Rust library is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
                raise
            raise _Failed(f"{type(error).__name__}: {error}") from error
        return ids, offsets

    def _failure(self, labels: Sequence[str], texts: Sequence[str], error: _Failed) -> str:
        for label, text in zip(labels, texts, strict=True):
            try:
                self._encode([text])
            except _Failed as alone:
                return f"{label}: the text {_shown(text.encode())} makes it fail ({alone})"
        return f"{labels[0]} and the {len(texts) - 1} texts after it make it fail ({error}), none of them alone does"

    def _described(self, text: str, expected: np.ndarray, found: np.ndarray) -> str:
        common = min(len(expected), len(found))
        unequal = np.flatnonzero(expected[:common] != found[:common])
        place = int(unequal[0]) if len(unequal) else common
        byte = int(self._tokenizer.token_bytes[expected[:place]].sum())
        around = slice(max(0, place - 2), place + 6)
        return (
            f"in the text at byte {byte} of {len(text.encode())}, {_shown(text.encode()[max(0, byte - 24) :])}: from "
            f"token {place} on, expected {_listed(expected, around)}, found {_listed(found, around)}"
        )


class _Failed(Exception):
    """An engine raised, panicked, or gave what are no ids."""


def _compare(
    trials: Sequence[_Trial], reference: TokenizerEngine, compared: _Texts, labelled: Iterable[tuple[str, str]]
) -> None:
    """Encode texts with the reference and every engine that is equal so far, batch by batch."""
    for labels, texts in _batches(labelled):
        ids, offsets = reference.encode(texts)
        compared.add(labels, texts, ids, offsets)
        for trial in trials:
            trial.check(labels, texts, ids, offsets)


def _batches(labelled: Iterable[tuple[str, str]]) -> Iterator[tuple[list[str], list[str]]]:
    labels: list[str] = []
    texts: list[str] = []
    characters = 0
    for label, text in labelled:
        labels.append(label)
        texts.append(text[:_BATCH_CHARACTERS])
        characters += len(texts[-1])
        if characters >= _BATCH_CHARACTERS or len(texts) == _BATCH_TEXTS:
            yield labels, texts
            labels, texts, characters = [], [], 0
    if texts:
        yield labels, texts


def _speeds(reference: TokenizerEngine, trials: Sequence[_Trial], labelled: Sequence[tuple[str, str]]) -> EngineSpeeds:
    """Measure reference and equal engines on texts that they have seen, all in one batch: MB/s of UTF-8.

    Without texts the speeds are those that were measured when the engines were compared.
    """
    equal = [trial for trial in trials if trial.difference is None]
    if not equal:
        return {"megabytes_per_second": {}, "fastest": REFERENCE}
    measured = (
        _measured_speeds(reference, equal, labelled) if labelled else {trial.name: trial.speed for trial in equal}
    )
    differ = {trial.name for trial in equal if trial.difference is not None}
    speeds = {name: speed for name, speed in measured.items() if name not in differ}
    # where the clock saw no time pass, nothing is faster
    fastest = max(speeds, key=lambda name: math.inf if (speed := speeds[name]) is None else speed, default=REFERENCE)
    return {"megabytes_per_second": speeds, "fastest": fastest}


def _timed(sampled: _Texts, generated: _Texts) -> list[tuple[str, str]]:
    """Return documents, or generated texts where the documents are too few to tell how fast an engine is."""
    few = sampled.timed_characters < min(_TIMED_CHARACTERS // 8, generated.timed_characters)
    return generated.timed if few else sampled.timed or generated.timed


def _measured_speeds(
    reference: TokenizerEngine, trials: Sequence[_Trial], labelled: Sequence[tuple[str, str]]
) -> dict[str, float | None]:
    texts = [text for _, text in labelled]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    begin = perf_counter()
    ids, offsets = reference.encode(texts)
    speeds = {reference.name: rate(megabytes, perf_counter() - begin)}
    labels = [f"{label}, encoded again in a batch of {len(texts)}" for label, _ in labelled]
    for trial in trials:
        seconds = []
        for _ in range(_TIMED_PASSES):
            begin = perf_counter()
            trial.check(labels, texts, ids, offsets)
            seconds.append(perf_counter() - begin)
        trial.speed = speeds[trial.name] = rate(megabytes, min(seconds))
    return speeds


def _shown(data: bytes) -> str:
    """Return the first bytes of a text as they are written in Python, in ASCII."""
    text = data[:_SHOWN_BYTES].decode(errors="ignore")
    return ascii(text) + ("..." if len(data) > _SHOWN_BYTES else "")


def _listed(ids: np.ndarray, around: slice) -> str:
    begin, end = "..." if around.start > 0 and len(ids) else "", "..." if around.stop < len(ids) else ""
    return f"[{begin}{', '.join(map(str, ids[around].tolist()))}{end}]"
