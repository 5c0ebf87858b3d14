"""Commands that ask where tokens came from, and when a run read a document. They load neither torch nor MLflow."""

from __future__ import annotations

import atexit
import gc
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from everytoken.address import Address
from everytoken.cli.project import named_values, project_folder
from everytoken.cli.rendering import batch_lines, exposure_lines
from everytoken.redaction import is_url

if TYPE_CHECKING:
    from everytoken.provenance.lookup import Places, Run, UpstreamDocument
    from everytoken.provenance.trace import TracedSequence
    from everytoken.shards import Artifact

_RUN = (
    "A dataset that is a checkpoint, a checkpoint's folder, that of one of its steps, or an MLflow run: its id, or "
    "`last` for the last that trained, `last~1` for the one that trained before it."
)
_STEP = (
    "Steps are numbered from 0, as on MLflow's axis. Log and report count the steps that are done: where they say "
    "`34 of 600 steps`, the last one is --step 33."
)
_NUMBER = click.IntRange(0, 1 << 40)  # its product with a batch fits into 64 bits
_MLFLOW = re.compile(r"last(~\d+)?|[0-9a-f]{6,32}")


class _Text(click.ParamType[str]):
    """Text that is UTF-8; a shell may give any bytes."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what is not."""
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail(f"{value!r} is not UTF-8, which every id and text is", param, ctx)
        return value


class _Project(NamedTuple):
    """The configuration of an environment, and where its datasets lie."""

    places: Places
    parameters: Mapping[str, Any]
    mlflow: Mapping[str, Any]
    folder: Path

    @property
    def checkpoint_folders(self) -> list[Path]:
        """Where checkpoints of runs are kept."""
        groups = [self.parameters.get(name) or {} for name in ("training", "finetuning")]
        kept = [(group.get("checkpoints") or {}).get("folder") for group in groups]
        return [self.folder / one for one in kept if one is not None]


@click.command()
@click.option("--run", default="checkpoint", show_default=True, help=_RUN)
@click.option("--step", type=_NUMBER, help=f"Number of the optimiser step. {_STEP}")
@click.option("--sequence", type=_NUMBER, help="Its place in the batch of the step, from 0.  [default: all]")
@click.option("--stream", help="A window of a stream, without a run: compact, annotated, canary, ... or a path.")
@click.option("--window", type=_NUMBER, help="Number of the window, from 0.")
@click.option("--seq-length", type=click.IntRange(1), help="Predictions of a window, where the stream is flat tokens.")
@click.option("--position", type=_NUMBER, help="One token of the window, by its place from 0.")
@click.option(
    "--text", "with_text", is_flag=True, help="Print the text, read again from its upstream, with the span marked."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page that shows every token.")
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture of the text, by document."
)
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Most sequences that are printed or drawn."
)
@click.option("--streams", multiple=True, metavar="NAME=PATH", help="Folder of a stream of the run, if it was moved.")
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
def trace(
    run: str,
    step: int | None,
    sequence: int | None,
    stream: str | None,
    window: int | None,
    seq_length: int | None,
    position: int | None,
    with_text: bool,
    as_json: bool,
    html: Path | None,
    svg: Path | None,
    limit: int,
    streams: tuple[str, ...],
    env: str | None,
) -> None:
    """Print which documents the tokens of a step of a run, or of a window of a stream, are from.

    Give --run and --step (and --sequence, and --position), or --stream and --window.

    Example:
      everytoken trace --step 123
      everytoken trace --step 123 --sequence 1 --position 57 --text
      everytoken trace --stream compact --window 4711
    """
    if (step is None) == (stream is None) or (stream is None) != (window is None):
        raise click.UsageError("give --step (of --run), or --stream with --window")
    if position is not None and step is not None and sequence is None:
        raise click.UsageError("--position is of one sequence of the step: give --sequence")
    html, svg = (None if path is None else path.resolve() for path in (html, svg))
    project = _project(env)
    from everytoken.provenance.lookup import DocumentRecords
    from everytoken.provenance.trace import token_at, trace_window

    records = DocumentRecords(project.places)
    keep = with_text or position is not None
    name, more = None, 0
    if stream is not None:
        assert window is not None
        length = seq_length or (project.parameters.get("tokenization") or {}).get("seq_length")
        traced = [trace_window(records, stream, window, length, keep_texts=keep)]
        if seq_length not in (None, found := len(traced[0].window.tokens) - 1):
            raise click.UsageError(f"--seq-length is {seq_length}, expected {found}: the windows of {stream} say it")
    else:
        assert step is not None
        every = as_json or html is not None
        name, traced, more = _traced_step(project, run, step, sequence, None if every else limit, streams, keep)
    tokens = [None if position is None else token_at(one, position) for one in traced]
    texts = _upstream_texts(project, traced, position) if with_text else None
    if html is not None or svg is not None:
        from everytoken.provenance.trace import write_batch_page, write_batch_picture

        title = f"step {step:,} of {name}" if step is not None else f"window {window:,} of {stream}"
        options = ("" if step is None else f" --run {run}") + ("" if env is None else f" --env {env}")
        if html is not None:
            size = write_batch_page(html, traced, title, options)
            click.echo(f"{html}: {len(traced):,} sequences, {size:,} bytes")
        if svg is not None:
            size = write_batch_picture(svg, traced[:limit], title)
            click.echo(f"{svg}: {len(traced[:limit]):,} sequences, {size:,} bytes")
        return
    shown = [
        {
            **one.to_json(),
            **({} if token is None else {"token": token.to_json()}),
            **({} if texts is None else {"texts": _texts_json(one, texts)}),
        }
        for one, token in zip(traced, tokens, strict=True)
    ]
    if as_json:
        click.echo(json.dumps({"run": name, "sequences": shown}, ensure_ascii=False, indent=1))
        return
    click.echo("\n".join(batch_lines(shown, name)))
    if more:
        click.echo(f"\nand {more:,} more sequences (--limit, --sequence, --json, --html)")


