"""Decontamination: documents that contain word n-grams of evaluation sets."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.corpus.decontamination.contamination import (
        contaminated_rows,
        count_documents,
        judge_part,
    )
    from everytoken.corpus.decontamination.evaluation_files import Decontamination, EvaluationFile
    from everytoken.corpus.decontamination.evaluation_index import index_evaluation, index_nothing
    from everytoken.corpus.decontamination.matches import find_matches
    from everytoken.corpus.decontamination.report import (
        ContaminationReport,
        contamination_metrics,
        contamination_report,
    )

__getattr__, __dir__ = exports(__name__, __file__)
