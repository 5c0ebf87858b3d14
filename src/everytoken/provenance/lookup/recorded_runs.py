"""A run that only MLflow knows any more: its checkpoint was made again since, its streams may be there still."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.lookup.dataset_locations import Places
from everytoken.provenance.lookup.runs import Run
from everytoken.tokens.order import DataParameters
from everytoken.tokens.streams import STREAM_KINDS


class _Training(NamedTuple):
    """How a pipeline trains: the group of its parameters, its streams where that has none, and what it begins from."""

    checkpoint: str
    group: str
    streams: tuple[str, ...]
    initial: str | None


# the last that a run made is the one that is asked about; streams that are given by path MLflow does not know
_TRAININGS = (
    _Training("finetuned_checkpoint", "finetuning", ("chats",), "checkpoint"),
    _Training("checkpoint", "training", ("compact", "annotated"), None),
)

CHECKPOINTS = (*(one.checkpoint for one in _TRAININGS), "pretrained_checkpoint")
"""The datasets that a run made which trained."""


def recorded_run(places: Places, name: str, parameters: Mapping[str, Any], digests: Mapping[str, str]) -> Run:
    """Return the run that parameters and contents describe.

    Args:
        places: where its streams are looked for: their digests are recorded by their beginnings.
        parameters: by group, as the run read them.
        digests: the beginning of the root digest of each dataset that it read or made.

    Raises:
        ProvenanceError: it trained nothing, or with streams by path, or the parameters are of another version.
    """
    done = [one for one in _TRAININGS if one.checkpoint in digests and one.group in parameters]
    if not done:
        raise ProvenanceError(
            f"{name} read and made {sorted(digests)}: no checkpoint of which streams and parameters are "
            "recorded. Name a run that trained to its end, or the folder of a checkpoint"
        )
    training, own = done[0], parameters[done[0].group]
    try:
        steps = int(own["optimisation"]["steps"])
        return Run(
            name=name,
            digest=f"recorded as {digests[training.checkpoint]}",
            streams=tuple((one, _whole(places, _digest(digests, one))) for one in own.get("streams", training.streams)),
            data=DataParameters.model_validate({**own["data"], "check": "sizes"}),
            batch_size=int(own["optimisation"]["batch_size"]),
            seq_length=int(parameters["tokenization"]["seq_length"]),
            steps=steps,
            checkpoints=((steps, f"{training.checkpoint} {digests[training.checkpoint]} (recorded)"),),
            special_tokens_in_text=str(parameters["tokenization"]["special_tokens_in_text"]),
            initial=None if training.initial is None else _whole(places, digests[training.initial]),
        )
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise ProvenanceError(
            f"the parameters of {name} are not as this version records them ({error!r}): ask with the version "
            "that trained it"
        ) from error


def _digest(digests: Mapping[str, str], stream: str) -> str:
    """Return the beginning of the digest of a stream, which a run may have read under another name where it is made."""
    kind = STREAM_KINDS[stream]
    return digests[kind.dataset if kind.dataset in digests else kind.input]


def _whole(places: Places, beginning: str) -> str:
    """Return the digest in the environment that begins so; the beginning itself when there is none."""
    known = [*(one.root_digest for one in places.artifacts.values()), *places.indexes]
    found = {one for one in known if one.startswith(beginning)}
    return found.pop() if len(found) == 1 else beginning