@click.command()
@click.option("--run", default="checkpoint", show_default=True, help=_RUN)
@click.option("--id", "document_id", type=_Text(), help="All documents with this id.")
@click.option(
    "--everywhere", is_flag=True, help="With --id: also documents in no split, by a scan of all that was read."
)
@click.option(
    "--address", type=_Text(), metavar="SOURCE/FILE/ROW", help="The document of this address, as `trace` shows it."
)
@click.option(
    "--text-contains",
    type=_Text(),
    help="Where texts have this in them (exact, case counts), and what was read of that: reads all texts.",
)
@click.option(
    "--at-step",
    type=_NUMBER,
    help="Count what was read until so many steps were done. Steps are numbered from 0: with 500 these are 0 to 499.  "
    "[default: all]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Documents; of each, places of the text, windows and times.",
)
@click.option("--streams", multiple=True, metavar="NAME=PATH", help="Folder of a stream of the run, if it was moved.")
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
def exposure(
    run: str,
    document_id: str | None,
    everywhere: bool,
    address: str | None,
    text_contains: str | None,
    at_step: int | None,
    as_json: bool,
    limit: int,
    streams: tuple[str, ...],
    env: str | None,
) -> None:
    """Print every step at which a run read a document, and which of its checkpoints came after.

    Steps are numbered from 0; a checkpoint "after 500 steps" has read the steps 0 to 499.

    Example:
      everytoken exposure --id Jinn
      everytoken exposure --text-contains "Sistine Chapel" --at-step 500
    """
    if sum(one is not None for one in (document_id, address, text_contains)) != 1:
        raise click.UsageError("give one of --id, --address and --text-contains")
    project = _project(env)
    from everytoken.provenance.exposure import Questions
    from everytoken.provenance.lookup import DocumentRecords

    records, folders = DocumentRecords(project.places), project.checkpoint_folders
    asked = Questions(records, _run(project, run), _given(streams), folders)
    if document_id is not None:
        answer = asked.with_id(document_id, most=limit, at_step=at_step, everywhere=everywhere)
    elif address is not None:
        answer = asked.at_address(_address(address), most=limit, at_step=at_step)
    else:
        answer = asked.containing(str(text_contains), most=limit, at_step=at_step)
    if as_json:
        click.echo(json.dumps(answer.to_json(), ensure_ascii=False, indent=1))
    else:
        click.echo("\n".join(exposure_lines(answer.to_json(), limit, at_step)))


