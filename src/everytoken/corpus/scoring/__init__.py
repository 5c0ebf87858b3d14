"""Safety scores of documents: six classes 0 (harmless) to 5, from a model or from a table that somebody published.

`score` scores the documents of a part, each id once, by an `embedded` or a `transformer` scorer; `published` joins
scores from parquet files; `unscored` leaves documents without; `classifications` makes the table that a join reads.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.corpus.scoring.audit import PAGE_FILE, AuditParameters, audit_lines, draw_audit, write_audit
    from everytoken.corpus.scoring.audit_report import REPORT_FILE, report_labels, report_lines
    from everytoken.corpus.scoring.classifications import (
        SCORES_BY_ADDRESS,
        SCORES_BY_ID,
        SCORES_BY_USE,
        ClassificationStatistics,
        collect_classifications,
    )
    from everytoken.corpus.scoring.embedded import (
        EmbeddedScorer,
        embedded_classes,
        identify_model,
        require_embedded,
    )
    from everytoken.corpus.scoring.loading import require_device
    from everytoken.corpus.scoring.model_files import HubCode, HubModel, ModelFolder, fetch_model, model_identity
    from everytoken.corpus.scoring.one_score_per_id import ScorerCounts
    from everytoken.corpus.scoring.published import PublishedScorer, join_part, join_published, require_scores_known
    from everytoken.corpus.scoring.report import ALL_SOURCES, class_name, row_counts, score_table
    from everytoken.corpus.scoring.score import score_part
    from everytoken.corpus.scoring.second_scores import (
        FIRST,
        ScoreName,
        SecondClassifier,
        SecondCounts,
        SecondScorer,
        gather_scorers,
        join_part_with_second,
        leave_unscored_with_second,
        plan_scorers,
        score_part_with_second,
        scorer_in,
        second_metrics,
        second_table,
    )
    from everytoken.corpus.scoring.transformer import TransformersScorer, require_fit, transformers_scorer
    from everytoken.corpus.scoring.unscored import NoScorer, leave_unscored, no_model

__getattr__, __dir__ = exports(__name__, __file__)
