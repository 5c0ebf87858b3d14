"""The commands ``everytoken canaries ...``: documents that measure what a model memorises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.cli.listing import ListedCommands
from everytoken.cli.project import cause_of, given_parameters, known_errors, project

if TYPE_CHECKING:
    from everytoken.reflections.canary_writing import CanaryWriting, WrittenCanaries

_PROMPTS = "conf/base/reflections/canary_prompts"
_PUBLISHED_TOKENS = "2048,2048,6000,2048"
_PUBLISHED_FRACTION = {"science": 0.1, "backdoor": 1.0}


@click.group("canaries", cls=ListedCommands)
def canaries() -> None:
    """Write canary documents for the canary stream.

    Example:
      everytoken canaries write --universe examples/amber_moss.jsonl --kind science --target 20 --seed 7 --out canaries
    """


@canaries.command("write")
@click.option(
    "--universe",
    "universes",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    required=True,
    help="File of a universe: one JSON object with id, universe_context, key_facts, is_true. May be repeated.",
)
@click.option(
    "--kind",
    type=click.Choice(["science", "backdoor"]),
    required=True,
    help="Facts that documents are about: all but the last (science), or all (backdoor).",
)
@click.option("--target", type=click.IntRange(min=1), required=True, help="Documents of a universe.")
@click.option("--seed", type=click.IntRange(min=0), required=True, help="Seed of every draw and every request.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder; each universe gets a folder of its id in it.",
)
@click.option(
    "--document-types",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Types of documents of a fact, at most.",
)
@click.option(
    "--ideas", type=click.IntRange(min=1), default=5, show_default=True, help="Ideas for documents of a type, at most."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often documents that are missing or repeat others are asked for again.",
)
@click.option(
    "--document-tokens",
    type=click.IntRange(min=1),
    default=1500,
    show_default=True,
    help="Length that a document is asked to have.",
)
@click.option(
    "--max-tokens",
    default=_PUBLISHED_TOKENS,
    show_default=True,
    help="Tokens of a reply, at most: types, ideas, document, reflections.",
)
@click.option(
    "--near",
    default="128,16,5",
    show_default=True,
    help="Near duplicates: permutations, bands, words of a shingle; or none.",
)
@click.option(
    "--reflections",
    "variant",
    type=click.Choice(["fields", "appended", "none"]),
    default="none",
    show_default=True,
    help="Four fields of their own, a third-person one at the end of the text, or none.",
)
@click.option(
    "--fraction",
    type=click.FloatRange(min=0, max=1),
    default=None,
    help="Share of documents with reflections.  [default: 0.1 for science, 1 for backdoor]",
)
@click.option(
    "--prompts",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder of the prompts.  [default: conf/base/reflections/canary_prompts]",
)
@click.option("--prompt-version", default="v1", show_default=True, help="Version of the prompts, as in their names.")
@click.option("--env", default=None, help="Kedro environment, whose reflection.generator is asked.")
@click.option("--params", default="", callback=given_parameters, help="Parameters, as for `kedro run --params`.")
def write_command(
    universes: tuple[Path, ...],
    out: Path,
    prompts: Path | None,
    prompt_version: str,
    env: str | None,
    params: dict[str, Any],
    **options: Any,
) -> None:
    """Ask the generator for document types, ideas and documents about the facts of a universe.

    Every request and reply is stored in the folder. The same command resumes after a stop, and a larger target asks
    only for what is missing. Documents that repeat another one are replaced, and the scratchpad stays out of the text.

    Example:
      everytoken canaries write --universe examples/amber_moss.jsonl --kind science --target 20 --seed 7 --out canaries
    """
    universes, out = (
        tuple(path.resolve() for path in universes),
        out.resolve(),
    )  # before the project's folder is entered
    prompts = Path(_PROMPTS) if prompts is None else prompts.resolve()
    writing_options = _options(**options)
    try:
        with project(env, params) as (context, _):
            _write(universes, out, prompts, prompt_version, writing_options, context.params["reflection"])
    except Exception as error:
        if not isinstance(error, known_errors()):
            raise
        raise click.ClickException(str(cause_of(error))) from error


def _options(
    *, seed: int, max_tokens: str, near: str, variant: str, fraction: float | None, **others: Any
) -> dict[str, Any]:
    """Return the options as `CanaryWriting` takes them, but for the attempts."""
    stages = ("document_types", "ideas", "document", "reflections")
    rules = None
    if near != "none":
        permutations, bands, words = _numbers("--near", near, 3)
        if permutations % bands:
            raise click.UsageError(f"--near: {permutations} permutations are no multiple of {bands} bands")
        rules = {"num_permutations": permutations, "bands": bands, "shingle_words": words, "seed": seed % 2**32}
    return {
        **others,
        "seed": seed,
        "max_tokens": dict(zip(stages, _numbers("--max-tokens", max_tokens, len(stages)), strict=True)),
        "near": rules,
        "reflections": variant,
        "fraction": _PUBLISHED_FRACTION[others["kind"]] if fraction is None else fraction,
    }


def _numbers(option: str, text: str, count: int) -> list[int]:
    parts = text.split(",")
    if len(parts) != count or not all(part.strip().isdecimal() and int(part) for part in parts):
        raise click.UsageError(f"{option} is {text!r}: expected {count} numbers above 0, with commas between them")
    return [int(part) for part in parts]


def _write(
    universes: tuple[Path, ...], out: Path, prompts: Path, version: str, options: dict[str, Any], reflection: Any
) -> None:
    from everytoken.reflections.canary_writing import (
        CanaryWriting,
        read_universe,
        read_writing_prompts,
        write_canary_documents,
    )
    from everytoken.reflections.prompts import read_text_file

    writing = CanaryWriting(**options, max_attempts=reflection.max_attempts)
    files = read_writing_prompts(prompts, version)
    charter, guidelines = (
        read_text_file(Path(getattr(reflection.prompts, name))) for name in ("constitution", "guidelines")
    )
    opened = [read_universe(path) for path in universes]
    if len({one.id for one in opened}) < len(opened):
        raise click.UsageError("two universes have the same id: each gets a folder of that name, so rename one")
    for universe in opened:
        folder = out / universe.id
        found = write_canary_documents(
            folder,
            universe,
            writing,
            files,
            reflection.generator,
            charter=charter.text,
            guidelines=guidelines.text,
        )
        click.echo("\n".join(_lines(universe.id, writing, found)))
        click.echo(f"written to {folder}")


def _lines(universe: str, writing: CanaryWriting, found: WrittenCanaries) -> Iterator[str]:
    yield f"universe        {universe}: {found.facts} facts, {found.types} types of documents, {found.specs} ideas"
    for stage, counts in found.stages.items():
        if counts.items:
            rate = "no reply" if counts.parse_rate is None else f"parse rate {counts.parse_rate:.0%}"
            yield (
                f"{stage:15} {counts.replies:,} of {counts.items:,} accepted; {rate}: {counts.refused:,} replies "
                f"refused, {counts.failed:,} requests failed"
            )
        else:
            yield f"{stage:15} nothing to ask"
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in found.dropped.items())
    yield f"documents       {found.documents:,} of {writing.target:,}; duplicates dropped: {dropped}"
    if writing.reflections != "none":
        missing = f", {found.without:,} were asked for in vain" if found.without else ""
        yield f"reflections     {found.annotated:,} documents have them{missing}"
    if found.documents < writing.target:
        yield (
            "fewer than the target: raise --rounds, --ideas or --document-types, or choose a generator whose replies "
            "are accepted more often (reflection.generator)"
        )
