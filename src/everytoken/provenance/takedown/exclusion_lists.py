"""Which list of excluded documents is in force in a data folder, so that no run brings a document back by oversight.

``<data>/04_feature/excluded_documents/`` keeps every list by the first 16 characters of its SHA-256; ``in_force.json``
there names the one that is in force: ``{"sha256"}``, null when all documents were taken back. `everytoken exclude`
writes it before it changes anything; a run that is given a longer list does so too. A run whose parameters name no list
takes this one, and one whose list lacks an entry of it is refused: documents come back by ``exclude --revoke`` alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from everytoken.corpus import Entry, ExclusionParameters, read_list
from everytoken.provenance.errors import ProvenanceError
from everytoken.shards import StoreBusy, atomic_file, canonical_json, lock_folder, sole_writer, write_text

LISTS_FOLDER = "04_feature/excluded_documents"

_IN_FORCE_FILE = "in_force.json"
_SHOWN = 3


def list_path(folder: Path, sha256: str) -> Path:
    """Return where the list of this content is: none is ever overwritten, so a run that was stopped loses none."""
    return folder / f"{sha256[:16]}.jsonl"


def put_in_force(folder: Path, sha256: str | None) -> None:
    """Say which list is in force from now on.

    Args:
        sha256: of the list; None: nothing is excluded any more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / _IN_FORCE_FILE, f"{canonical_json({'sha256': sha256})}\n")


def is_told(folder: Path) -> bool:
    """Return whether a folder of lists says what is in force."""
    return (folder / _IN_FORCE_FILE).is_file()


def list_told(folder: Path) -> ExclusionParameters | None:
    """Return the list in force; None where there is none.

    Raises:
        ProvenanceError: the file that names it is damaged.
    """
    path = folder / _IN_FORCE_FILE
    if not path.is_file():
        return None
    try:
        sha256 = json.loads(path.read_bytes())["sha256"]
        return None if sha256 is None else ExclusionParameters(path=str(list_path(folder, sha256)), sha256=sha256)
    except (ValueError, KeyError, TypeError) as error:
        raise ProvenanceError(
            f"{path} does not say which list of excluded documents is in force ({error!r}): write into it "
            '{"sha256": "..."}, the SHA-256 of the right one of the lists beside it (null: nothing is excluded)'
        ) from error


def list_of_run(
    configured: ExclusionParameters | None, *, is_null_given: bool, root: Path, data: Path, environment: str
) -> ExclusionParameters | None:
    """Return the list that a run takes: that of its parameters, or the one in force.

    Args:
        is_null_given: whether the command line says that there is none.

    Raises:
        ProvenanceError: the run would bring a document back.
        ExclusionError: a list is not there, or is another one.
    """
    told = list_told(root / data / LISTS_FOLDER)
    if told is None:
        return configured
    in_force = ExclusionParameters(path=str(list_path(data / LISTS_FOLDER, told.sha256)), sha256=told.sha256)
    if configured is None and not is_null_given:
        return in_force
    given = set()
    if configured is not None:
        if configured.sha256.lower() == told.sha256:
            return configured
        given = {entry.key for entry in read_list(root / configured.path, configured.sha256)}
    lacking = [entry for entry in read_list(Path(told.path), told.sha256) if entry.key not in given]
    if not lacking:
        return configured
    named = "null" if configured is None else f"{configured.path} (sha256 {configured.sha256.lower()})"
    raise ProvenanceError(
        f"subsampling.exclude is {named}, and in {data} the list {in_force.path} (sha256 {in_force.sha256}) is in "
        f"force: this would bring back {len(lacking):,} of what was taken down, {_some(lacking)}. Leave "
        "subsampling.exclude out, and the list in force is taken; or put it into "
        f"conf/{environment}/parameters_subsampling.yml:\n{as_yaml(in_force)}\nor take documents back: everytoken "
        "exclude --revoke --ids FILE, or everytoken exclude --revoke-all"
    )


def as_yaml(listed: ExclusionParameters) -> str:
    """Return the lines that pin a list in a file of parameters."""
    return f"subsampling:\n  exclude: {{path: {json.dumps(listed.path)}, sha256: {listed.sha256}}}"


def remember(folder: Path, listed: ExclusionParameters, root: Path) -> None:
    """Keep a list that a run is given, and put it in force, unless it is.

    Raises:
        ProvenanceError: a take-down is running, or one put entries in force that the list lacks.
    """
    sha256, path = listed.sha256.lower(), root / listed.path
    if _is_in_force(folder, listed):
        return
    with sole_take_down(folder):
        given = {entry.key for entry in read_list(path, sha256)}  # all of it is a list, and the one that is meant
        told = list_told(folder)
        if told is not None and any(entry.key not in given for entry in read_list(Path(told.path), told.sha256)):
            raise _changed(folder)
        folder.mkdir(exist_ok=True)
        if path.resolve() != list_path(folder, sha256).resolve():
            with atomic_file(list_path(folder, sha256)) as temporary:
                shutil.copyfile(path, temporary)
        put_in_force(folder, sha256)


def require_in_force(folder: Path, listed: ExclusionParameters | None) -> None:
    """Let a run that began before a take-down not bring its documents back.

    Raises:
        ProvenanceError: another list is in force by now.
    """
    if not _is_in_force(folder, listed):
        raise _changed(folder)


def _is_in_force(folder: Path, listed: ExclusionParameters | None) -> bool:
    told = list_told(folder)
    return (None if told is None else told.sha256.lower()) == (None if listed is None else listed.sha256.lower())


def _changed(folder: Path) -> ProvenanceError:
    return ProvenanceError(
        f"the list of excluded documents in force ({folder / _IN_FORCE_FILE}) was changed since this run began: "
        "documents would come back. Start the run again, and it takes the list that is in force now"
    )


@contextmanager
def sole_take_down(folder: Path) -> Iterator[None]:
    """Be the only one that changes what is in force.

    Args:
        folder: of the lists; the folder that it lies in is made.

    Raises:
        ProvenanceError: another process does.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as lock:
        try:
            lock.enter_context(sole_writer(lock_folder(folder)))
        except StoreBusy:
            raise ProvenanceError(
                f"another take-down is running in {folder.parent.parent}: nothing was changed. Wait for it to end, "
                "then give this command again"
            ) from None
        yield


def _some(entries: list[Entry]) -> str:
    shown = ", ".join(str(entry) for entry in entries[:_SHOWN])
    return shown if len(entries) <= _SHOWN else f"{shown} and {len(entries) - _SHOWN:,} more"