def _traced_step(
    project: _Project,
    run: str,
    step: int,
    sequence: int | None,
    limit: int | None,
    streams: tuple[str, ...],
    keep_texts: bool,
) -> tuple[str, list[TracedSequence], int]:
    """Return the name of the run, the sequences that are wanted, and how many more there are."""
    from everytoken.provenance.lookup import DocumentRecords, open_run
    from everytoken.provenance.trace import trace_step

    found = _run(project, run)
    opened = open_run(project.places, found, _given(streams))
    if step >= found.steps:
        click.echo(
            f"note: {found.name} ended after {found.steps:,} steps, numbered from 0; step {step:,} would read this",
            err=True,
        )
    for name, compared in opened.compared.items():
        if not compared:
            click.echo(f"note: the stream {name} has no ledger and is large: its digest was not compared", err=True)
    chosen = None if sequence is None else [sequence]
    if chosen is None and limit is not None:
        chosen = list(range(min(limit, found.batch_size)))
    traced = trace_step(opened, DocumentRecords(project.places), step, chosen, keep_texts=keep_texts)
    more = found.batch_size - len(traced) if sequence is None else 0
    return found.name, traced, more


def _run(project: _Project, name: str) -> Run:
    """Return the run that a name means."""
    from everytoken.provenance.lookup import find_run

    if _MLFLOW.fullmatch(name) and not project.places.knows(name) and not Path(name).exists():
        return _mlflow_run(project, name)
    return find_run(project.places, name, project.checkpoint_folders)


def _mlflow_run(project: _Project, which: str) -> Run:
    """Return a run by its checkpoint, where the environment still has it, else by what MLflow recorded."""
    from everytoken.provenance.lookup import CHECKPOINTS, find_run, recorded_run, trained_checkpoints
    from everytoken.tracking import TrackingSettings, read_recorded

    settings = TrackingSettings.model_validate(project.mlflow)
    recorded = read_recorded(project.folder, settings, which, made=CHECKPOINTS)
    there = trained_checkpoints(project.places)
    made = {name: run for name, (digest, run) in there.items() if recorded.digests.get(name) == digest[:16]}
    began = {run.initial for run in made.values()}
    for name in made:
        if there[name][0] not in began:
            return find_run(project.places, name, project.checkpoint_folders)
    return recorded_run(
        project.places,
        f"the MLflow run {recorded.id[:8]} ({recorded.name})",
        recorded.parameters,
        recorded.digests,
    )


def _upstream_texts(
    project: _Project, traced: list[TracedSequence], position: int | None
) -> dict[Address, UpstreamDocument]:
    """Return the texts of the traced documents as their upstreams have them; each must be what was read then."""
    from everytoken.corpus.upstreams import UpstreamFile
    from everytoken.parameters import IngestionParameters
    from everytoken.provenance import ProvenanceError
    from everytoken.provenance.lookup import read_documents_at
    from everytoken.provenance.trace import TextSpan

    spans = [
        span
        for one in traced
        for span in one.window.spans
        if isinstance(span, TextSpan) and span.text is not None and (position is None or span.at <= position < span.end)
    ]
    wanted = {span.record.address: span for span in spans if span.record.address}
    if not wanted:
        return {}
    ingestion = IngestionParameters.model_validate(project.parameters["ingestion"])
    listed = json.loads(project.places.path("upstream_files").read_text(encoding="utf-8"))
    files = {name: [UpstreamFile.from_json(file) for file in of_source] for name, of_source in listed.items()}
    texts = read_documents_at(ingestion.active_sources, files, [one for one in wanted if one is not None])
    for address, found in texts.items():
        if found.text != wanted[address].text:
            raise ProvenanceError(
                f"the document {address} has another text upstream than the one that was read "
                f"({len(found.text):,} characters, expected {len(wanted[address].text or ''):,}): the upstream has "
                "changed, or how the source is read. Bring back the revision and the parameters that it was read with"
            )
    return texts


