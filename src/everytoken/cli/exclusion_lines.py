"""What `everytoken exclude` prints: what it is about to change, what it changed, and what is left to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.address import Address

if TYPE_CHECKING:
    from everytoken.corpus import ExclusionParameters
    from everytoken.provenance.lookup import Places
    from everytoken.provenance.takedown import Before, InForce, Request, Revocation
    from everytoken.reflections.ranks import ForgottenRows

_MOST_SHOWN = 20
_WITH_TEXT = (
    *("upstream_documents", "dropped_documents", "documents", "scored_documents"),
    *("annotated_documents", "unannotated_documents", "annotated_split", "unannotated_split"),
    "reflections_manifest",
)
_AS_IT_WAS = ("checkpoint", "pretrained_checkpoint", "finetuned_checkpoint", "release")


def say_missing(request: Request, allow_missing: bool) -> None:
    """Say what is in no split, and what is known of it.

    Raises:
        ClickException: there is such, and it is not allowed.
    """
    for one, known in request.missing[:_MOST_SHOWN]:
        what = "; ".join(f"{row.address}: {row.reason} {row.told}" for row in known)
        click.echo(f"{one} is in no split: {what.strip() or 'nothing that was read has it'}", err=True)
    if len(request.missing) > _MOST_SHOWN:
        click.echo(f"and {len(request.missing) - _MOST_SHOWN:,} more", err=True)
    if request.missing and not allow_missing:
        raise click.ClickException(
            f"{len(request.missing):,} of what is to be excluded are in no split: nothing was changed. Correct the "
            "file, or put them on the list all the same (--allow-missing)"
        )


def say_before(request: Request, in_force: InForce, before: Before) -> None:
    """Say which documents are excluded, where they are, and which trainings read them."""
    documents = before.facts["documents"]
    applied = len(in_force.applied)
    click.echo(
        f"{len(documents):,} documents to exclude; {applied:,} entries are in force already and stay so"
        + (f" ({request.known:,} of these were asked for again)" if request.known else "")
    )
    _say_documents(documents)
    for run in before.facts["runs"]:
        seen = [one for document in documents for one in document["exposures"] if one["run"] == run["name"]]
        steps = sorted({one["step"] for one in seen})
        click.echo(
            f"{run['name']}: {len(steps):,} of its {run['steps']:,} steps read tokens of them{_numbers(steps)}; the "
            "model keeps what it learned"
        )
    for note in before.facts["notes"]:
        click.echo(f"note: {note}")


def say_stopped(before: Before) -> None:
    """Say that a take-down goes on, and which documents it is about."""
    click.echo("an earlier try was stopped: this goes on with it, and reports what was before both")
    _say_documents(before.facts["documents"])


def say_revoked(revocation: Revocation, before: Before) -> None:
    """Say what comes back, and where."""
    documents = before.facts["documents"]
    click.echo(
        f"{len(revocation.revoked):,} entries are taken back, {len(revocation.kept):,} stay in force; "
        f"{len(documents):,} documents come back to the streams, and held-out ones that the entries name to the "
        "held-out documents"
    )
    _say_documents(documents)


def _say_documents(documents: Sequence[Mapping[str, Any]]) -> None:
    for document in documents[:_MOST_SHOWN]:
        click.echo(_line_of(document))
    if len(documents) > _MOST_SHOWN:
        click.echo(f"and {len(documents) - _MOST_SHOWN:,} more, all in the report")


def _line_of(document: Mapping[str, Any]) -> str:
    named = "no id" if document["id"] is None else repr(document["id"])
    if document["split"] == "held_out":
        where = "is removed from the held-out documents"
    else:
        where = "; ".join(
            f"{name} {_numbers([one['window'] for one in held]).strip(' ()')}"
            for name, held in document["windows"].items()
        )
    return f"  {document['split']} {document['number']:,} ({Address.of(document)}, {named}): {where or 'in no window'}"


def _numbers(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    more = f" and {len(numbers) - _MOST_SHOWN:,} more" if len(numbers) > _MOST_SHOWN else ""
    return f" ({', '.join(f'{number:,}' for number in numbers[:_MOST_SHOWN])}{more})"


def say_after(report: Mapping[str, Any], path: Path) -> None:
    """Say which parts and windows have other bytes, and what is not as it should be."""
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
        of_documents = "" if report["revoked"] else ", and no token of the documents is left in a stream"
        click.echo(f"every other window has the bytes that it had{of_documents}")
    click.echo(f"\nreport: {path}")


def say_forgotten(forgotten: Sequence[ForgottenRows]) -> None:
    """Say what was removed from the result files of generation runs."""
    for one in forgotten:
        ended = f"; the ranks {', '.join(map(str, one.ended))} were ended, submit them again" if one.ended else ""
        click.echo(f"generation run {one.run}: what was generated about {one.rows:,} rows is removed{ended}")


def say_to_generate(pipelines: Sequence[str], environment: str | None) -> None:
    """Say what asks a generator about documents that come back."""
    if pipelines:
        env = "" if environment is None else f" --env {environment}"
        click.echo(
            f"reflections are as before, without the documents that come back. To ask about them: kedro run{env} "
            f"--pipelines {','.join(pipelines)}"
        )


def say_list(
    configured: ExclusionParameters | None, environment: str | None, path: str, sha256: str, *, kept: bool
) -> None:
    """Say what later runs take for the list, and what would make them forget it.

    Args:
        configured: the list that the parameters of the environment name.
        path: of the list that is in force now.
    """
    from everytoken.corpus import ExclusionParameters
    from everytoken.provenance.takedown import as_yaml

    if not kept:
        click.echo("nothing is excluded any more: later runs take no list")
        return
    lines = as_yaml(ExclusionParameters(path=path, sha256=sha256))
    where = f"conf/{environment or 'local'}/parameters_subsampling.yml"
    if configured is not None and configured.sha256.lower() != sha256:
        click.echo(
            "the configuration names another list (subsampling.exclude), and the next run stops as long as that lacks "
            f"an entry of this one. Take it out, or put this one into {where}:\n{lines}"
        )
        return
    click.echo(
        f"later runs keep it: {Path(path).parent / 'in_force.json'} names it. It lies in the data folder; to keep it "
        f"when that is removed, copy the list elsewhere and put its path into {where}:\n{lines}"
    )


def say_what_has_text(places: Places) -> None:
    """Say where texts of excluded documents still are, and how to remove them."""
    with_text = [str(places.paths[name]) for name in _WITH_TEXT if places.has(name)]
    click.echo(
        "\nthis machine still has their text: the files of the upstream, and the folders below, from which the streams "
        f"are made; later releases have none of it. To remove it (a later run reads it again from upstream):\n"
        f"rm -r {' '.join(with_text)}"
    )


def say_not_made_again(places: Places) -> None:
    """Say what was made again as a whole, and what is as it was."""
    from everytoken.provenance.takedown import rebuilt_kinds

    if again := [name for name, kind in rebuilt_kinds().items() if places.has(name) and kind.base is None]:
        click.echo(f"made again as a whole, as windows have no fixed places in them: {', '.join(again)}")
    if made := [name for name in _AS_IT_WAS if places.has(name)]:
        click.echo(
            f"not made again, and as before: {', '.join(made)}. A model keeps what it learned; kedro run"
            f"{places.options} trains one on the new streams. --pipelines release makes a release of them"
        )
