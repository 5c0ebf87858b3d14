"""Second scores: columns of further scorers after those of the first, each with the name that the parameters give.

A second score is one number a document, float32. Of the embedded model it is the expected class, the sum of each class
times its probability, from 0 to 5; of a classifier see `SecondClassifier`, of a list of words `WordsScorer`. Equal ids
of a part share the score of their first text, as they share the first score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field

from everytoken.arrays import Integers, SingleFloats
from everytoken.corpus.documents import N_CLASSES, SCORE_FIELDS, SPLIT_DOCUMENTS
from everytoken.corpus.errors import ScoringError
from everytoken.corpus.scoring.embedded import EmbeddedScorer, identify_model
from everytoken.corpus.scoring.loading import read_json
from everytoken.corpus.scoring.model_files import ModelStatistics, fetch_model
from everytoken.corpus.scoring.one_score_per_id import DistinctRows, distinct_rows, first_texts, score_distinct
from everytoken.corpus.scoring.published import join_published, joined_scores
from everytoken.corpus.scoring.score import part_scores, text_scorer
from everytoken.corpus.scoring.transformer import Probability, TransformersScorer, model_name
from everytoken.corpus.scoring.unscored import no_model, no_scores
from everytoken.corpus.scoring.word_counts import WordsScorer, word_scores
from everytoken.corpus.statistics import add_statistics
from everytoken.shards import UNRECORDED_DEFAULT, Artifact, Built, Part, Rows, side_by_side, value_digest, versioned

FIRST = "first"
"""The folder of the first scorer in an artifact that holds several."""

_TEXTS = 1_024
_HIGHEST_BIN = 10
_MULTI_LABEL = "multi_label_classification"  # problem_type of config.json


def _free_name(name: str) -> str:
    if name in SPLIT_DOCUMENTS.names or name == FIRST:
        raise ValueError(f"a second score is a column of its own, and documents have {name!r} already: rename it")
    return name


class SecondClassifier(TransformersScorer):
    """A sequence classifier with any number of labels, as a second score.

    Attributes:
        label: the label whose probability is the score, by the name that ``id2label`` of ``config.json`` has. Null: of
            a model with one output that output, as of a regression; else the expected number of the label, which is
            the probability of the second of two.
    """

    label: Annotated[str | None, UNRECORDED_DEFAULT] = Field(default=None, exclude_if=lambda value: value is None)

    def probability(self, model: Artifact) -> Probability:
        """Return what makes a probability of a logit, by ``problem_type`` of the model; one output stays as it is."""
        assert model.folder is not None, "a made artifact has a folder"
        if len(model.statistics_as(ModelStatistics)["labels"]) == 1:
            return "identity"
        problem = read_json(model.folder, "config.json", model_name(model)).get("problem_type")
        return "sigmoid" if problem == _MULTI_LABEL else "softmax"

    def label_number(self, model: Artifact) -> int | None:
        """Return the number of ``label``; None without one.

        Raises:
            ScoringError: the model has no such label, or a probability for each label apart and none is named.
        """
        labels, name = model.statistics_as(ModelStatistics)["labels"], model_name(model)
        numbers = [int(number) for number, label in labels.items() if label == self.label]
        if self.label is not None and len(numbers) != 1:
            raise ScoringError(
                f"{name} has {len(numbers)} labels {self.label!r} among {list(labels.values())[:20]}. Set label to the "
                f"name of one, or leave it out for the expected number of the label."
            )
        if self.label is None and self.probability(model) == "sigmoid":
            raise ScoringError(
                f"{name} gives each of its labels a probability of its own (problem_type "
                f"{_MULTI_LABEL}), so there is no expected one. Set label to one of {list(labels.values())[:20]}."
            )
        return numbers[0] if numbers else None


def _label_scores(outputs: SingleFloats, label: int | None) -> SingleFloats:
    """Return the score of each text, float32 (n,), from what the scorer gives, float32 (n, labels)."""
    if label is not None:
        return outputs[:, label]
    if outputs.shape[1] == 1:
        return outputs[:, 0]
    expected = np.zeros(len(outputs), np.float64)
    for number in range(1, outputs.shape[1]):  # one after the other: the bits do not depend on how many texts there are
        expected += number * outputs[:, number].astype(np.float64)
    return expected.astype(np.float32)


SecondScorer = Annotated[EmbeddedScorer | SecondClassifier | WordsScorer, Field(discriminator="kind")]
ScoreName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,59}$"), BeforeValidator(_free_name)]


class SecondAmounts(TypedDict):
    """Documents of a source by a second score: rounded down, ``below 0`` and ``10 or more`` at the ends."""

    rows: int
    sum: float
    by_value: dict[str, int]


@versioned("score_part_with_second", 1)
def score_part_with_second(
    part: Part,
    *,
    scorer: EmbeddedScorer | TransformersScorer,
    model: Artifact | None,
    second: Mapping[str, SecondScorer],
    models: Mapping[str, Artifact],
) -> Rows:
    """Append the scores of `score_part`, and a column for each second scorer.

    Args:
        second: scorers by the name of their column.
        models: the files of those that are transformers.

    Returns:
        Statistics as those of `score_part`, and ``second_scores[name][source]``, see `SecondAmounts`.
    """
    return _with_second(part, part_scores(part, text_scorer(scorer, model)), second, models)


@versioned("join_part_with_second", 1)
def join_part_with_second(
    part: Part, *, published: Artifact, second: Mapping[str, SecondScorer], models: Mapping[str, Artifact]
) -> Rows:
    """Append the scores of `join_part`, and a column for each second scorer; see `score_part_with_second`."""
    return _with_second(part, joined_scores(part, published), second, models)


@versioned("leave_unscored_with_second", 1)
def leave_unscored_with_second(
    part: Part, *, second: Mapping[str, SecondScorer], models: Mapping[str, Artifact]
) -> Rows:
    """Append the columns of `leave_unscored`, and one for each second scorer; see `score_part_with_second`."""
    return _with_second(part, no_scores(part), second, models)


def _with_second(
    part: Part, first: Iterator[pa.RecordBatch], second: Mapping[str, SecondScorer], models: Mapping[str, Artifact]
) -> Rows:
    fields = [*SCORE_FIELDS, *(pa.field(name, pa.float32(), nullable=False) for name in second)]
    return Rows.extending(part, fields, _columns(part, first, second, models, pa.schema(fields)))


def _columns(
    part: Part,
    first: Iterator[pa.RecordBatch],
    second: Mapping[str, SecondScorer],
    models: Mapping[str, Artifact],
    schema: pa.Schema,
) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
    distinct = distinct_rows(part)
    scores = {name: _scores(part, distinct, scorer, models.get(name)) for name, scorer in second.items()}
    counted: dict[str, dict[str, SecondAmounts]] = {name: {} for name in second}
    start = 0
    batches = side_by_side(part.batches(["source"]), first)
    while True:
        try:
            batch = next(batches)
        except StopIteration as stop:
            return {**stop.value, "second_scores": counted}
        rows = slice(start, start + batch.num_rows)
        start += batch.num_rows
        own = {name: of_ids[distinct.of_row[rows]] for name, of_ids in scores.items()}
        for name, values in own.items():
            _count(counted[name], batch.column("source").to_pylist(), values)
        columns = [*(batch.column(field.name) for field in SCORE_FIELDS), *map(pa.array, own.values())]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _scores(part: Part, distinct: DistinctRows, scorer: SecondScorer, model: Artifact | None) -> SingleFloats:
    """Return the score of each distinct id, float32 (ids,)."""
    if isinstance(scorer, WordsScorer):
        return _word_scores(part, distinct.of_row, distinct.ids, scorer)
    label, classes = None, N_CLASSES
    if isinstance(scorer, SecondClassifier):
        assert model is not None, "the files of a transformer"
        label, classes = scorer.label_number(model), len(model.statistics_as(ModelStatistics)["labels"])
    outputs, _ = score_distinct(part, distinct, text_scorer(scorer, model), classes)
    return _label_scores(outputs, label)


def _word_scores(part: Part, of_row: Integers, ids: int, scorer: WordsScorer) -> SingleFloats:
    scores = np.zeros(ids, np.float32)
    numbers: list[int] = []
    texts: list[str] = []
    for number, text in first_texts(part, of_row):
        numbers.append(number)
        texts.append(text[: scorer.max_chars])
        if len(texts) == _TEXTS:
            scores[numbers] = word_scores(texts, scorer)
            numbers, texts = [], []
    if texts:
        scores[numbers] = word_scores(texts, scorer)
    return scores


def _count(counted: dict[str, SecondAmounts], sources: Sequence[str], values: SingleFloats) -> None:
    for source, value in zip(sources, values.tolist(), strict=True):
        amounts = counted.setdefault(source, SecondAmounts(rows=0, sum=0.0, by_value={}))
        amounts["rows"] += 1
        amounts["sum"] += value
        name = value_bin(value)
        amounts["by_value"][name] = amounts["by_value"].get(name, 0) + 1


def value_bin(value: float) -> str:
    """Return the entry of a second score in a histogram.

    >>> value_bin(-0.5), value_bin(2.7), value_bin(31.0)
    ('below 0', '2', '10 or more')
    """
    if value < 0:
        return "below 0"
    return f"{_HIGHEST_BIN} or more" if value >= _HIGHEST_BIN else str(math.floor(value))


_PREPARED: dict[str, Callable[..., Built]] = {
    "identify_model": identify_model,
    "fetch_model": fetch_model,
    "join_published": join_published,
    "no_model": no_model,
}


@versioned("gather_scorers", 1, unrecorded=["unrecorded"])
def gather_scorers(
    folder: Path, *, scorers: Mapping[str, Mapping[str, Any]], unrecorded: Mapping[str, Mapping[str, Any]]
) -> Built:
    """Bring the files of several scorers, each in a folder of its name.

    Args:
        scorers: for each ``prepared``, the function that brings them, and its parameters that are recorded.
        unrecorded: the other parameters of each.

    Returns:
        Statistics: those of each by name, as ``scorers``.
    """
    statistics = {}
    for name, given in scorers.items():
        (folder / name).mkdir()
        rest = {key: value for key, value in given.items() if key != "prepared"}
        built = _PREPARED[given["prepared"]](folder / name, **rest, **unrecorded[name])
        statistics[name] = dict(built.statistics)
    return Built({"scorers": statistics})


def plan_scorers(planned: Mapping[str, Artifact]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of `gather_scorers` for planned artifacts by name: ``scorers`` and ``unrecorded``."""
    recorded: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, artifact in planned.items():
        recipe = artifact.recipe
        assert recipe is not None, "a planned artifact"
        recorded[name] = {
            "prepared": recipe.name,
            **_only(recipe.parameters, set(recipe.parameters) - recipe.unrecorded),
        }
        others[name] = _only(recipe.parameters, recipe.unrecorded)
    return recorded, others


