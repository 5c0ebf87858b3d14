"""Commands about generation runs: `everytoken reflections` and `everytoken prompts`."""

from everytoken.cli.reflections.prompt_commands import prompts
from everytoken.cli.reflections.run_commands import (
    RANKS_OPTION,
    WAIT_OPTION,
    chosen_ranks,
    progress_lines,
    reflections,
    start_ranks,
)
from everytoken.cli.reflections.run_project import ENV_OPTION, PARAMS_OPTION, RanksProject, opened_project

__all__ = [
    "ENV_OPTION",
    "PARAMS_OPTION",
    "RANKS_OPTION",
    "WAIT_OPTION",
    "RanksProject",
    "chosen_ranks",
    "opened_project",
    "progress_lines",
    "prompts",
    "reflections",
    "start_ranks",
]