def _texts_json(one: TracedSequence, texts: Mapping[Address, UpstreamDocument]) -> list[dict[str, str] | None]:
    from everytoken.provenance.trace import ReflectionSpan, TextSpan

    shown: list[dict[str, str] | None] = []
    for span in one.window.spans:
        text = None
        if isinstance(span, ReflectionSpan) and span.reflection is not None:
            said, cut = span.reflection.text, span.reflection.characters
            shown.append({"before": "", "span": said[:cut], "after": said[cut:]})
            continue
        if isinstance(span, TextSpan):
            address = span.record.address
            text = span.text if address is None else texts[address].text if address in texts else None
        if text is None or span.characters is None:
            shown.append(None)
        else:
            start, end = span.characters
            shown.append({"before": text[:start], "span": text[start:end], "after": text[end:]})
    return shown


def _given(streams: tuple[str, ...]) -> dict[str, Path]:
    return {name: Path(path) for name, path in named_values(streams, "--streams", "NAME=PATH").items()}


def _address(value: str) -> Address:
    if (found := Address.parse(value)) is None:
        raise click.BadParameter(f"{value!r}: expected SOURCE/FILE/ROW, as web/0/17", param_hint="--address")
    return found


def _project(env: str | None) -> _Project:
    """Return an environment, read without a Kedro session: that takes longer than an answer."""
    _start_lightly()
    from everytoken.datasets import DatasetPaths
    from everytoken.provenance.lookup import Places

    folder = project_folder()
    catalog, parameters, mlflow = (_configuration(folder, env, key) for key in ("catalog", "parameters", "mlflow"))
    named = ((parameters.get("pretraining") or {}).get("streams") or {}).items()
    given = {name: folder / entry["path"] for name, entry in named if entry is not None}
    remote: Mapping[str, Artifact] = {}
    if any(is_url(str(entry.get("filepath", ""))) for entry in catalog.values()):
        from everytoken.datasets import remote_artifacts

        remote = remote_artifacts(catalog, _credentials(folder, env), folder)
    return _Project(Places(DatasetPaths(catalog, folder), env or "local", given, remote), parameters, mlflow, folder)


def _credentials(folder: Path, env: str | None) -> dict[str, Any]:
    from kedro.config import MissingConfigException, OmegaConfigLoader

    from everytoken.configuration import CONFIG_LOADER_ARGS

    try:
        found: dict[str, Any] = OmegaConfigLoader(str(folder / "conf"), env=env, **CONFIG_LOADER_ARGS)["credentials"]
        return found
    except MissingConfigException:
        return {}


def _start_lightly() -> None:
    """Let a process that answers one question start and end without work that only a long one needs.

    On 2 cores this is 0.15 s of CPU, of 0.5: numpy's import starts a thread of OpenBLAS a core, the garbage collector
    walks through all that is imported again and again, and once more at the end.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000, 20, 20)
    atexit.register(gc.freeze)


def _configuration(folder: Path, env: str | None, key: str) -> dict[str, Any]:
    """Return a kind of configuration; Kedro's loader, which is slow to import, reads what is unusual."""
    from everytoken.configuration import CONFIG_LOADER_ARGS, read_plainly

    if (found := read_plainly(folder / "conf", env, key)) is not None:
        return found
    from kedro.config import MissingConfigException, OmegaConfigLoader

    try:
        loaded: dict[str, Any] = OmegaConfigLoader(str(folder / "conf"), env=env, **CONFIG_LOADER_ARGS)[key]
        return loaded
    except MissingConfigException as error:
        raise click.ClickException(f"there is no environment {env!r} in {folder / 'conf'}: {error}") from error
