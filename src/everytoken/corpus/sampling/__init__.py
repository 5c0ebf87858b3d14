"""Stratified subsampling: strata, held-out documents, the formulas, the split of each part, the report."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.corpus.sampling.formulas import SubsamplingParameters, estimated_tokens, sum_tokens, totals_of
    from everytoken.corpus.sampling.held_out import HeldOutParameters, HeldOutRule
    from everytoken.corpus.sampling.report import (
        DrawnParts,
        DrawnSums,
        amounts_by_score,
        amounts_by_stratum,
        check_draw_conservation,
        limit,
        metadata,
        rows_by_score,
        strata_table,
    )
    from everytoken.corpus.sampling.scored_recipes import is_scored
    from everytoken.corpus.sampling.split_files import SPLIT_FILE, SplitFileStatistics, split_file_part
    from everytoken.corpus.sampling.splits import (
        DrawnCounts,
        EstimatedTokens,
        HeldOutStatistics,
        SplitStatistics,
        estimate_part_tokens,
        select_held_out,
        select_split,
    )
    from everytoken.corpus.sampling.unscored_splits import (
        UnscoredCounts,
        check_split_conservation,
        split_unscored,
    )

__getattr__, __dir__ = exports(__name__, __file__)
