"""Everything that a training process has to know, as one JSON file. Importing this loads no torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from everytoken.models import ModelParameters
from everytoken.shards import Artifact, recipe_value, value_digest
from everytoken.shards.remote import FileCache, RemoteArtifactStore
from everytoken.tokens.order import DataParameters
from everytoken.training.errors import TrainingError
from everytoken.training.parameters import CheckpointParameters, DistributionParameters, OptimisationParameters


class RemoteInput(BaseModel):
    """Where an artifact that the job reads is fetched from, on a node that has no copy of it.

    Attributes:
        url: of the artifact.
        root_digest: that it must have.
        folder: where its copy is, in the cache of each node.
        cache: folder of local copies.
        cache_bytes: the most bytes of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    root_digest: str
    folder: Path
    cache: Path
    cache_bytes: int


class TrainingJob(BaseModel):
    """One run of training: what it is (``run``), what it reads, and how it is done.

    Attributes:
        run: identity of the run: a digest of everything that its result depends on. Checkpoints of another are refused.
        streams: folder or file of each stream by name.
        remote: those of its inputs that are behind URLs.
        data: which samples of the streams, in which order.
        model: family and shape.
        training: optimiser, schedule, batch and arithmetic.
        checkpoints: where the state is kept.
        distribution: how many processes, and how they share the model.
        vocab_size: tokens of the tokenizer.
        eos_id: the token that ends documents.
        initial: checkpoint folder whose weights a new run starts from; null: new weights.
        held_out: file of `everytoken.training.evaluation.held_out.write_held_out`; null when ``training.held_out`` is.
        held_out_sha256: SHA-256 of that file: it is part of what the run is; null when ``held_out`` is.
        tokenizer: tokenizer file or folder, for samples; null when ``training.samples`` is.
        eos_token: spelling of ``eos_id``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str = Field(min_length=16)
    streams: dict[str, Path]
    remote: tuple[RemoteInput, ...] = ()
    data: DataParameters
    model: ModelParameters = Field(discriminator="family")
    training: OptimisationParameters
    checkpoints: CheckpointParameters
    distribution: DistributionParameters
    vocab_size: int = Field(gt=0)
    seq_length: int = Field(gt=0)
    eos_id: int = Field(ge=0)
    initial: Path | None
    held_out: Path | None
    held_out_sha256: str | None
    tokenizer: Path | None
    eos_token: str

    @property
    def content(self) -> str:
        """Digest of what a checkpoint of this job must have been made of, by value: no places, no processes.

        ``run`` is a text in a file that anybody can edit; this is what the processes really go by.
        """
        fields = {"run", "data", "model", "training", "vocab_size", "seq_length", "eos_id", "eos_token"}
        values = {name: recipe_value(getattr(self, name), name) for name in fields | {"held_out_sha256"}}
        return value_digest({**values, "streams": list(self.streams)})  # samples depend on their order

    @property
    def folder(self) -> Path:
        """Where the checkpoints of this run lie, and nothing else."""
        return Path(self.checkpoints.folder) / self.run[:16]

    @property
    def mirror(self) -> Path | None:
        """Where their copies lie."""
        return None if self.checkpoints.mirror is None else Path(self.checkpoints.mirror) / self.run[:16]

    @property
    def live_folder(self) -> Path:
        """Where the processes of this run put what they tell each other and the one that started them."""
        return Path(self.checkpoints.folder) / f"{self.run[:16]}.live"


def fetch_inputs(job: TrainingJob) -> list[Artifact]:
    """Let the folders of remote inputs be there; they stay as long as what is returned.

    Raises:
        TrainingError: a URL has another artifact now.
        ShardsError: it is out of reach, or not whole.
    """
    found: list[Artifact] = []
    for place in job.remote:
        artifact = RemoteArtifactStore(place.url, FileCache(place.cache, place.cache_bytes)).load()
        if artifact.root_digest != place.root_digest or artifact.folder != place.folder:
            raise TrainingError(
                f"{artifact.shown} was saved again since this training began: expected "
                f"{place.root_digest}, found {artifact.root_digest}. Run the pipeline that makes it with the "
                "parameters of before, then the same command again"
            )
        found.append(artifact)
    return found


def write_job(path: Path, job: TrainingJob) -> None:
    """Write the job as JSON."""
    path.write_text(job.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_job(path: Path) -> TrainingJob:
    """Return the job in a JSON file; raise ``TrainingError`` when it is missing or no job."""
    try:
        return TrainingJob.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise TrainingError(f"{path} is missing; `everytoken train` writes it") from error
    except ValidationError as error:
        raise TrainingError(f"{path} is not a training job of this version: {error}") from error
