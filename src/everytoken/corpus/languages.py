"""The language of each document, by naive Bayes over n-grams of bytes (Lui and Baldwin, ACL 2012), as py3langid has it.

With n_f the occurrences of n-gram f in a text of b bytes, the scores of the languages l are softmaxed::

    score_l = (sum over f of log(1 + n_f) * w_fl + prior_l) / sqrt(b)

They are summed in float64, n-gram after n-gram in the order of the text: so no library of linear algebra, and no number
of threads, decides a bit. A language is the code that the library gives, ISO 639-1 where there is one, and ``zxx`` for
what is no language. A text that says too little is `UNDETERMINED`.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from everytoken.address import ADDRESS_COLUMNS, address_fields
from everytoken.arrays import Floats
from everytoken.corpus.errors import LanguageError
from everytoken.corpus.statistics import add_statistics
from everytoken.shards import Part, Rows, versioned

UNDETERMINED = "und"
"""The code of ISO 639-2 for a language that nobody knows."""

LANGUAGE = "language"
LANGUAGES = pa.schema(
    [
        *address_fields(nullable=False),
        pa.field(LANGUAGE, pa.string(), nullable=False),
        pa.field("confidence", pa.float32(), nullable=False),
    ]
)

_PACKAGE = "py3langid"
_DECIMALS = 2


class LanguageParameters(BaseModel):
    """How languages are identified.

    Attributes:
        version: of py3langid. The installed one must be this one: another model, other languages.
        max_characters: characters of a text that are read; the rest has no influence.
        min_letters: a text with fewer letters among these is ``und``.
        min_confidence: a text whose most probable language has less, rounded to two decimals, is ``und``. A text
            without any known n-gram has 0.01.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["langid"]
    version: str
    max_characters: PositiveInt
    min_letters: PositiveInt
    min_confidence: Annotated[float, Field(ge=0.02, le=1)]


class LanguageAmounts(TypedDict):
    """Documents of a language, and their code points."""

    documents: int
    characters: int


class LanguageStatistics(TypedDict):
    """Statistics of `identify_part`: ``by_source[source][language]``."""

    rows: int
    by_source: dict[str, dict[str, LanguageAmounts]]


@versioned("identify_part", 1)
def identify_part(part: Part, *, parameters: LanguageParameters) -> Rows:
    """Return address, language and confidence of each document of a part, in its order.

    ``confidence`` is the probability of the language, rounded to two decimals; 0 where a text has too few letters.

    Returns:
        Statistics: see `LanguageStatistics`.

    Raises:
        LanguageError: py3langid is not installed, or not in this version.
    """
    return Rows(LANGUAGES, _identified(part, parameters))


def _identified(part: Part, parameters: LanguageParameters) -> Generator[pa.RecordBatch, None, LanguageStatistics]:
    by_source: dict[str, dict[str, LanguageAmounts]] = {}
    rows = 0
    for batch in part.batches(["text", "characters", *ADDRESS_COLUMNS]):
        found = [identify_language(text.as_py(), parameters) for text in batch.column("text")]
        languages = [language for language, _ in found]
        sources, lengths = (batch.column(name).to_pylist() for name in ("source", "characters"))
        for source, language, characters in zip(sources, languages, lengths, strict=True):
            amounts = by_source.setdefault(source, {}).setdefault(language, LanguageAmounts(documents=0, characters=0))
            amounts["documents"] += 1
            amounts["characters"] += characters
        rows += len(found)
        confidences = pa.array([confidence for _, confidence in found], pa.float32())
        addresses = [batch.column(name) for name in ADDRESS_COLUMNS]
        yield pa.RecordBatch.from_arrays([*addresses, pa.array(languages, pa.string()), confidences], schema=LANGUAGES)
    return LanguageStatistics(rows=rows, by_source=add_statistics([by_source]))


def identify_language(text: str, parameters: LanguageParameters) -> tuple[str, float]:
    """Return language and confidence of a text; see `identify_part`."""
    read = text[: parameters.max_characters]
    if sum(map(str.isalpha, read)) < parameters.min_letters:
        return UNDETERMINED, 0.0
    language, probability = _classifier(parameters.version)(read)
    confidence = round(probability, _DECIMALS)
    return (language if confidence >= parameters.min_confidence else UNDETERMINED), confidence


def require_identifier(version: str) -> None:
    """Check that py3langid is there.

    Raises:
        LanguageError: it is not, or not in this version.
    """
    try:
        installed = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise LanguageError(
            f"ingestion.languages needs {_PACKAGE}, which is not installed: pip install {_PACKAGE}=={version}"
        ) from None
    if installed != version:
        raise LanguageError(
            f"ingestion.languages.version is {version}, installed is {_PACKAGE} {installed}, which may find other "
            f"languages: pip install {_PACKAGE}=={version}, or set the version to {installed}"
        )


@functools.cache
def _classifier(version: str) -> Callable[[str], tuple[str, float]]:
    """Load the model, once a process."""
    require_identifier(version)
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    class ExactIdentifier(LanguageIdentifier):  # type: ignore[misc]  # the library has no types
        """The library's own sum is a product of matrices in float32: its last bits differ between machines."""

        def _sparse_score(self, visits: Mapping[int, int], table: Any) -> Floats:
            weights = np.log1p(np.fromiter(visits.values(), np.float64, len(visits)))
            rows = table[np.fromiter(visits, np.intp, len(visits))].astype(np.float64)  # (n-grams, languages)
            scores: Floats = np.add.reduce(rows * weights[:, None], axis=0) + self.nb_pc
            return scores

    identifier = ExactIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    classify: Callable[[str], tuple[str, float]] = identifier.classify
    return classify


class LanguageLine(TypedDict):
    """A line of the table: ``group`` is ``source``, or ``all`` with an empty source; ``share`` is of the characters."""

    group: str
    source: str
    language: str
    documents: int
    characters: int
    share: float


def language_table(statistics: Iterable[LanguageStatistics]) -> list[LanguageLine]:
    """Return the documents and characters of each language, by source and in all; the most characters first."""
    by_source = add_statistics(statistics).get("by_source", {})
    groups = [("source", source, languages) for source, languages in by_source.items()]
    return [
        LanguageLine(group=group, source=source, language=language, share=share, **amounts)
        for group, source, languages in [*groups, ("all", "", add_statistics(by_source.values()))]
        for language, amounts, share in _with_shares(languages)
    ]


def _with_shares(languages: Mapping[str, LanguageAmounts]) -> list[tuple[str, LanguageAmounts, float]]:
    total = sum(amounts["characters"] for amounts in languages.values())
    ordered = sorted(languages.items(), key=lambda one: (-one[1]["characters"], one[0]))
    return [(name, amounts, amounts["characters"] / total if total else 0.0) for name, amounts in ordered]
