"""Commands for models: train, look at a job before it begins, exchange checkpoints with other programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from everytoken.cli.project import given_parameters, named_values, project, session_of

if TYPE_CHECKING:
    from everytoken.training import ExecutionParameters

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def opens_model(command: _Command) -> _Command:
    """Give a command the argument ``model`` and the options ``tokenizer``, ``device`` and ``threads``."""
    for decorate in (
        click.option("--threads", type=click.IntRange(1), help="Threads of the arithmetic.  [default: one a core]"),
        click.option(
            "--device",
            type=click.Choice(["cpu", "cuda"]),
            default="cpu",
            show_default=True,
            help="Device that computes.",
        ),
        click.option(
            "--tokenizer", type=_FILE, help="The tokenizer.json of the model.  [default: the one in its folder]"
        ),
        click.argument("model", type=click.Path(exists=True, path_type=Path)),
    ):
        command = decorate(command)
    return command


loops_option = click.option(
    "--loops", type=click.IntRange(1), help="Most loops of a model that loops a block.  [default: as built]"
)
template_option = click.option(
    "--template", type=_FILE, help="File with a chat template in Jinja.  [default: the model's own]"
)


def arithmetic(threads: int | None) -> ExecutionParameters:
    """Return how a model is computed: float32, with one thread a core where none are given."""
    from everytoken.training import ExecutionParameters

    return ExecutionParameters(threads=threads or len(os.sched_getaffinity(0)), matmul_precision="highest")


_CHECKPOINT_OF = {
    "training": "checkpoint",
    "pretraining": "pretrained_checkpoint",
    "finetuning": "finetuned_checkpoint",
}


@click.command("train")
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
@click.option(
    "--pipeline",
    type=click.Choice(list(_CHECKPOINT_OF)),
    default="training",
    show_default=True,
    help="Which pipeline trains.",
)
@click.option("--processes", type=click.IntRange(1), help="Processes on this machine, or on each node.")
@click.option("--nodes", type=click.IntRange(1), help="Machines; each runs torchrun on the file of --write-job.")
@click.option("--strategy", type=click.Choice(["ddp", "fsdp"]), help="Copies of the model (ddp), or shards of it.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Device that computes.")
@click.option("--params", default="", callback=given_parameters, help="Parameters, as for `kedro run --params`.")
@click.option(
    "--write-job",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Train nothing: write what every process has to know, for torchrun on several machines.",
)
def train_command(
    env: str | None, pipeline: str, params: dict[str, Any], write_job: Path | None, **distribution: Any
) -> None:
    """Train with one or many processes, as one MLflow run: `kedro run --pipelines training` with the options below.

    A run that was stopped resumes from its newest checkpoint. The samples of each step do not depend on the processes.
    The log counts the steps that are done; `everytoken trace --step` names a step by its number, and the first is 0.

    Example:
      everytoken train --params training.optimisation.seed=43
      everytoken train --processes 2
    """
    from kedro.runner import SequentialRunner

    chosen = {name: value for name, value in distribution.items() if value is not None}
    if chosen:
        group = "finetuning" if pipeline == "finetuning" else "training"
        for name, value in chosen.items():
            _set(params, (group, "distribution", name), value)
    if write_job is None:
        with session_of(env, params) as session:
            session.run(pipeline_names=[pipeline], runner=SequentialRunner())
    else:
        click.echo(_write_job(env, params, pipeline, write_job))


def _set(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise click.UsageError(f"--params sets {name} to {tree!r}, and an option sets {'.'.join(path)}: give one")
    tree[path[-1]] = value


def _write_job(env: str | None, given: dict[str, Any], pipeline: str, path: Path) -> str:
    """Write the job of a pipeline's training to ``path``; return how to run it."""
    from kedro.framework.project import pipelines

    from everytoken.training.run import nodes_command, prepare_job, write_job

    path = path.resolve()
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}", param_hint="--write-job")
    with project(env, given) as (_, catalog):
        (node,) = pipelines[pipeline].only_nodes_with_outputs(_CHECKPOINT_OF[pipeline]).nodes
        planned = node.run({name: catalog.load(name) for name in node.inputs})[_CHECKPOINT_OF[pipeline]]
        job = prepare_job(**planned.recipe.parameters)
        write_job(path, job)
    return (
        f"{path}: run {job.run[:16]}, {job.training.steps} steps of {job.training.batch_size} windows, checkpoints in "
        f"{job.folder}\n{nodes_command(job, path)}\n"
        "then, on one of them, the same command without --write-job: it finds the run finished, and records it"
    )


