"""Annotation: each distinct document of a part is scored once, and the score copied onto its duplicates."""

from typing import Any

from plotly.graph_objects import Figure

from everytoken.corpus.scoring.score import score_part
from everytoken.corpus.statistics import add_statistics
from everytoken.parameters import AnnotationParameters
from everytoken.reports import score_figure
from everytoken.shards import Shards


def score_documents(documents: Shards, parameters: AnnotationParameters) -> Shards:
    """Append safety_score and safety_probs to every document."""
    return documents.map(score_part, scorer=parameters.scorer, model=None)


def report_scores(scored_documents: Shards) -> tuple[dict[str, Any], Figure]:
    """Return the two distributions of classes (over rows, and over what was scored) and their figure."""
    total = add_statistics(scored_documents.statistics)
    by_source = total.pop("by_source")
    rows = {source: counts["rows_by_class"] for source, counts in by_source.items()}
    scored = {source: counts["distinct_by_class"] for source, counts in by_source.items()}
    classes = {"rows_by_class": add_statistics(rows.values()), "scored_by_class": add_statistics(scored.values())}
    return {**total, **classes}, score_figure(rows, scored)
