"""Ranks: a run cut into pieces that processes make, each in a folder of its own, and that survive a kill."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.ranks.annotated_rows import row_groups, sidecar_batches, sidecar_rows
    from everytoken.reflections.ranks.contents import (
        COUNTED_TOKENS,
        LineDigests,
        RankContent,
        damaged_lines,
        failed_rows,
        read_content,
    )
    from everytoken.reflections.ranks.folders import RankFolder, rank_folders
    from everytoken.reflections.ranks.forecasts import (
        PUBLISHED_GPU_HOURS,
        PUBLISHED_ROWS,
        PUBLISHED_TOKENS_OF_A_REPLY,
        Forecast,
        forecast,
    )
    from everytoken.reflections.ranks.forgetting import ForgottenRows, follow_sidecar, forget_rows
    from everytoken.reflections.ranks.generation import GenerationPlan, RankQuestions, ask_rank
    from everytoken.reflections.ranks.progress import RankProgress, RunProgress, progress_of
    from everytoken.reflections.ranks.rank_process import RankWork
    from everytoken.reflections.ranks.requests_of_rows import line_without_reply
    from everytoken.reflections.ranks.result_lines import done_rows, numbered_lines
    from everytoken.reflections.ranks.row_range import rows_of
    from everytoken.reflections.ranks.run_lock import RUN_CONFIG, lock_run, read_run_config
    from everytoken.reflections.ranks.verbs import RankedWork, cancel, ranks_of, require_idle, rerun, submit
    from everytoken.reflections.ranks.verify import find_run_folders, run_folder_checks

__getattr__, __dir__ = exports(__name__, __file__)
