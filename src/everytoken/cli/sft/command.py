"""The commands ``everytoken sft ...``: prompts, and a cited and an uncited answer of each, as chats for finetuning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.cli.listing import ListedCommands
from everytoken.cli.reflections import (
    ENV_OPTION,
    PARAMS_OPTION,
    RANKS_OPTION,
    WAIT_OPTION,
    RanksProject,
    chosen_ranks,
    opened_project,
    progress_lines,
    start_ranks,
)

if TYPE_CHECKING:
    from everytoken.reflections.sft import SftPlan
    from everytoken.shards import Artifact

_COMMAND = re.compile(r"everytoken (?:reflections|sft) ([a-z]+)(?: --run [^\s,).]+)?")


@click.group("sft", cls=ListedCommands)
def sft() -> None:
    """Make post-training data: answer prompts, and write them as chats.

    Example:
      everytoken sft prompts --env test
      everytoken sft submit --env test --wait
      everytoken sft merge --env test
    """


@dataclass(frozen=True)
class _Project(RanksProject):
    """The project, and the ranks of its answers."""

    @property
    def root(self) -> Path:
        """Folder of the answers."""
        from everytoken.datasets import DatasetPaths

        return DatasetPaths(self.context.config_loader["catalog"])["sft_replies"]

    def prompts(self) -> Artifact:
        """Return the prompts that were drawn."""
        if not self.catalog.exists("sft_prompts"):
            raise click.ClickException("there are no prompts yet. Draw them: everytoken sft prompts")
        found: Artifact = self.catalog.load("sft_prompts")
        return found

    def plan(self) -> SftPlan:
        """Return the answers as the node of the pipeline plans them."""
        from everytoken.pipelines.sft.nodes import ask_for_answers

        return ask_for_answers(self.prompts(), self.context.params["sft"], self.context.params["reflection"])


@contextmanager
def _opened(env: str | None, given: dict[str, Any] | None = None) -> Iterator[_Project]:
    """Give the project; the commands that its errors name get the options of this one."""
    with opened_project(env, given, lambda message: _with_options(message, env)) as (context, catalog):
        yield _Project(context, catalog)


def _with_options(message: str, env: str | None) -> str:
    """Return a message whose commands are those of this group, with ``--env``."""
    option = "" if env is None else f" --env {env}"
    return _COMMAND.sub(lambda found: f"everytoken sft {found[1]}{option}", message)


@sft.command("prompts")
@ENV_OPTION
@PARAMS_OPTION
def draw_prompts(env: str | None, params: dict[str, Any]) -> None:
    """Draw the prompts of all pools, and print what became of their rows.

    Example:
      everytoken sft prompts --env test
    """
    from everytoken.pipelines.sft.nodes import find_pools, make_prompts
    from everytoken.reflections.sft import PromptStatistics

    with _opened(env, params) as opened:
        given = opened.context.params
        opened.catalog.save("sft_files", find_pools(given["sft"]))
        files = opened.catalog.load("sft_files")
        opened.catalog.save("sft_prompts", make_prompts(files, given["sft"], given["ingestion"]))
        found = opened.prompts().statistics_as(PromptStatistics)
        click.echo(f"{found['n']:,} prompts, seed {found['seed']}, SHA-256 {found['content_sha256'][:16]}")
        for name, pool in found["pools"].items():
            aside = ", ".join(f"{count:,} {reason}" for reason, count in pool["set_aside"].items()) or "none"
            drawn = f"{name}: {pool['drawn']:,} of {pool['fit']:,} that fit"
            click.echo(f"{drawn}; {pool['rows']:,} rows, set aside: {aside}")


@sft.command("submit")
@ENV_OPTION
@PARAMS_OPTION
@RANKS_OPTION
@WAIT_OPTION
def submit_answers(env: str | None, params: dict[str, Any], ranks: str | None, wait: bool) -> None:
    """Start a process for each rank that is not complete; they run after this command has ended.

    Example:
      everytoken sft submit --ranks 0-3 --wait
    """
    from everytoken.reflections.ranks import submit

    with _opened(env, params) as opened:
        start_ranks(submit, opened, ranks, wait)


@sft.command("rerun")
@ENV_OPTION
@PARAMS_OPTION
@RANKS_OPTION
@WAIT_OPTION
def rerun_answers(env: str | None, params: dict[str, Any], ranks: str | None, wait: bool) -> None:
    """Submit the ranks that are not complete, and those with failures; only what is missing is asked.

    Example:
      everytoken sft rerun --wait
    """
    from everytoken.reflections.ranks import rerun

    with _opened(env, params) as opened:
        start_ranks(rerun, opened, ranks, wait)


@sft.command("status")
@ENV_OPTION
def status_answers(env: str | None) -> None:
    """Show how far the ranks are.

    Example:
      everytoken sft status
    """
    from everytoken.reflections.ranks import progress_of

    with _opened(env) as opened:
        click.echo("\n".join(progress_lines(progress_of(opened.root))))


@sft.command("cancel")
@ENV_OPTION
@RANKS_OPTION
def cancel_answers(env: str | None, ranks: str | None) -> None:
    """End the processes of ranks; what they have written stays.

    Example:
      everytoken sft cancel --ranks 0-3,7
    """
    from everytoken.reflections.ranks import cancel

    with _opened(env) as opened:
        count = len(cancel(opened.root, chosen_ranks(ranks)))
        click.echo(_with_options(f"{count:,} ranks cancelled; everytoken sft submit resumes them", env))


@sft.command("forget")
@click.option(
    "--ids",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="File with a source_id a line.",
)
@ENV_OPTION
def forget_answers(ids: Path, env: str | None) -> None:
    """Remove the answers of prompts; their rows count as excluded, and no chat is made of them.

    Example:
      everytoken sft forget --ids ids.txt
    """
    from everytoken.reflections.ranks import forget_rows
    from everytoken.reflections.sft import PROMPTS_FILE, SFT_RUN, PromptStatistics, read_prompts

    try:
        wanted = set(ids.read_text(encoding="utf-8").splitlines()) - {""}
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{ids} is no UTF-8 at byte {error.start}. Save it as UTF-8") from error
    with _opened(env) as opened:
        prompts = opened.prompts()
        count = prompts.statistics_as(PromptStatistics)["n"]
        found = {row.number: row.doc_id for row in read_prompts(prompts.path(PROMPTS_FILE), 0, count)}
        rows = {number for number, source_id in found.items() if source_id in wanted}
        if unknown := sorted(wanted - set(found.values())):
            raise click.ClickException(f"{ids}: no prompt has the id {unknown[0]!r}. Correct the ids")
        forgotten = forget_rows(opened.root, rows, run=SFT_RUN)
        told = f"{forgotten.rows:,} answers removed; write the chats again: everytoken sft merge"
        click.echo(_with_options(told, env))


@sft.command("merge")
@ENV_OPTION
@PARAMS_OPTION
def merge_answers(env: str | None, params: dict[str, Any]) -> None:
    """Write the answers of all ranks as chats: train files, stats.json, and what was set aside.

    Example:
      everytoken sft merge --env test
    """
    from everytoken.pipelines.sft.nodes import make_chats
    from everytoken.reflections.merging import list_replies
    from everytoken.reflections.sft import ChatExport

    with _opened(env, params) as opened:
        given = opened.context.params
        chats = make_chats(list_replies(opened.root), opened.prompts(), given["sft"], given["reflection"])
        opened.catalog.save("sft_chats", chats)
        made = opened.catalog.load("sft_chats")
        found = made.statistics_as(ChatExport)
        aside = ", ".join(f"{count:,} {reason}" for reason, count in found["set_aside"].items()) or "none"
        click.echo(f"{made.folder}: {found['rows_in']:,} prompts, {found['rows_out']:,} chats; set aside: {aside}")
        for fact, count in found["warnings"].items():
            click.echo(f"warning: {count:,} chats have the value of {fact}, which post-training skips")
