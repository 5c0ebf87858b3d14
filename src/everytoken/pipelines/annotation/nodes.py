"""Annotation: each distinct document of a part is scored once, by a model or by a published table."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, TypeVar, cast

import pandas as pd
from plotly.graph_objects import Figure

from everytoken.corpus import NOTHING_EXPECTED, ClassesBySource, ExpectParameters, add_statistics
from everytoken.corpus.ingestion import Upstream
from everytoken.corpus.sampling import SubsamplingParameters
from everytoken.corpus.scoring import (
    FIRST,
    ClassificationStatistics,
    EmbeddedScorer,
    NoScorer,
    PublishedScorer,
    ScorerCounts,
    SecondClassifier,
    SecondCounts,
    SecondScorer,
    TransformersScorer,
    collect_classifications,
    fetch_model,
    gather_scorers,
    identify_model,
    join_part,
    join_part_with_second,
    join_published,
    leave_unscored,
    leave_unscored_with_second,
    model_identity,
    no_model,
    plan_scorers,
    require_fit,
    require_scores_known,
    row_counts,
    score_part,
    score_part_with_second,
    score_table,
    scorer_in,
    second_metrics,
    second_table,
)
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.parameters import AnnotationParameters
from everytoken.reports import score_figure
from everytoken.shards import Artifact, Shards, plan_artifact

logger = logging.getLogger(__name__)

_Scorer = TypeVar("_Scorer", bound=SecondScorer | TransformersScorer)


def find_score_files(parameters: AnnotationParameters) -> dict[str, Upstream]:
    """Return where published scores are; saving it lists the files. Nothing for a scorer that is a model."""
    scorer = parameters.scorer
    return {"scores": scorer.upstream} if isinstance(scorer, PublishedScorer) else {}


def prepare_scorer(
    documents: Shards, score_files: dict[str, list[UpstreamFile]], parameters: AnnotationParameters
) -> Artifact:
    """Bring the model, or join the published scores to the documents; with the models of second scores, if any."""
    first = _planned_scorer(documents, score_files, parameters)
    second = {
        name: _planned_model(scorer, parameters, any_labels=True)
        for name, scorer in parameters.second_scores.items()
        if isinstance(scorer, TransformersScorer)
    }
    if not second:
        return first
    scorers, unrecorded = plan_scorers({FIRST: first, **second})
    return plan_artifact(gather_scorers, scorers=scorers, unrecorded=unrecorded)


def _planned_scorer(
    documents: Shards, score_files: dict[str, list[UpstreamFile]], parameters: AnnotationParameters
) -> Artifact:
    scorer = parameters.scorer
    if isinstance(scorer, NoScorer):
        return plan_artifact(no_model)
    if isinstance(scorer, EmbeddedScorer):
        return plan_artifact(identify_model, version=scorer.version)
    if isinstance(scorer, TransformersScorer):
        return _planned_model(scorer, parameters)
    files = score_files["scores"]
    digests = [file.planned_digest() for file in files]
    return plan_artifact(join_published, documents=documents, files=files, digests=digests, memory=parameters.memory)


def _planned_model(
    scorer: TransformersScorer, parameters: AnnotationParameters, *, any_labels: bool = False
) -> Artifact:
    identity, fetched = model_identity(scorer.model), Path(parameters.fetched)
    return plan_artifact(fetch_model, identity=identity, model=scorer.model, fetched=fetched, any_labels=any_labels)


def score_documents(documents: Shards, scorer: Artifact, parameters: AnnotationParameters) -> Shards:
    """Append safety_score and safety_probs to every document, and a column for each second score.

    Without a scorer the first two say that there is no score.
    """
    first, second = _first(scorer, parameters), parameters.second_scores
    models = {name: scorer_in(scorer, name) for name, one in second.items() if isinstance(one, TransformersScorer)}
    for name, model in models.items():
        classifier = cast(SecondClassifier, second[name])
        require_fit(classifier, model)
        classifier.label_number(model)
    further = {"second": {name: _without_place(one) for name, one in second.items()}, "models": models}
    if isinstance(parameters.scorer, NoScorer):
        return documents.map(leave_unscored_with_second, **further) if second else documents.map(leave_unscored)
    if isinstance(parameters.scorer, PublishedScorer):
        require_scores_known(first, documents, parameters.scorer.max_missing_share)
        if second:
            return documents.map(join_part_with_second, published=first, **further)
        return documents.map(join_part, published=first)
    chosen = parameters.scorer
    if isinstance(chosen, TransformersScorer):
        require_fit(chosen, first)
    if second:
        return documents.map(score_part_with_second, scorer=_without_place(chosen), model=first, **further)
    return documents.map(score_part, scorer=_without_place(chosen), model=first)


def _first(scorer: Artifact, parameters: AnnotationParameters) -> Artifact:
    gathered = any(isinstance(one, TransformersScorer) for one in parameters.second_scores.values())
    return scorer_in(scorer, FIRST) if gathered else scorer


def _without_place(scorer: _Scorer) -> _Scorer:
    return cast(_Scorer, scorer.without_path()) if isinstance(scorer, TransformersScorer) else scorer


def classify_documents(scored_documents: Shards, parameters: AnnotationParameters) -> Artifact:
    """Collect the score of each distinct id, first in plan order: the table that scores this corpus again."""
    return plan_artifact(
        collect_classifications, documents=scored_documents, near=parameters.near, memory=parameters.memory
    )


def report_scores(
    scored_documents: Shards,
    scorer: Artifact,
    classifications: Artifact,
    parameters: AnnotationParameters,
    subsampling: SubsamplingParameters,
    expect: ExpectParameters = NOTHING_EXPECTED,
) -> tuple[dict[str, object], dict[str, object], pd.DataFrame]:
    """Check that as many were scored as expected; return counts and the work that deduplication saved, what scored, and
    both distributions with those near a threshold.
    """
    counted = add_statistics(scored_documents.statistics_as(ClassesBySource))
    by_source, of_ids = counted["by_source"], classifications.statistics_as(ClassificationStatistics)
    of_scorer = add_statistics(scored_documents.statistics_as(ScorerCounts))
    second = add_statistics(scored_documents.statistics_as(SecondCounts)).get("second_scores", {})
    shown_elsewhere = ("by_source", "scored_with", "second_scores")
    total: dict[str, Any] = {name: n for name, n in counted.items() if name not in shown_elsewhere}
    metadata: dict[str, object] = {
        "scorer": parameters.scorer.model_dump(mode="json"),
        "scorer_files": dict(_first(scorer, parameters).statistics),
        "texts_scored_with": of_scorer.get("scored_with", {}),
    }
    without_score = of_ids["without_score"]
    counts = row_counts(by_source, without_score)
    expect.check(scored_rows=counts["rows_scored"], scored_ids=of_ids["classifications"])
    table = score_table(by_source, of_ids["by_source"], subsampling.annotation_threshold, without_score)
    rows = {source: counts["rows_by_class"] for source, counts in by_source.items()}
    once = {source: counts["distinct_by_class"] for source, counts in by_source.items()}
    metrics: dict[str, object] = {
        **total,
        "counts": counts,
        "rows_by_class": add_statistics(rows.values()),
        "distinct_by_class": add_statistics(once.values()),
        "classifications": {name: value for name, value in of_ids.items() if name != "by_source"},
    }
    if second:
        metrics["second_scores"] = second_metrics(second)
        metadata["second_scorers"] = parameters.model_dump(mode="json")["second_scores"]
        table = second_table(table, second)
    if "scored" in total:
        metrics["saved_share"] = 1 - total["scored"] / max(1, total["rows"])
    if total.get("words"):
        metrics["unknown_words_share"] = share = total["unknown_words"] / total["words"]
        if share > parameters.max_unknown_words:
            logger.warning(
                "warning: the scorer %s knows English, and not %.1f %% of the %s words that it read "
                "(annotation.max_unknown_words allows %.0f %%): its scores say little. Set annotation.scorer to "
                "{kind: none} with subsampling.annotation_threshold: null, or choose a classifier of the language.",
                parameters.scorer.kind,
                100 * share,
                f"{total['words']:,}",
                100 * parameters.max_unknown_words,
            )
    return metrics, metadata, _with_whole_counts(pd.DataFrame(table))


def _with_whole_counts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose counts stay whole numbers although some cells are empty."""
    return table.astype({name: "Int64" for name in ("scored_by_id", "without_score") if name in table})


def plot_scores(score_report: pd.DataFrame) -> Figure:
    """Show the classes of each source."""
    return score_figure(
        [{str(name): value for name, value in line.items()} for line in score_report.to_dict("records")]
    )
