"""The proof, before use, that the fast engines give the ids of the reference on these documents and this tokenizer."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from everytoken.seeds import numpy_generator
from everytoken.text_to_stream.errors import FileError, PreprocessingError
from everytoken.text_to_stream.texts import TextRange, place_of, read_texts
from everytoken.tokens.engines import (
    FASTEST,
    REFERENCE,
    ComparedOn,
    KeptVerdicts,
    corpus_bytes_of_proof,
    fastest_of,
    installed_engines,
    proven_engine,
    reference_version,
)
from everytoken.tokens.tokenizer import EncodingRules, open_tokenizer

logger = logging.getLogger(__name__)

_SAMPLED_FILES = 16
_SAMPLED_CHARACTERS = 1 << 21


def engine_of_run(
    wanted: str,
    rules: EncodingRules,
    tokenizer_sha256: str,
    sampled: Sequence[TextRange],
    *,
    text_bytes: int,
    cases: int,
    seed: int,
    folder: Path,
) -> str:
    """Return the engine that encodes: ``wanted``, or the fastest one that is proven equal.

    A proof is made once for a tokenizer and the versions that are installed; it serves all files. Where the fastest is
    wanted of a corpus that is too small to pay for a proof, and none is kept, that is the reference.

    Args:
        wanted: ``fastest``, or the name of an engine.
        sampled: the files of this run, from which a proof that is made takes documents.
        text_bytes: of the corpus, about.
        folder: of the verdicts that are kept.

    Raises:
        PreprocessingError: there is no such engine.
        TokenizerError: the engine wanted is not equal, or the tokenizer cannot be used.
    """
    engines = installed_engines()
    if wanted == REFERENCE or (wanted == FASTEST and not engines):
        return REFERENCE
    if wanted not in (FASTEST, *engines):
        raise PreprocessingError(
            f"the engine {wanted!r} is not installed; there is {', '.join([FASTEST, REFERENCE, *engines])}. Choose one "
            "of these (--engine), or install it (pip install '.[fast]' has those that are supported)"
        )
    policy = rules.special_tokens_in_text
    on = ComparedOn(tokenizer_sha256, rules.eos_token, policy, reference_version(), cases, seed)
    found = KeptVerdicts(folder, on).find(engines)
    if missing := [name for name in engines if name not in found]:
        if wanted == FASTEST and text_bytes < corpus_bytes_of_proof(cases, len(missing)):
            logger.info("%s encodes: to prove %s equal costs more than it saves here", REFERENCE, ", ".join(missing))
            return REFERENCE
        logger.info("comparing %s with %s, once for this tokenizer", ", ".join(missing), REFERENCE)
        begin = time.monotonic()
        from everytoken.tokens.engines import compare_engines  # loaded here: most runs find all that they need

        documents = sampled_documents(sampled, seed)
        opened = open_tokenizer(rules.place, rules.eos_token)
        proof, measured = compare_engines(
            opened,
            engines=engines,
            special_tokens_in_text=policy,
            documents=documents,
            cases=cases,
            seed=seed,
            kept_in=folder,
        )
        logger.info("compared in %.1f s", time.monotonic() - begin)
        speeds = measured["megabytes_per_second"]
        found = {name: (verdict, speeds.get(name)) for name, verdict in proof["engines"].items()}
    name = fastest_of(found, REFERENCE) if wanted == FASTEST else wanted
    verdicts = {engine: verdict for engine, (verdict, _) in found.items()}
    return proven_engine(verdicts, name, on.reference, str(folder), "Run the command again: it compares them again")


def sampled_documents(sampled: Sequence[TextRange], seed: int) -> Iterator[tuple[str, str]]:
    """Yield a seeded sample of documents, each with its place: from some files, among the first documents of each.

    Only the begin of these files is read; the run itself checks a share of all documents. A file that cannot be read
    gives none: the run says what is wrong with it, when it has encoded the others.
    """
    draws = numpy_generator(seed)
    chosen = sorted(draws.permutation(len(sampled))[:_SAMPLED_FILES].tolist())
    allowed = _SAMPLED_CHARACTERS // len(chosen)
    for given in (sampled[index] for index in chosen):
        try:
            batch = next(read_texts(given), None)
        except FileError:
            batch = None
        if batch is None:
            continue
        left = allowed
        for number in draws.permutation(len(batch.texts)).tolist():
            text = batch.texts[number][:left]
            yield f"{given.name} {place_of(given.name, number)}", text
            left -= len(text)
            if left <= 0:
                break
