"""The streams of a run, found again: a recipe names them by root digest, and wherever they lie now they have that."""

from __future__ import annotations

from pathlib import Path

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.lookup.dataset_locations import Places
from everytoken.shards import LEDGER_FILE, ArtifactStore
from everytoken.tokens.streams import dataset_of_stream, files_read, given_files

MOST_READ = 1 << 30  # bytes of a stream without a ledger that are read to compare its digest: a second or two


def stream_of_run(
    places: Places, run: str, name: str, digest: str, given: Path | None, most_read: int = MOST_READ
) -> tuple[Path, bool]:
    """Return where the stream of a run lies, and whether its digest was compared with the run's.

    A stream of this project is told by its ledger. Files of another program have none: up to ``most_read`` bytes of
    them are read for their digest; more are taken by their name in the parameters, and the second value is False.

    Args:
        places: the environment's datasets, and the streams that its parameters name by path.
        given: where the user says that it lies.

    Raises:
        ProvenanceError: it is nowhere, or what is there is another one.
    """
    if given is None and (found := places.with_digest(digest)) is not None:
        folder = found[1].folder
        assert folder is not None
        return folder, True
    path = given or places.streams.get(name)
    if path is not None and files_read(path):
        there, compared = _digest_of(name, path, most_read)
        if not compared or there.startswith(digest):
            return path, compared
        raise _other(run, name, digest, f"{path} has {there}", places)
    dataset = dataset_of_stream(name)
    now = places.artifacts.get(dataset)
    what = f"there is no {dataset}" if now is None else f"{dataset} has {now.root_digest}: it was made again since"
    raise _other(run, name, digest, what, places)


def _digest_of(name: str, path: Path, most_read: int) -> tuple[str, bool]:
    if (path / LEDGER_FILE).is_file():
        return ArtifactStore(path).load().root_digest, True
    if sum(file.stat().st_size for file in files_read(path)) > most_read:
        return "", False
    return given_files(name, path, None).root_digest, True


def _other(run: str, name: str, digest: str, found: str, places: Places) -> ProvenanceError:
    return ProvenanceError(
        f"{run} read the stream {name!r} with the digest {digest}; in the environment {places.environment!r} {found}. "
        "Choose the environment that has it (--env). Or set the parameters back to those of the run (everytoken "
        "compare shows what differs between two runs) and run the pipelines that make the stream: the same parameters "
        f"give the same bytes. Or say where it lies: --streams {name}=PATH"
    )