def _only(parameters: Mapping[str, Any], names: set[str] | frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name in names}


def scorer_in(gathered: Artifact, name: str) -> Artifact:
    """Return one of the scorers that `gather_scorers` brought, as if it were an artifact of its own."""
    assert gathered.folder is not None, "a made artifact has a folder"
    files = {
        file.removeprefix(f"{name}/"): entry
        for file, entry in gathered.ledger["files"].items()
        if file.startswith(f"{name}/")
    }
    statistics = cast(Mapping[str, Any], gathered.statistics["scorers"])[name]
    digest = value_digest([{file: entry["sha256"] for file, entry in sorted(files.items())}, statistics])
    ledger = {**gathered.ledger, "files": files, "statistics": statistics, "root_digest": digest}
    return replace(gathered, folder=gathered.folder / name, ledger=ledger)


class SecondCounts(TypedDict, total=False):
    """What the statistics of scored parts have where there are second scores: amounts by name and source."""

    second_scores: dict[str, dict[str, SecondAmounts]]


def second_metrics(counts: Mapping[str, Mapping[str, SecondAmounts]]) -> dict[str, dict[str, object]]:
    """Return mean and histogram of each second score, over all sources."""
    metrics: dict[str, dict[str, object]] = {}
    for name, by_source in counts.items():
        total = add_statistics(by_source.values())
        metrics[name] = {"mean": total["sum"] / max(1, total["rows"]), "by_value": total["by_value"]}
    return metrics


def second_table(
    lines: Sequence[Mapping[str, object]], counts: Mapping[str, Mapping[str, SecondAmounts]]
) -> list[dict[str, object]]:
    """Return the lines of a table by ``source`` with the mean of each second score in a column ``NAME_mean``.

    A line of no single source, as that of all, has the mean over all.
    """
    wider = []
    for line in lines:
        means = {}
        for name, by_source in counts.items():
            source = str(line["source"])
            amounts = by_source[source] if source in by_source else add_statistics(by_source.values())
            means[f"{name}_mean"] = amounts["sum"] / max(1, amounts["rows"])
        wider.append({**line, **means})
    return wider
