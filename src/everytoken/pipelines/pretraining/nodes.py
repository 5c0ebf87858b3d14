"""Pretraining: one model on any streams on disk: of this project, of another one, of another program."""

from pathlib import Path

from everytoken.parameters import GivenStreamParameters, PretrainingParameters, TrainingParameters
from everytoken.shards import Artifact, plan_artifact
from everytoken.tokens.streams import given_files
from everytoken.tokens.tokenizer import EncodingRules
from everytoken.training import TrainingError
from everytoken.training.run import train


def pretrain_model(pretraining: PretrainingParameters, parameters: TrainingParameters) -> Artifact:
    """Train on the named streams, known by their content wherever they lie.

    Streams have no held-out documents, so there is no look at such while it trains.
    """
    given = pretraining.tokenizer
    return plan_artifact(
        train,
        streams=[
            (name, given_files(f"pretraining.streams.{name}", Path(stream.path), stream.sha256))
            for name, stream in pretraining.active_streams.items()
        ],
        seq_length=pretraining.seq_length,
        rules=EncodingRules(
            given_files("pretraining.tokenizer", Path(given.path), given.sha256), pretraining.eos_token, "literal"
        ),
        model=parameters.model,
        training=parameters.optimisation.model_copy(update={"held_out": None}),
        data=parameters.data,
        initial=None if pretraining.initial is None else _checkpoint(pretraining.initial),
        held_out=None,
        checkpoints=parameters.checkpoints,
        distribution=parameters.distribution,
    )


def _checkpoint(given: GivenStreamParameters) -> Artifact:
    """Return the checkpoint that a run starts from."""
    found = given_files("pretraining.initial", Path(given.path), given.sha256)
    if isinstance(found, Artifact):
        return found
    raise TrainingError(
        f"pretraining.initial: {given.path} is no checkpoint of this project, as it has no ledger. Name the folder of "
        "a finished one, such as 06_models/checkpoint; everytoken import makes one of other programs' models"
    )
