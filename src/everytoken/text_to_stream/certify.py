"""The proof, before use, that the fast engines give the ids of the reference on these documents and this tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from everytoken.seeds import numpy_generator
from everytoken.shards import Built, versioned
from everytoken.text_to_stream.errors import FileError
from everytoken.text_to_stream.texts import TextRange, place_of, read_texts
from everytoken.tokens.engines import compare_engines
from everytoken.tokens.tokenizer import EncodingRules, open_tokenizer

_SAMPLED_FILES = 16
_SAMPLED_CHARACTERS = 1 << 21


@versioned("certify_files", 1, unrecorded=["tokenizer", "sampled"])
def certify_files(
    folder: Path,
    *,
    tokenizer_sha256: str,
    rules: EncodingRules,
    engines: Mapping[str, str],
    reference: str,
    cases: int,
    seed: int,
    sampled: Sequence[TextRange],
) -> Built:
    """Compare engines with the reference on adversarial texts and on documents of the files.

    A certificate is kept for other files, too: which documents it has seen is in its statistics, not in its recipe.

    Args:
        folder: where the certificate would have files; it is all in the ledger.
        tokenizer_sha256: of the ``tokenizer.json``.
        rules: with which texts are encoded.
        engines: name and version of each engine to compare.
        reference: version of the reference.
        cases: adversarial texts.
        seed: of texts and sample.
        sampled: the files of its first use, where documents come from.

    Raises:
        TokenizerError: the tokenizer cannot be used.
    """
    return Built(
        *compare_engines(
            open_tokenizer(rules.place, rules.eos_token),
            engines=engines,
            special_tokens_in_text=rules.special_tokens_in_text,
            documents=sampled_documents(sampled, seed),
            cases=cases,
            seed=seed,
        )
    )


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
