"""What a training read: a run, described by the ledger of its checkpoint, and the order of its samples.

The recipe in the ledger says the streams in their order with their root digests, the parameters of the order, batch
size and steps. With the sizes of the streams that is all that `everytoken.tokens.order.sample_order` needs; nothing
about the run was logged, and nothing has to be replayed. Where a run began from another checkpoint, that one's run is
its past.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from pydantic import ValidationError

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import open_stream_index
from everytoken.provenance.lookup.dataset_locations import Places
from everytoken.provenance.lookup.indexed_streams import IndexedStream, indexed_stream
from everytoken.provenance.lookup.run_streams import stream_of_run
from everytoken.shards import LEDGER_FILE, Artifact, ArtifactStore, DamagedStore, recipe_digest
from everytoken.tokens.order import (
    DataParameters,
    SampleOrder,
    TrainingWindows,
    open_one_stream,
    open_training_windows,
)

TRAINED = "train"  # the function whose recipe a trained checkpoint has


class _Trained(TypedDict):
    """What is read of the statistics of a trained checkpoint."""

    steps: int
    batch_size: int
    seq_length: int
    skipped_steps: int


@dataclass(frozen=True)
class Run:
    """A run of training.

    Attributes:
        digest: its identity; folders of its checkpoints are named by the first 16 characters.
        streams: name and root digest of each, in the order of the rule.
        skipped_steps: steps that updated nothing, as loss or gradients were not finite.
        checkpoints: steps done at each checkpoint that is kept, with its folder, ascending; the last is the run's end.
        special_tokens_in_text: what a special token that a text spells became.
        initial: root digest of the checkpoint that it began from; None: new weights.
    """

    name: str
    digest: str
    streams: tuple[tuple[str, str], ...]
    data: DataParameters
    batch_size: int
    seq_length: int
    steps: int
    skipped_steps: frozenset[int] = frozenset()
    checkpoints: tuple[tuple[int, str], ...] = ()
    special_tokens_in_text: str = "literal"
    initial: str | None = None


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run with its streams.

    Attributes:
        folders: where each stream lies, by name; of one that is gone, and known by its index alone, nothing.
        compared: whether the digest of each was compared with that of the run.
    """

    run: Run
    windows: TrainingWindows
    folders: Mapping[str, Path]
    compared: Mapping[str, bool] = field(default_factory=dict)

    @property
    def order(self) -> SampleOrder:
        """Which window each sample is."""
        return self.windows.order

    @cached_property
    def last_sample(self) -> int:
        """The number of samples that the run read."""
        return self.run.steps * self.run.batch_size

    @property
    def gone(self) -> dict[str, IndexedStream]:
        """The streams of which only the index is there, by name."""
        return {one.name: one for one in self.windows.streams if isinstance(one, IndexedStream)}


def describe_run(name: str, checkpoint: Artifact, checkpoint_folders: Sequence[Path] = ()) -> Run:
    """Return the run that made a checkpoint.

    Args:
        checkpoint_folders: where the checkpoints of runs are kept, a folder a run in each.

    Raises:
        ProvenanceError: the checkpoint is not one that a training of this project made.
    """
    recipe = checkpoint.ledger["recipe"]
    if recipe["function"] != TRAINED:
        raise ProvenanceError(
            f"{checkpoint.folder} was made by {recipe['function']}, not by a training of this project: what the model "
            "was trained on is not known. Name a checkpoint of a training (checkpoint, pretrained_checkpoint, ...)"
        )
    given = recipe["parameters"]
    try:
        trained = checkpoint.statistics_as(_Trained)
        digest, steps = recipe_digest(recipe), int(trained["steps"])
        return Run(
            name=name,
            digest=digest,
            streams=tuple((str(stream), str(stored["digest"])) for stream, stored in given["streams"]),
            data=DataParameters.model_validate({**given["data"], "check": "sizes"}),
            batch_size=int(trained["batch_size"]),
            seq_length=int(trained["seq_length"]),
            steps=steps,
            skipped_steps=_skipped(checkpoint) if trained["skipped_steps"] else frozenset(),
            checkpoints=_checkpoints(digest, steps, checkpoint, checkpoint_folders),
            special_tokens_in_text=str(given["special_tokens_in_text"]),
            initial=None if given["initial"] is None else str(given["initial"]["digest"]),
        )
    except (ValidationError, DamagedStore, KeyError, TypeError, ValueError) as error:
        raise ProvenanceError(
            f"{checkpoint.folder}: the recipe of its ledger (version {recipe['version']} of {TRAINED}) is not as this "
            f"version writes it ({error!r}): ask with the version of everytoken that trained it"
        ) from error


def trained_checkpoints(places: Places) -> dict[str, tuple[str, Run]]:
    """Return root digest and run of the checkpoints in an environment that a training made, by name."""
    return {
        name: (one.root_digest, describe_run(name, one))
        for name, one in places.artifacts.items()
        if one.ledger["recipe"]["function"] == TRAINED
    }


