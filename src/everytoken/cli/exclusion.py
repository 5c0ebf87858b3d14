"""The command that takes documents down: `everytoken exclude`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.cli.exclusion_lines import (
    say_after,
    say_before,
    say_forgotten,
    say_list,
    say_missing,
    say_not_made_again,
    say_revoked,
    say_stopped,
    say_to_generate,
    say_what_has_text,
)
from everytoken.cli.project import given_parameters, project_folder, session_of
from everytoken.redaction import is_url

if TYPE_CHECKING:
    from everytoken.corpus import Entry, ExclusionParameters
    from everytoken.provenance.lookup import Places
    from everytoken.provenance.takedown import Before, ExcludedDocument, Wanted

_REPORT_FILE = "08_reporting/exclusion_report.json"
BEFORE_FOLDER = "08_reporting/exclusion_before"

_REBUILT = ("subsampling", "tokenization", "provenance")

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class _Environment:
    """An environment, and the parameters that its datasets were made with.

    Attributes:
        name: of the environment; None: the default one.
        configured: the list that its parameters name.
    """

    name: str | None
    params: Mapping[str, Any]
    catalog: Mapping[str, Any]
    data: Path
    configured: ExclusionParameters | None
    checkpoints: Sequence[Path]

    @property
    def lists(self) -> Path:
        """The folder of the lists."""
        from everytoken.provenance.takedown import LISTS_FOLDER

        return self.data / LISTS_FOLDER

    def places(self) -> Places:
        """Open the datasets as they are now."""
        from everytoken.datasets import DatasetPaths
        from everytoken.provenance.lookup import Places

        if remote := [name for name, entry in self.catalog.items() if is_url(str(entry.get("filepath", "")))]:
            raise click.ClickException(
                f"{', '.join(remote)} of this environment are behind URLs, and a take-down changes local datasets "
                "alone. Give them local paths in an environment with the same parameters, run it, and take the "
                "documents down there"
            )
        return Places(DatasetPaths(self.catalog), self.name or "local")


@click.command()
@click.option("--ids", type=_FILE, help="A file of ids, one a line, exact.")
@click.option("--addresses", type=_FILE, help="A file of addresses, one a line: SOURCE/FILE/ROW, or with tabs.")
@click.option("--id-type", help='JSON type of the ids (string, integer, ...), where documents have both 7 and "7".')
@click.option("--reason", default="excluded", show_default=True, help="Why; the list and traces show it.")
@click.option("--allow-missing", is_flag=True, help="Put on the list what is in no split, too.")
@click.option("--revoke", is_flag=True, help="Take --ids and --addresses off the list: the documents come back.")
@click.option("--revoke-all", is_flag=True, help="Take everything off the list.")
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@click.option(
    "--params", default="", callback=given_parameters, help="Parameters, as for the `kedro run` that made the data."
)
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
def exclude(
    ids: Path | None,
    addresses: Path | None,
    id_type: str | None,
    reason: str,
    allow_missing: bool,
    revoke: bool,
    revoke_all: bool,
    dry_run: bool,
    params: dict[str, Any],
    env: str | None,
) -> None:
    """Rebuild the streams without documents, every other window byte for byte as it was; report what changed.

    The list grows: what was excluded before stays excluded, in later runs too, until it is revoked.

    Example:
      everytoken exclude --ids ids.txt --dry-run
      everytoken exclude --ids ids.txt
    """
    if revoke_all and (revoke or ids or addresses):
        raise click.UsageError("--revoke-all takes no files; --revoke takes back what --ids and --addresses name")
    if ids is None and addresses is None and not revoke_all:
        raise click.UsageError("give --ids or --addresses")
    ids, addresses = (None if path is None else path.resolve() for path in (ids, addresses))  # of the folder one is in
    from everytoken.provenance.takedown import read_wanted, sole_take_down

    wanted = None if revoke_all else read_wanted(ids, addresses, id_type)
    environment = _environment(env, params)
    environment.places().store("scored_documents")  # the error where nothing was drawn: in a replay, or at first
    with sole_take_down(environment.lists):
        is_done = _go_on(environment, dry_run)
        if wanted is None or revoke:
            _revoke(environment, wanted, dry_run, is_done)
        else:
            _exclude(environment, wanted, reason, allow_missing, dry_run)


def _go_on(environment: _Environment, dry_run: bool) -> bool:
    """Go on with a take-down that was stopped after its list was put in force; return whether there was one.

    Its documents are not looked up again: what they are in may be half made.
    """
    from everytoken.corpus import list_text, read_list
    from everytoken.provenance.takedown import is_told, list_told, noted_before

    before = noted_before(environment.data / BEFORE_FOLDER)
    if before is None or not is_told(environment.lists):  # stopped while it looked: nothing was changed
        return False
    told = list_told(environment.lists)
    entries = () if told is None else tuple(read_list(Path(told.path), told.sha256))
    if before.facts["list"] != list_text(entries)[1]:
        if not dry_run:
            shutil.rmtree(before.folder)
            click.echo("note: an earlier try was stopped before its list was in force: it took nothing down")
        return False
    if dry_run:
        raise click.ClickException(
            "an earlier try was stopped, and what it changes is half made: nothing was changed. The command without "
            "--dry-run, with the same files or others, goes on with it first"
        )
    say_stopped(before)
    _rebuild_and_report(environment, environment.places(), entries, before)
    return True


def _exclude(environment: _Environment, wanted: list[Wanted], reason: str, allow_missing: bool, dry_run: bool) -> None:
    from everytoken.provenance.lookup import DocumentRecords
    from everytoken.provenance.takedown import document_index, find_documents, list_in_force
    from everytoken.shards import scratch_folder

    places = environment.places()
    in_force = list_in_force(places, environment.configured, environment.lists)
    with scratch_folder("everytoken-exclude") as scratch:
        request = find_documents(
            wanted, document_index(places, scratch), DocumentRecords(places), in_force, reason, allow_missing
        )
        say_missing(request, allow_missing)
        entries = [*in_force.applied, *in_force.pending, *request.entries]
        if not request.entries and not in_force.pending:
            click.echo("all of these are excluded already: there is nothing to do")
            return
        before = _note(environment, places, request.documents, entries, scratch, dry_run=dry_run, revoked=False)
        say_before(request, in_force, before)
        if dry_run:
            click.echo("nothing was changed; run it without --dry-run to exclude them")
            return
    _rebuild_and_report(environment, places, entries, before)


def _revoke(environment: _Environment, wanted: list[Wanted] | None, dry_run: bool, is_done: bool) -> None:
    from everytoken.corpus import read_list
    from everytoken.provenance.takedown import document_index, find_revoked, list_in_force
    from everytoken.shards import scratch_folder

    places, configured = environment.places(), environment.configured
    in_force = list_in_force(places, None, environment.lists)
    named = () if configured is None else tuple(read_list(Path(configured.path), configured.sha256))
    with scratch_folder("everytoken-exclude") as scratch:
        revocation = find_revoked(wanted, document_index(places, scratch), in_force, named, is_done=is_done)
        if not revocation.revoked:
            click.echo("none of these is excluded: there is nothing to take back")
            return
        before = _note(
            environment, places, revocation.documents, revocation.kept, scratch, dry_run=dry_run, revoked=True
        )
        say_revoked(revocation, before)
        if dry_run:
            click.echo("nothing was changed; run it without --dry-run to take them back")
            return
    _rebuild_and_report(environment, places, revocation.kept, before)


def _note(
    environment: _Environment,
    places: Places,
    documents: Sequence[ExcludedDocument],
    entries: Sequence[Entry],
    scratch: Path,
    *,
    dry_run: bool,
    revoked: bool,
) -> Before:
    """Note what will change, and keep the indexes of the streams as they are; a dry run leaves nothing."""
    from everytoken.corpus import list_text
    from everytoken.provenance.takedown import keep_indexes, note_before, stream_indexes

    indexes = stream_indexes(places, scratch)
    if not dry_run:
        keep_indexes(places, indexes.values())
    folder = scratch / "before" if dry_run else environment.data / BEFORE_FOLDER
    sha256 = list_text(entries)[1]
    return note_before(folder, places, documents, indexes, environment.checkpoints, sha256, revoked=revoked)


def _rebuild_and_report(environment: _Environment, places: Places, entries: Sequence[Entry], before: Before) -> None:
    """Put a list in force, make again what the documents are in, and say what changed."""
    from everytoken.corpus import list_text, write_list
    from everytoken.provenance.takedown import (
        compare_after,
        finish,
        follow_take_down,
        forget_reflections,
        list_path,
        put_in_force,
        reflected_faults,
    )

    sha256 = list_text(entries)[1]
    written = list_path(environment.lists, sha256)
    if entries:
        write_list(entries, written)
    put_in_force(environment.lists, sha256 if entries else None)  # first: a kedro run goes on where this is stopped
    if entries:
        count = len({entry.key for entry in entries})
        click.echo(f"\nthe list: {written}, {count:,} entries, sha256 {sha256}\n")
    say_forgotten(forget_reflections(places, before))
    _rebuild(environment, {"path": str(written), "sha256": sha256} if entries else None, before.facts["also"])
    follow_take_down(environment.places(), before)
    _splice_again(environment, revoked=before.facts["revoked"])
    places = environment.places()
    report = compare_after(before, places, reflected_faults(places, before))
    report_path = environment.data / _REPORT_FILE
    finish(before, report, report_path)
    say_after(report, report_path)
    say_list(environment.configured, environment.name, str(written), sha256, kept=bool(entries))
    if not before.facts["revoked"]:
        say_what_has_text(places)
    say_not_made_again(places)
    if report["faults"]:
        sys.exit(1)


def _splice_again(environment: _Environment, *, revoked: bool) -> None:
    """Merge the generation runs again, and make what follows from their columns; no generator is asked."""
    from kedro.framework.project import pipelines
    from kedro.runner import SequentialRunner

    from everytoken.provenance.takedown import runs_to_merge_again

    again = runs_to_merge_again(environment.places())
    if revoked:
        say_to_generate(sorted(again.values()), environment.name)
        return
    params = {name: environment.params[name] for name in ("tokenization", "reflection") if name in environment.params}
    for replies, pipeline in again.items():
        with session_of(environment.name, params) as session:
            session.load_context()
            generated = replies in pipelines[pipeline].datasets()  # published reflections are found again
            first = [replies] if generated else None
            session.run(pipeline_names=[pipeline], from_inputs=first, runner=SequentialRunner())


def _environment(env: str | None, params: dict[str, Any]) -> _Environment:
    """Return the environment; goes to the folder of the project."""
    from kedro.config import MissingConfigException, OmegaConfigLoader

    import everytoken.parameters
    from everytoken.configuration import CONFIG_LOADER_ARGS
    from everytoken.corpus import ExclusionParameters

    known = {name.removesuffix("Parameters").lower() for name in everytoken.parameters.__all__}
    if unknown := sorted(set(params) - known):
        raise click.ClickException(f"--params sets {unknown[0]}, which no pipeline reads; there are {sorted(known)}")
    folder = project_folder()
    os.chdir(folder)  # paths of the catalog are relative to it
    try:
        loader = OmegaConfigLoader(str(folder / "conf"), env=env, runtime_params=params, **CONFIG_LOADER_ARGS)
        catalog, parameters, data = loader["catalog"], loader["parameters"], loader["globals"]["data"]
    except MissingConfigException as error:
        raise click.ClickException(f"there is no environment {env!r} in {folder / 'conf'}: {error}") from error
    given = parameters.get("subsampling", {}).get("exclude")
    groups = [parameters.get(name) or {} for name in ("training", "finetuning")]
    return _Environment(
        env,
        params,
        catalog,
        Path(data),
        None if given is None else ExclusionParameters.model_validate(given),
        [Path(group["checkpoints"]["folder"]) for group in groups if group],
    )


def _rebuild(environment: _Environment, listed: dict[str, str] | None, also: Sequence[str]) -> None:
    """Run what the excluded documents are in, as `kedro run` does."""
    from kedro.runner import SequentialRunner

    from everytoken.provenance.takedown import rebuilt_kinds

    env, params = environment.name, environment.params
    kinds = [kind for dataset, kind in rebuilt_kinds().items() if dataset in also and kind.base is None]
    names = [*_REBUILT, *(kind.pipeline for kind in kinds if not kind.is_trained_on)]
    given = {name: params[name] for name in names if name in params}  # those of other pipelines decide nothing here
    given["subsampling"] = {**given.get("subsampling", {}), "exclude": listed}
    with session_of(env, given) as session:
        session.run(pipeline_names=names, runner=SequentialRunner())
    for kind in kinds:
        if not kind.is_trained_on:
            continue
        given = {name: params[name] for name in ("tokenization", kind.pipeline) if name in params}
        with session_of(env, given) as session:  # not the model: to train again is for the user to say
            session.run(
                pipeline_names=[kind.pipeline], to_outputs=[kind.dataset, kind.index], runner=SequentialRunner()
            )
