"""The command that takes documents down: `everytoken exclude`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.cli.project import cause_of, given_parameters, known_errors, project_folder, session_of

if TYPE_CHECKING:
    from everytoken.provenance.questions.places import Places
    from everytoken.provenance.takedown.exclusion_report import Before
    from everytoken.provenance.takedown.exclusion_request import InForce, Request

LISTS_FOLDER = "04_feature/excluded_documents"  # each list by the first 16 characters of its SHA-256
REPORT_FILE = "08_reporting/exclusion_report.json"
BEFORE_FOLDER = "08_reporting/exclusion_before"

_REBUILT = ("subsampling", "tokenization", "provenance")
_MOST_SHOWN = 20
_WITH_TEXT = (
    *("upstream_documents", "dropped_documents", "documents", "scored_documents"),
    *("annotated_documents", "unannotated_documents"),
)
_AS_IT_WAS = ("checkpoint", "pretrained_checkpoint", "finetuned_checkpoint", "release")

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--ids", type=_FILE, help="A file of ids, one a line, exact.")
@click.option("--addresses", type=_FILE, help="A file of addresses: source, shard_index, row, with tabs between them.")
@click.option("--id-type", help='JSON type of the ids (string, integer, ...), where documents have both 7 and "7".')
@click.option("--reason", default="excluded", show_default=True, help="Is kept in the list and in traces.")
@click.option("--allow-missing", is_flag=True, help="Put on the list what is in no split, too.")
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@click.option("--params", default="", callback=given_parameters, help="As for the `kedro run` that made the data.")
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
def exclude(
    ids: Path | None,
    addresses: Path | None,
    id_type: str | None,
    reason: str,
    allow_missing: bool,
    dry_run: bool,
    params: dict[str, Any],
    env: str | None,
) -> None:
    """Rebuild the streams without documents, every other window byte for byte as it was; report what changed.

    The list grows: what was excluded before stays excluded.
    """
    if ids is None and addresses is None:
        raise click.UsageError("give --ids or --addresses")
    ids, addresses = (None if path is None else path.resolve() for path in (ids, addresses))  # of the folder one is in
    try:
        _exclude(ids, addresses, id_type, reason, allow_missing, dry_run, params, env)
    except known_errors() as error:
        raise click.ClickException(str(cause_of(error))) from error


def _exclude(
    ids: Path | None,
    addresses: Path | None,
    id_type: str | None,
    reason: str,
    allow_missing: bool,
    dry_run: bool,
    params: dict[str, Any],
    env: str | None,
) -> None:
    from everytoken.corpus.exclusion import ExclusionParameters, list_text, write_list
    from everytoken.provenance.questions.document_records import DocumentRecords
    from everytoken.provenance.takedown.exclusion_report import (
        compare_after,
        document_index,
        finish,
        note_before,
        noted_before,
        stream_indexes,
    )
    from everytoken.provenance.takedown.exclusion_request import find_documents, list_in_force, list_path, read_wanted

    wanted = read_wanted(ids, addresses, id_type)
    paths, parameters, data = _configuration(env, params)
    given = parameters.get("subsampling", {}).get("exclude")
    places, lists, report_path = _places(paths, env), data / LISTS_FOLDER, data / REPORT_FILE
    places.store("scored_documents")  # the error where nothing was drawn: in a replay, or before the first run
    groups = [parameters.get(name) or {} for name in ("training", "finetuning")]
    folders = [Path(group["checkpoints"]["folder"]) for group in groups if group]
    in_force = list_in_force(places, None if given is None else ExclusionParameters.model_validate(given), lists)
    with tempfile.TemporaryDirectory(prefix="everytoken-exclude-") as temporary:
        scratch = Path(temporary)
        request = find_documents(
            wanted, document_index(places, scratch), DocumentRecords(places), in_force, reason, allow_missing
        )
        _say_missing(request, allow_missing)
        entries = [*in_force.applied, *in_force.pending, *request.entries]
        sha256, noted = list_text(entries)[1], data / BEFORE_FOLDER
        before = noted_before(noted, sha256)
        if before is None and not request.entries and not in_force.pending:
            click.echo("all of these are excluded already: there is nothing to do")
            return
        if before is not None:
            click.echo("an earlier try was stopped: this goes on with it, and reports what was before both")
        else:
            noted = scratch / "before" if dry_run else noted
            indexes = stream_indexes(places, scratch)
            before = note_before(noted, places, request.documents, indexes, folders, report_path, sha256)
        _say_before(request, in_force, before)
        if dry_run:
            return
    written = list_path(lists, sha256)
    write_list(entries, written)
    click.echo(f"\nthe list: {written}, {len({entry.key for entry in entries}):,} entries, sha256 {sha256}\n")
    _rebuild(env, params, {"path": str(written), "sha256": sha256}, places)
    report = compare_after(before, _places(paths, env))
    finish(before, report, report_path)
    _say_after(report, places, env, report_path, f"{{path: {written}, sha256: {sha256}}}")
    if report["faults"]:
        sys.exit(1)


def _configuration(env: str | None, params: dict[str, Any]) -> tuple[dict[str, Path], dict[str, Any], Path]:
    """Return where datasets lie, all parameters, and the folder of the data; goes to the folder of the project."""
    from kedro.config import MissingConfigException, OmegaConfigLoader

    import everytoken.parameters
    from everytoken.settings import CONFIG_LOADER_ARGS

    known = {name.removesuffix("Parameters").lower() for name in everytoken.parameters.__all__}
    if unknown := sorted(set(params) - known):
        raise click.ClickException(f"--params sets {unknown[0]}, which no pipeline reads; there are {sorted(known)}")
    folder = project_folder()
    os.chdir(folder)  # paths of the catalog are relative to it
    settings: dict[str, Any] = dict(CONFIG_LOADER_ARGS)
    try:
        loader = OmegaConfigLoader(str(folder / "conf"), env=env, runtime_params=params, **settings)
        catalog, parameters, data = loader["catalog"], loader["parameters"], loader["globals"]["data"]
    except MissingConfigException as error:
        raise click.ClickException(f"there is no environment {env!r} in {folder / 'conf'}: {error}") from error
    return {name: Path(one["filepath"]) for name, one in catalog.items() if "filepath" in one}, parameters, Path(data)


def _places(paths: Mapping[str, Path], env: str | None) -> Places:
    from everytoken.provenance.questions.places import Places

    return Places(paths, env or "local")


def _rebuild(env: str | None, params: Mapping[str, Any], listed: dict[str, str], places: Places) -> None:
    """Run what the excluded documents are in, as `kedro run` does."""
    from kedro.runner import SequentialRunner

    names = [*_REBUILT, *(["packing"] if places.has("raw_shards") else [])]
    given = {name: params[name] for name in names if name in params}  # those of other pipelines decide nothing here
    given["subsampling"] = {**given.get("subsampling", {}), "exclude": listed}
    with session_of(env, given) as session:
        session.run(pipeline_names=names, runner=SequentialRunner())
    if places.has("chat_windows"):  # not the model: to train again is for the user to say
        given = {name: params[name] for name in ("tokenization", "finetuning") if name in params}
        with session_of(env, given) as session:
            session.run(
                pipeline_names=["finetuning"], to_outputs=["chat_windows", "chat_index"], runner=SequentialRunner()
            )


def _say_missing(request: Request, allow_missing: bool) -> None:
    for one, known in request.missing[:_MOST_SHOWN]:
        what = "; ".join(f"{row.source} {row.shard_index} {row.row}: {row.reason} {row.detail or ''}" for row in known)
        click.echo(f"{one} is in no split: {what.strip() or 'nothing that was read has it'}", err=True)
    if len(request.missing) > _MOST_SHOWN:
        click.echo(f"and {len(request.missing) - _MOST_SHOWN:,} more", err=True)
    if request.missing and not allow_missing:
        raise click.ClickException(
            f"{len(request.missing):,} of what is to be excluded are in no split: nothing was changed. Correct the "
            "file, or put them on the list all the same (--allow-missing)"
        )


def _say_before(request: Request, in_force: InForce, before: Before) -> None:
    documents = before.facts["documents"]
    applied = len(in_force.applied)
    click.echo(
        f"{len(documents):,} documents to exclude; {applied:,} entries are in force already and stay so"
        + (f" ({request.known:,} of these were asked for again)" if request.known else "")
    )
    for document in documents[:_MOST_SHOWN]:
        click.echo(_line_of(document))
    if len(documents) > _MOST_SHOWN:
        click.echo(f"and {len(documents) - _MOST_SHOWN:,} more, all in the report")
    for run in before.facts["runs"]:
        seen = [one for document in documents for one in document["exposures"] if one["run"] == run["name"]]
        steps = sorted({one["step"] for one in seen})
        click.echo(
            f"{run['name']}: {len(steps):,} of its {run['steps']:,} steps read tokens of them{_numbers(steps)}; the "
            "model keeps what it learned"
        )
    for note in before.facts["notes"]:
        click.echo(f"note: {note}")


def _line_of(document: Mapping[str, Any]) -> str:
    named = "no id" if document["id"] is None else repr(document["id"])
    address = f"{document['source']} {document['shard_index']} {document['row']}"
    if document["split"] == "held_out":
        where = "is removed from the held-out documents"
    else:
        where = "; ".join(
            f"{name} {_numbers([one['window'] for one in held]).strip(' ()')}"
            for name, held in document["windows"].items()
        )
    return f"  {document['split']} {document['number']:,} ({address}, {named}): {where or 'in no window'}"


def _numbers(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    more = f" and {len(numbers) - _MOST_SHOWN:,} more" if len(numbers) > _MOST_SHOWN else ""
    return f" ({', '.join(f'{number:,}' for number in numbers[:_MOST_SHOWN])}{more})"


def _say_after(report: Mapping[str, Any], places: Places, env: str | None, path: Path, listed: str) -> None:
    for name, store in report["stores"].items():
        click.echo(
            f"{name}: of {store['parts']:,} parts {store['kept']:,} are untouched, {len(store['made_again']):,} were "
            f"made again, {len(store['changed']):,} have another content"
        )
    for name, stream in report["streams"].items():
        if stream["changed_windows"] is None:
            continue
        click.echo(
            f"{name}: {len(stream['changed_windows']):,} of {stream['windows']:,} windows have other bytes"
            f"{_numbers(stream['changed_windows'])}; digest {stream['before'][:16]} -> {stream['after'][:16]}"
        )
    for fault in report["faults"]:
        click.echo(f"FAIL  {fault}")
    if not report["faults"]:
        click.echo("every other window has the bytes that it had, and no token of the documents is left in a stream")
    click.echo(f"\nreport: {path}")
    click.echo(
        f"so that later runs keep it, in conf/{env or 'local'}/parameters_subsampling.yml:\n"
        f"subsampling:\n  exclude: {listed}"
    )
    with_text = [str(places.paths[name]) for name in _WITH_TEXT if places.has(name)]
    click.echo(
        "\ntheir text is still in what the streams were made from, which no release has, and in the files of the "
        f"upstream. To remove it (a later run reads it again from upstream):\nrm -r {' '.join(with_text)}"
    )
    if again := [name for name in ("raw_shards", "chat_windows") if places.has(name)]:
        click.echo(f"made again as a whole, as windows have no fixed places in them: {', '.join(again)}")
    if made := [name for name in _AS_IT_WAS if places.has(name)]:
        click.echo(
            f"not made again, and as before: {', '.join(made)}. A model keeps what it learned; kedro run"
            f"{places.options} trains one on the new streams. --pipelines release makes a release without the documents"
        )