def find_run(places: Places, name: str, checkpoint_folders: Sequence[Path] = ()) -> Run:
    """Return a run by the name of a dataset, the folder of a checkpoint, or the folder of one of its steps.

    Of the folder of a step the run ends there.

    Raises:
        ProvenanceError: there is no such checkpoint.
    """
    folder = places.paths.get(name, Path(name))
    if (folder / "state.json").is_file():
        return _run_of_step(places, name, folder, checkpoint_folders)
    if (folder / LEDGER_FILE).is_file():
        return describe_run(name, ArtifactStore(folder).load(), [*checkpoint_folders, folder.resolve().parent])
    known = list(trained_checkpoints(places))
    raise ProvenanceError(
        f"there is no run {name!r}: {folder} holds no checkpoint. Checkpoints of the environment "
        f"{places.environment!r}: {known or 'none yet'}. Name one of them, or the folder of a checkpoint"
    )


def past_of(places: Places, run: Run, checkpoint_folders: Sequence[Path] = ()) -> tuple[list[Run], str | None]:
    """Return the runs that a run goes back to, the earliest first and itself last; and what is not known before them.

    The second value is None when the earliest began from new weights.
    """
    runs = [run]
    while (wanted := runs[0].initial) is not None:
        if (found := places.with_digest(wanted)) is None:
            return runs, (
                f"the run {runs[0].name} began from the checkpoint with the digest {wanted}, which the environment "
                f"{places.environment!r} does not have: what that one was trained on is not counted here"
            )
        try:
            runs.insert(0, describe_run(found[0], found[1], checkpoint_folders))
        except ProvenanceError as error:
            return runs, f"the run {runs[0].name} began from a checkpoint of which is not counted here: {error}"
    return runs, None


def open_run(places: Places, run: Run, given: Mapping[str, Path]) -> OpenRun:
    """Open the streams of a run, found by their digests; of a stream that is gone, its index, where that is there.

    Args:
        given: where streams lie that are not in the environment, by name.

    Raises:
        ProvenanceError: a stream and its index are not there, or it is another one than the run read.
    """
    if unknown := sorted(set(given) - {name for name, _ in run.streams}):
        raise ProvenanceError(
            f"the run {run.name} has the streams {[name for name, _ in run.streams]}, and none named {unknown[0]!r}"
        )
    found: dict[str, tuple[Path, bool]] = {}
    gone: dict[str, IndexedStream] = {}
    for name, digest in run.streams:
        try:
            found[name] = stream_of_run(places, run.name, name, digest, given.get(name))
        except ProvenanceError:
            if name in given or digest not in places.indexes:
                raise
            places.indexes[digest].verify()  # all of it: no ids are left to compare an answer with
            gone[name] = indexed_stream(name, open_stream_index(places.indexes[digest], run.seq_length))
    folders = {name: path for name, (path, _) in found.items()}
    if gone:
        windows = _windows_with(gone, run, folders)
    else:
        windows = open_training_windows(folders, run.data, run.batch_size, run.seq_length)
    return OpenRun(run, windows, folders, {name: compared for name, (_, compared) in found.items()})


def _windows_with(gone: Mapping[str, IndexedStream], run: Run, folders: Mapping[str, Path]) -> TrainingWindows:
    there = {name: open_one_stream(name, path, run.data.check, run.seq_length) for name, path in folders.items()}
    streams = tuple(gone[name] if name in gone else there[name] for name, _ in run.streams)
    order = SampleOrder([one.name for one in streams], [len(one) for one in streams], run.data, run.batch_size)
    return TrainingWindows(streams, order)


def _run_of_step(places: Places, name: str, folder: Path, checkpoint_folders: Sequence[Path]) -> Run:
    try:
        document = json.loads((folder / "state.json").read_bytes())
        step, digest = int(document["step"]), str(document["state"]["run"])
    except (ValueError, KeyError, TypeError) as error:
        raise ProvenanceError(f"{folder / 'state.json'} is no state of a run ({error!r})") from error
    for dataset, (_, run) in trained_checkpoints(places).items():
        if run.digest == digest:
            artifact = places.artifacts[dataset]
            whole = describe_run(
                f"{dataset} at step {step}", artifact, [*checkpoint_folders, folder.resolve().parents[1]]
            )
            kept = tuple(one for one in whole.checkpoints if one[0] <= step)
            return Run(**{**vars(whole), "steps": step, "checkpoints": kept})
    raise ProvenanceError(
        f"{name} is a checkpoint of the run {digest[:16]}, and no checkpoint of the environment "
        f"{places.environment!r} is the end of that run: its streams are not known. Let the run end (the same kedro "
        "run goes on from there), or choose the environment that has it (--env)"
    )


def _checkpoints(digest: str, steps: int, checkpoint: Artifact, folders: Sequence[Path]) -> tuple[tuple[int, str], ...]:
    kept: dict[int, str] = {}
    for place in dict.fromkeys(path for one in folders for path in (one, one / "checkpoints")):
        for folder in sorted((place / digest[:16]).glob("step_*")):
            if folder.is_dir() and folder.name[5:].isdecimal():
                kept.setdefault(int(folder.name[5:]), str(folder))
    kept[steps] = str(checkpoint.folder)
    return tuple(sorted(kept.items()))


def _skipped(checkpoint: Artifact) -> frozenset[int]:
    import pyarrow.parquet as pq  # few runs skip a step

    table: Any = pq.read_table(checkpoint.path("history.parquet"), columns=["step", "skipped"])
    return frozenset(table.filter(table["skipped"])["step"].to_pylist())
