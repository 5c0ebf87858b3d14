"""Annotation: each distinct document of a part is scored once, by a model or by a published table."""

from __future__ import annotations

import logging
from typing import Any

import pandas as pd
from plotly.graph_objects import Figure

from everytoken.corpus.scoring.classifications import collect_classifications
from everytoken.corpus.scoring.embedded import EmbeddedScorer, identify_model
from everytoken.corpus.scoring.published import PublishedScorer, join_part, join_published, require_scores_known
from everytoken.corpus.scoring.report import score_table
from everytoken.corpus.scoring.score import score_part
from everytoken.corpus.statistics import add_statistics
from everytoken.corpus.upstreams.source import Upstream, UpstreamFile
from everytoken.parameters import AnnotationParameters, SubsamplingParameters
from everytoken.reports import score_figure
from everytoken.shards import Artifact, Shards, plan_artifact

logger = logging.getLogger(__name__)


def find_score_files(parameters: AnnotationParameters) -> dict[str, Upstream]:
    """Return where published scores are; saving it lists the files. Nothing for a scorer that is a model."""
    scorer = parameters.scorer
    return {"scores": scorer.upstream} if isinstance(scorer, PublishedScorer) else {}


def prepare_scorer(
    documents: Shards, score_files: dict[str, list[UpstreamFile]], parameters: AnnotationParameters
) -> Artifact:
    """Bring the model, or join the published scores to the documents."""
    scorer = parameters.scorer
    if isinstance(scorer, EmbeddedScorer):
        return plan_artifact(identify_model, version=scorer.version)
    files = score_files["scores"]
    digests = [file.planned_digest() for file in files]
    return plan_artifact(join_published, documents=documents, files=files, digests=digests, memory=parameters.memory)


def score_documents(documents: Shards, scorer: Artifact, parameters: AnnotationParameters) -> Shards:
    """Append safety_score and safety_probs to every document."""
    if isinstance(parameters.scorer, PublishedScorer):
        require_scores_known(scorer, documents, parameters.scorer.max_missing_share)
        return documents.map(join_part, published=scorer)
    return documents.map(score_part, scorer=parameters.scorer, model=scorer)


def classify_documents(scored_documents: Shards, parameters: AnnotationParameters) -> Artifact:
    """Collect the score of each distinct id, first in plan order: the table that scores this corpus again."""
    return plan_artifact(
        collect_classifications, documents=scored_documents, near=parameters.near, memory=parameters.memory
    )


def report_scores(
    scored_documents: Shards, classifications: Artifact, subsampling: SubsamplingParameters
) -> tuple[dict[str, Any], pd.DataFrame, Figure]:
    """Return counts, the work that deduplication saved, both distributions with those near a threshold, the figure."""
    total = add_statistics(scored_documents.statistics)
    scored_with = total.pop("scored_with", {})
    for environment, texts in scored_with.items():
        logger.info("%d texts were scored with %s", texts, environment)
    by_source = total.pop("by_source")
    of_ids = dict(classifications.statistics)
    table = score_table(by_source, of_ids.pop("by_source"), subsampling.annotation_threshold)
    rows = {source: counts["rows_by_class"] for source, counts in by_source.items()}
    once = {source: counts["distinct_by_class"] for source, counts in by_source.items()}
    metrics = {
        **total,
        "rows_by_class": add_statistics(rows.values()),
        "distinct_by_class": add_statistics(once.values()),
        "classifications": of_ids,
    }
    if "scored" in total:
        metrics["saved_share"] = 1 - total["scored"] / max(1, total["rows"])
    return metrics, pd.DataFrame(table), score_figure(rows, once)
