"""Commands about generation runs: `everytoken reflections` and `everytoken prompts`."""

from everytoken.cli.reflections.prompt_commands import prompts
from everytoken.cli.reflections.run_commands import (
    RANKS_OPTION,
    WAIT_OPTION,
    chosen_ranks,
    progress_lines,
    reflections,
)
from everytoken.cli.reflections.run_project import ENV_OPTION, PARAMS_OPTION

__all__ = [
    "ENV_OPTION",
    "PARAMS_OPTION",
    "RANKS_OPTION",
    "WAIT_OPTION",
    "chosen_ranks",
    "progress_lines",
    "prompts",
    "reflections",
]
