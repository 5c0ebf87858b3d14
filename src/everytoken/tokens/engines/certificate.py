"""Proof before use: fast engines give the ids of `tokenizers` on a generated adversarial set and on documents.

The certificate says with which tokenizer, which rule for special tokens, which versions and which texts the engines
were compared (`everytoken.tokens.engines.comparison`), and the first difference of each that is not equal. It cannot
show that no text exists on which an equal engine differs, so a share of the documents of each run is checked again
(`everytoken.tokens.encoding.recheck`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from everytoken.progress import progress
from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, Built, Shards, versioned
from everytoken.tokens.engines import registry
from everytoken.tokens.engines.adversarial import family_sizes
from everytoken.tokens.engines.comparison import EngineProof, compare_engines
from everytoken.tokens.engines.kept_verdicts import FASTEST, corpus_bytes_of_proof, proven_engine
from everytoken.tokens.engines.registry import REFERENCE
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer import EncodingRules, SpecialTokens, open_tokenizer

logger = logging.getLogger(__name__)

CERTIFICATE_FILE = "certificate.json"


@versioned("certify_engines", 1, unrecorded=["kept_in"])
def certify_engines(
    folder: Path,
    *,
    rules: EncodingRules,
    engines: Mapping[str, str],
    reference: str,
    samples: Sequence[Shards],
    cases: int,
    documents: int,
    seed: int,
    kept_in: Path | None = None,
    always: bool = False,
) -> Built:
    """Compare engines with the reference and write ``certificate.json``.

    Statistics and measurements: see `compare_engines`. Without engines nothing is compared, and neither where the
    samples are too small to pay for it: then the reference is the only engine of the certificate.

    Args:
        engines: name and version of each engine to compare, as installed.
        samples: datasets from whose ``text`` documents are drawn.
        documents: how many documents to draw; all, if the samples have fewer.
        kept_in: folder of verdicts of earlier runs (`everytoken.tokens.engines.kept_verdicts`); None: none.
        always: compare also where the samples are too small: an engine is wanted by its name.

    Raises:
        TokenizerError: other versions are installed, a drawn document has no text, or the tokenizer cannot be used.
    """
    found = registry.installed_engines()
    for name, version in (*engines.items(), (REFERENCE, reference)):
        installed = registry.reference_version() if name == REFERENCE else found.get(name)
        if installed != version:
            raise TokenizerError(
                f"{name} {version} is to be certified, installed is {installed or 'none'}. Run the pipeline again: it "
                "certifies what is installed"
            )
    needed = 0 if always else corpus_bytes_of_proof(cases, len(engines))
    if not _has_text_of(samples, needed):
        logger.info("%s encodes: to prove %s equal costs more than it saves here", REFERENCE, ", ".join(engines))
        engines = {}
    drawn = min(documents, sum(part.rows for sample in samples for part in sample))
    statistics, measured = compare_engines(
        open_tokenizer(rules.place, rules.eos_token),
        engines=engines,
        special_tokens_in_text=rules.special_tokens_in_text,
        documents=progress(sample_documents(samples, documents, seed), drawn, "engine proof", "document"),
        cases=cases,
        seed=seed,
        kept_in=kept_in,
    )
    if engines:
        logger.info("the fastest engine that gives the ids of %s is %s", REFERENCE, measured["fastest"])
    families = family_sizes(statistics["cases"])
    text = json.dumps({**statistics, "cases_by_family": families}, ensure_ascii=True, indent=2) + "\n"
    (folder / CERTIFICATE_FILE).write_text(text, encoding="utf-8")
    return Built(statistics, measured)


def _has_text_of(samples: Sequence[Shards], size: int) -> bool:
    """Return whether the samples have at least ``size`` bytes of text; no more than that is read."""
    batches = (batch for sample in samples for part in sample for batch in part.batches(["text"]))
    while size > 0 and (batch := next(batches, None)) is not None:
        size -= pc.sum(pc.binary_length(batch.column("text")), min_count=0).as_py()
    return size <= 0


def sample_documents(samples: Sequence[Shards], documents: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield a seeded sample of documents, each with part and row, in order; only parts that are hit are read.

    Args:
        samples: datasets with a column ``text``.
        documents: how many, or all if there are fewer.
        seed: of the choice: every set of rows is equally likely.

    Raises:
        TokenizerError: a drawn text is null.
    """
    named = [
        (f"sample {number} {part.name}" if len(samples) > 1 else part.name, part)
        for number, sample in enumerate(samples, 1)
        for part in sample
    ]
    ends = np.cumsum([part.rows for _, part in named], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    drawn = np.sort(numpy_generator(seed).choice(total, min(documents, total), replace=False)) if total else ends
    for (name, part), end in zip(named, ends.tolist(), strict=True):
        wanted = drawn[(drawn >= end - part.rows) & (drawn < end)] - (end - part.rows)
        if not len(wanted):
            continue
        first = int(wanted[0])
        for batch in part.batches(["text"], first_row=first):
            here = wanted[(wanted >= first) & (wanted < first + batch.num_rows)]
            for row, text in zip(here.tolist(), batch.column("text").take(here - first).to_pylist(), strict=True):
                if text is None:
                    raise TokenizerError(f"{name} row {row}: text is null; a document needs one")
                yield f"{name} row {row}", text
            first += batch.num_rows
            if first > wanted[-1]:
                break


def chosen_engine(
    certificate: Artifact,
    wanted: str,
    *,
    content: bytes | None = None,
    special_tokens_in_text: SpecialTokens | None = None,
) -> str:
    """Return the name of the engine to use.

    Args:
        wanted: `FASTEST`, `REFERENCE` or another name.
        content: bytes of the ``tokenizer.json`` in use, to compare with that of the certificate.
        special_tokens_in_text: the rule in use, to compare likewise.

    Raises:
        TokenizerError: the certificate is for something else, other versions are installed, or ``wanted`` is not proven
            equal.
    """
    proof = certificate.statistics_as(EngineProof)
    again = "Run the tokenization pipeline again: it makes a new certificate"
    used = None if content is None else hashlib.sha256(content).hexdigest()
    for what, said, now in (
        ("the tokenizer with SHA-256", proof["tokenizer_sha256"], used),
        ("special_tokens_in_text", proof["special_tokens_in_text"], special_tokens_in_text),
    ):
        if now is not None and said != now:
            raise TokenizerError(f"the certificate {certificate.folder} is for {what} {said}, in use is {now}. {again}")
    fastest = certificate.measured["fastest"]
    name = fastest if wanted == FASTEST else wanted
    where = f"the certificate {certificate.folder}"
    return proven_engine(proof["engines"], name, proof["reference"]["version"], where, again)