@click.command()
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
@click.option(
    "--vocab-size",
    type=click.IntRange(1),
    help="Tokens of the vocabulary.  [default: those of the environment's tokenizer]",
)
@click.option("--streams", default="", help="Windows by name, as compact=427681689,annotated=102772028.")
@click.option("--params", default="", callback=given_parameters, help="Parameters, as for `kedro run --params`.")
def plan(env: str | None, vocab_size: int | None, streams: str, params: dict[str, Any]) -> None:
    """Say what a job makes, and what its training takes: tokens, FLOP, memory, checkpoints. It reads no data.

    Sizes are those of what the environment has made; --vocab-size and --streams give them where nothing is made yet.

    Example:
      everytoken plan --env spp
    """
    from kedro.framework.project import pipelines

    from everytoken.configuration import groups_of, streams_of
    from everytoken.contract import contract_lines, contradictions, not_looked_up
    from everytoken.training.run import make_training_plan

    with project(env, params) as (context, catalog):
        job = pipelines["__default__"]
        groups = groups_of(job, catalog)
        click.echo("\n".join([*contract_lines(groups), *(f"to look up   {one}" for one in not_looked_up(groups))]))
        if found := list(contradictions(groups, streams_of(job))):
            raise click.ClickException("a run would be refused:\n" + "\n".join(f"- {one}" for one in found))
        if "training" not in groups:
            return
        training, tokenization = context.params["training"], context.params["tokenization"]
        sizes = _stream_sizes(streams) or _made_streams(catalog, training.streams, tokenization.seq_length)
        plan = make_training_plan(
            training.model,
            training.optimisation,
            training.data,
            training.checkpoints,
            training.distribution,
            vocab_size=vocab_size or tokenization.known_vocab_size or _vocab_size(catalog),
            seq_length=tokenization.seq_length,
            stream_sizes=sizes or None,
        )
        click.echo("\n" + "\n".join(plan.lines()))


_OUTCOMES = {"passed": "ok", "failed": "not ok", "not made": "not looked at"}


@click.command()
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
@click.option("--offline", is_flag=True, help="Ask nothing outside this machine: what needs it is not looked at.")
@click.option("--params", default="", callback=given_parameters, help="Parameters, as for `kedro run --params`.")
def preflight(env: str | None, offline: bool, params: dict[str, Any]) -> None:
    """Check what the configuration names before a job begins: files, commits, tokenizer, endpoint, packages, space.

    Each check is a line: ok, not ok with what to do, or not looked at. No document is read and nothing is made. The
    exit code is 1 when a check is not ok.

    Example:
      everytoken preflight --env spp
    """
    from kedro.framework.project import pipelines

    from everytoken.configuration import groups_of, read_credentials, streams_of
    from everytoken.datasets import DatasetPaths
    from everytoken.preflight import Ahead, preflight_checks

    with project(env, params) as (context, catalog):
        job, places = pipelines["__default__"], context.config_loader["globals"]
        paths = DatasetPaths(context.config_loader["catalog"], credentials=lambda: read_credentials(Path("conf"), env))
        ahead = Ahead(
            groups_of(job, catalog),
            streams_of(job),
            Path(places["data"]),
            Path(places["raw"]),
            is_offline=offline,
            remote={name: paths.place(name) for name in sorted(job.datasets()) if paths.is_remote(name)},
        )
        counted = dict.fromkeys(_OUTCOMES, 0)
        for check in preflight_checks(ahead):
            said = " ".join(check.text.removeprefix("not checked: ").splitlines())
            click.echo(f"{_OUTCOMES[check.outcome]:<13}  {check.covers}  {check.name}: {said}")
            counted[check.outcome] += 1
    click.echo(", ".join(f"{number} {_OUTCOMES[outcome]}" for outcome, number in counted.items()))
    if counted["failed"]:
        raise click.exceptions.Exit(1)


def _stream_sizes(streams: str) -> dict[str, int]:
    sizes = named_values(filter(None, streams.split(",")), "--streams", "NAME=WINDOWS")
    if wrong := [f"{name}={size}" for name, size in sizes.items() if not size.isdecimal()]:
        raise click.BadParameter(f"{wrong[0]!r}: expected NAME=WINDOWS", param_hint="--streams")
    return {name: int(size) for name, size in sizes.items()}


def _made_streams(catalog: Any, names: tuple[str, ...], seq_length: int) -> dict[str, int]:
    """Return the windows of the streams that are made, by name."""
    from everytoken.tokens.streams import RawShardStatistics, WindowCounts, chosen_kinds

    sizes = {}
    for kind in chosen_kinds(names):
        if not catalog.exists(kind.dataset):
            continue
        made = catalog.load(kind.dataset)
        flat = kind.layout == "flat"
        tokens = made.statistics_as(RawShardStatistics)["tokens"] if flat else 0
        sizes[kind.name] = (tokens - 1) // seq_length if flat else made.statistics_as(WindowCounts)["windows"]
    return sizes


