"""Commands about generation runs: `everytoken reflections` and `everytoken prompts`."""

from everytoken.cli.reflections.prompt_commands import prompts
from everytoken.cli.reflections.run_commands import reflections

__all__ = ["prompts", "reflections"]
