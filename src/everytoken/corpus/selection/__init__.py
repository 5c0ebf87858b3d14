"""Which documents stay, and in which order: budgets, the decision for every document, the parts that follow from it."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.corpus.selection.decisions import SelectionStatistics, select
    from everytoken.corpus.selection.mixed_parts import mix_part, mixture_parts
    from everytoken.corpus.selection.mixture import MixtureParameters, MixtureRow, budgets, interleave
    from everytoken.corpus.selection.report import (
        personal_data_by_source,
        personal_data_line,
        read_counts,
        require_documents,
        selection_table,
        unread_by_source,
        unread_line,
    )
    from everytoken.corpus.selection.selected_parts import (
        TakenCounts,
        check_selection_conservation,
        dropped_part,
        select_part,
    )

__getattr__, __dir__ = exports(__name__, __file__)