def _vocab_size(catalog: Any) -> int:
    from everytoken.tokens.tokenizer import TokenizerIds

    if not catalog.exists("tokenizer"):
        raise click.UsageError("there is no tokenizer yet (kedro run --pipelines tokenization): give --vocab-size")
    return int(catalog.load("tokenizer").statistics_as(TokenizerIds)["vocab_size"])


@click.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write; must not be there.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The tokenizer.json of the model.  [default: the one in its folder]",
)
def export(checkpoint: Path, out: Path, tokenizer: Path | None) -> None:
    """Write a CHECKPOINT folder as a Hugging Face folder that `transformers` opens, in float32, bit for bit.

    The tokenizer is the one in the model's folder, or in 05_model_input of the data folder that it belongs to.

    Example:
      everytoken export data/06_models/checkpoint --out my_model
    """
    from everytoken.serving import chat_files_of
    from everytoken.training.checkpoints import export_checkpoint

    path, chat = _tokenizer_of(checkpoint, tokenizer), chat_files_of(checkpoint)
    click.echo("\n".join(export_checkpoint(checkpoint, out, tokenizer=path, chat=chat)))


@click.command("import")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write; must not be there.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The tokenizer.json.  [default: that of SOURCE]",
)
@click.option("--eos", help="The token that ends documents.  [default: the one that SOURCE names]")
def import_model(source: Path, out: Path, tokenizer: Path | None, eos: str | None) -> None:
    """Write a checkpoint from SOURCE: a Hugging Face folder of a LlamaForCausalLM, or a GGUF file.

    SOURCE may also be a checkpoint of a run that has its tensors in shards: they become a single file.
    What this project's model cannot compute exactly (biases, scaled RoPE, other activations) is refused.

    Example:
      everytoken import my_model --out my_checkpoint
    """
    from everytoken.training.checkpoints import import_checkpoint

    click.echo("\n".join(import_checkpoint(source, out, tokenizer=tokenizer, eos_token=eos)))


@click.command("generate")
@opens_model
@loops_option
@click.option("--prompt", "prompts", multiple=True, required=True, help="Text to continue; repeat it for several.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=60, show_default=True, help="Most tokens of a text.")
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=0.8,
    show_default=True,
    help="Spread of the draws; 0 takes the most likely token.",
)
@click.option("--top-k", type=click.IntRange(1), help="Draw from so many of the most likely tokens.  [default: all]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all draws.")
def generate_command(
    model: Path, tokenizer: Path | None, device: Literal["cpu", "cuda"], prompts: tuple[str, ...], **options: Any
) -> None:
    r"""Let MODEL, a checkpoint folder, a Hugging Face folder or a GGUF file, continue prompts, each after an EOS.

    A document in the streams begins in the same way. Special tokens that a prompt spells are those tokens, and \n is a
    new line.

    Example:
      everytoken generate data/06_models/checkpoint --prompt "The city of"
    """
    from everytoken.serving import ServingError, open_model
    from everytoken.training import PromptParameters
    from everytoken.training.evaluation import continue_prompts

    execution = arithmetic(options.pop("threads"))
    texts = tuple(prompt.replace("\\n", "\n") for prompt in prompts)
    if any(not _is_utf8(text) for text in texts):
        raise click.BadParameter("a prompt is not UTF-8", param_hint="--prompt")
    try:
        opened = open_model(model, tokenizer=tokenizer, device=device, loops=options.pop("loops"))
        parameters = PromptParameters(prompts=texts, device=device, execution=execution, **options)
        ids = [opened.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        continued = continue_prompts(opened.model, opened.tokenizer, opened.eos_id, ids, parameters)
        for number, text in enumerate(continued):
            click.echo(f"{chr(10) if number else ''}{text.prompt}{text.text}")
            loops = "" if text.loops is None else f"{text.loops:.2f} loops a token, "
            click.echo(f"[{len(text.tokens)} tokens, {loops}ended by {text.finish}]", err=True)
    except ServingError as error:
        raise click.UsageError(str(error)) from error
    except ValueError as error:  # of parameters
        raise click.ClickException(str(error)) from error


def _tokenizer_of(checkpoint: Path, given: Path | None) -> Path:
    from everytoken.serving import ServingError, tokenizer_of

    try:
        return tokenizer_of(checkpoint, given)
    except ServingError as error:
        raise click.UsageError(str(error)) from error


def _is_utf8(text: str) -> bool:
    """Return whether an argument was UTF-8: Python keeps other bytes as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
