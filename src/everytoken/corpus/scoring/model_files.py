"""The files of a sequence classifier, from the Hugging Face hub or from a folder, as an artifact.

Configuration, tokenizer and weights, nothing else. Weights are safetensors: a pickle runs code when it is loaded. A
model that is not one of transformers' own needs code of its own; that comes from a commit that the parameters name, or
from the folder where they allow it, lies in the artifact like the rest, and is loaded from nowhere else. The ledger of
the artifact has the SHA-256 of every file, and its root digest is in the recipe of every part that the model scores.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypedDict

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from safetensors import SafetensorError, safe_open

from everytoken.corpus.documents import N_CLASSES
from everytoken.corpus.errors import ScoringError
from everytoken.corpus.upstreams import (
    UNKNOWN_REVISION,
    FetchError,
    HubRepository,
    commit,
    find_commit,
    repository_id,
)
from everytoken.shards import Built, file_sha256, value_digest, versioned
from everytoken.tagged_unions import keys_of_the_chosen_kind

_CONFIG, _TOKENIZER = "config.json", "tokenizer.json"
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")  # taken where they are there
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # of a file at the top of a repository or folder


def _repository_id(name: str) -> str:
    return repository_id(name, "repository")


def _commit(revision: str) -> str:
    if revision == UNKNOWN_REVISION:
        return revision
    return commit(revision, "score with other weights or run other code", find_commit("model", "<id>"))


class HubCode(BaseModel):
    """The repository that a model's own code comes from, at a commit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repository: Annotated[str, AfterValidator(_repository_id)]
    revision: Annotated[str, AfterValidator(_commit)]


class HubModel(BaseModel):
    """A model on the Hugging Face hub.

    Attributes:
        repository: its id, ``organisation/name``.
        revision: the commit, 40 hex digits; or ``???``, which stops the run where the files are fetched.
        remote_code: where the code of a model that transformers does not have itself comes from; the code runs with
            the rights of whoever scores. Null runs none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["hub"]
    repository: Annotated[str, AfterValidator(_repository_id)]
    revision: Annotated[str, AfterValidator(_commit)]
    remote_code: HubCode | None = None


class ModelFolder(BaseModel):
    """A model in a folder of this machine, known by the content of its files.

    Attributes:
        path: the folder, as ``save_pretrained`` of the model and of the tokenizer wrote it.
        custom_code: whether the folder's ``*.py`` files are the model's code and run, with the rights of whoever
            scores.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["folder"]
    path: str
    custom_code: bool = False


_KINDS: dict[str, type[BaseModel]] = {"hub": HubModel, "folder": ModelFolder}


def _chosen_kind(data: Any) -> Any:
    return keys_of_the_chosen_kind(data, _KINDS)


Model = Annotated[
    Annotated[HubModel | ModelFolder, Field(discriminator="kind")],
    BeforeValidator(_chosen_kind),
]


def model_identity(model: HubModel | ModelFolder) -> dict[str, object]:
    """Return what tells the model from any other, for the recipe of `fetch_model`; a folder's path is no part of it.

    Returns:
        Repositories and commits of a model on the hub; of a folder the SHA-256 of each file that is taken, by name.

    Raises:
        ScoringError: the folder lacks a file.
    """
    if isinstance(model, HubModel):
        return model.model_dump(mode="json")
    place = _Folder(Path(model.path))
    return {"kind": "folder", "files": {name: file_sha256(place.bring(name)) for name in _chosen(place, model)}}


class ModelStatistics(TypedDict):
    """Statistics of `fetch_model`."""

    repository: str | None
    revision: str | None
    weights_sha256: str
    parameters: int
    labels: dict[str, str]
    code: list[str]


@versioned("fetch_model", 1, unrecorded=["model", "fetched", "any_labels"])
def fetch_model(
    folder: Path,
    *,
    identity: Mapping[str, Any],
    model: HubModel | ModelFolder,
    fetched: Path,
    any_labels: bool = False,
) -> Built:
    """Gather the files of a model in the artifact's folder.

    Args:
        fetched: where files of the hub are gathered, byte by byte and across runs; they share their disk space with
            the artifact where the file system can (hard links).
        any_labels: whether the classifier may have another number of labels than 6.

    Returns:
        Statistics: ``repository`` and ``revision`` (null for a folder), ``weights_sha256`` (of the file; of several
        the digest of their names and SHA-256), ``parameters`` (how many numbers the weights are), ``labels`` by class,
        ``code`` (names of the files of its own code).

    Raises:
        ScoringError: a file is missing or cannot be fetched, the folder is no longer what was planned, there are no
            safetensors, or the classifier has another number of labels.
    """
    place: HubRepository | _Folder
    if isinstance(model, HubModel):
        if model.revision == UNKNOWN_REVISION:
            raise ScoringError(
                f"the revision of the model {model.repository} is {UNKNOWN_REVISION}: its commit is not known here. "
                f"{find_commit('model', repr(model.repository))}, and set annotation.scorer.model.revision"
            )
        place = HubRepository(model.repository, model.revision, fetched)
    else:
        place = _Folder(Path(model.path))
    try:
        chosen, code = _gathered(place, model, folder)
    except FetchError as error:
        raise ScoringError(str(error)) from None
    weights = {name: file_sha256(folder / name) for name in chosen if name.endswith(".safetensors")}
    if isinstance(model, ModelFolder):
        _require_identity(folder, place, identity)
    return Built(
        ModelStatistics(
            repository=model.repository if isinstance(model, HubModel) else None,
            revision=model.revision if isinstance(model, HubModel) else None,
            weights_sha256=next(iter(weights.values())) if len(weights) == 1 else value_digest(weights),
            parameters=sum(_count_parameters(folder / name) for name in weights),
            labels=_labels(place, folder / _CONFIG, any_labels),
            code=code,
        )
    )


def _gathered(
    place: HubRepository | _Folder, model: HubModel | ModelFolder, folder: Path
) -> tuple[list[str], list[str]]:
    """Put the files of the model into ``folder``; return their names, and those of its code."""
    chosen = _chosen(place, model)
    for name in chosen:
        source = place.bring(name)
        if isinstance(place, HubRepository):
            _link(source, folder / name)
        else:
            shutil.copyfile(source, folder / name)  # no link: whoever trains on may write into their own file
    if not isinstance(place, HubRepository) or not isinstance(model, HubModel) or model.remote_code is None:
        return chosen, [name for name in chosen if name.endswith(".py")]
    repository = HubRepository(model.remote_code.repository, model.remote_code.revision, place.fetched)
    code = sorted(name for name in repository.names if _NAME.fullmatch(name) and name.endswith(".py"))
    if not code:
        raise ScoringError(f"{repository} has no *.py files, found {_some(repository.names)}: it is no code.")
    for name in code:
        _link(repository.bring(name), folder / name)
    return chosen, code


class _Folder(NamedTuple):
    path: Path

    @property
    def names(self) -> set[str]:
        if not self.path.is_dir():
            raise ScoringError(f"model: there is no folder {self.path.absolute()}. Set model.path to a folder.")
        return {path.name for path in self.path.iterdir() if path.is_file()}

    def bring(self, name: str) -> Path:
        return self.path / name

    def __str__(self) -> str:
        return f"the model in {self.path.absolute()}"


def _chosen(place: HubRepository | _Folder, model: HubModel | ModelFolder) -> list[str]:
    """Return the names of the files that are taken, sorted; the code of another repository is not among them."""
    names = place.names
    for name, remedy in (
        (_CONFIG, "Save the model there with model.save_pretrained(folder)."),
        (_TOKENIZER, "Save the tokenizer there as tokenizer.json (a fast tokenizer's save_pretrained does)."),
    ):
        if name not in names:
            raise ScoringError(f"{place} has no {name}, only {_some(names)}. {remedy}")
    taken = {_CONFIG, _TOKENIZER} | (set(_BESIDE) & names) | set(_weights(place, names))
    if isinstance(model, ModelFolder) and model.custom_code:
        taken |= {name for name in names if _NAME.fullmatch(name) and name.endswith(".py")}
    return sorted(taken)


def _weights(place: HubRepository | _Folder, names: set[str]) -> list[str]:
    """Return the names of the files with weights, and of their index where there are several."""
    if _WHOLE in names:
        return [_WHOLE]
    if _INDEX not in names:
        pickles = sorted(name for name in names if name.endswith(_PICKLES))
        only = f"only pickles ({_some(pickles)}), which run code when they are loaded" if pickles else f"{_some(names)}"
        raise ScoringError(
            f"{place} has no {_WHOLE}, found {only}. Save it as safetensors: load it where you trust it, and call "
            f"model.save_pretrained(folder)."
        )
    index = place.bring(_INDEX)
    try:
        files = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        missing = [name for name in files if name not in names]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _damaged(place, _INDEX, error)
    if missing or not all(_NAME.fullmatch(name) and name.endswith(".safetensors") for name in files):
        raise ScoringError(f"{place}: {_INDEX} names {_some(missing or files)}, found {_some(names)}. Save it again.")
    return [_INDEX, *files]


def _labels(place: HubRepository | _Folder, config: Path, any_labels: bool) -> dict[str, str]:
    """Return the labels by class; transformers' default is two."""
    try:
        found = json.loads(config.read_bytes())
        told = found.get("id2label") or {str(k): f"LABEL_{k}" for k in range(found.get("num_labels", 2))}
        labels = {str(k): str(label) for k, label in told.items()}
    except (ValueError, AttributeError, TypeError) as error:
        _damaged(place, _CONFIG, error)
    if any_labels:
        _require_numbered(place, labels)
    elif sorted(labels) != [str(k) for k in range(N_CLASSES)]:
        raise ScoringError(
            f"{place} is no classifier with {N_CLASSES} labels 0 to {N_CLASSES - 1}: {_CONFIG} has "
            f"{len(labels)} ({_some(labels.values())}). Choose a classifier of six classes, 0 (harmless) to 5."
        )
    if found.get("num_labels", len(labels)) != len(labels):
        raise ScoringError(
            f"{place}: {_CONFIG} has id2label of {len(labels)} labels, and num_labels {found['num_labels']!r}. Remove "
            f"num_labels there, or save the model again with model.save_pretrained(folder)."
        )
    return labels


def _require_numbered(place: HubRepository | _Folder, labels: Mapping[str, str]) -> None:
    if not labels or {*labels} != {str(k) for k in range(len(labels))}:
        raise ScoringError(
            f"{place}: the labels of {_CONFIG} are numbered {_some(labels)}, expected 0 to {len(labels) - 1}. Save the "
            f"model again with model.save_pretrained(folder)."
        )


def _count_parameters(path: Path) -> int:
    try:
        with safe_open(path, framework="numpy") as weights:
            shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise ScoringError(
            f"{path.name} is no safetensors file ({error}). It is damaged, or a pickle by another name: save the model "
            f"again with model.save_pretrained(folder)."
        ) from None
    total = 0
    for shape in shapes:
        size = 1
        for length in shape:
            size *= length
        total += size
    return total


def _require_identity(folder: Path, place: HubRepository | _Folder, identity: Mapping[str, Any]) -> None:
    found = {path.name: file_sha256(path) for path in folder.iterdir()}
    changed = sorted(name for name in {*found, *identity["files"]} if found.get(name) != identity["files"].get(name))
    if changed:
        raise ScoringError(f"{place} has changed since the run was planned: {_some(changed)}. Run again.")


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)


def _damaged(place: HubRepository | _Folder, name: str, error: Exception) -> NoReturn:
    raise ScoringError(
        f"{place}: {name} is not what save_pretrained writes ({type(error).__name__}: {error}). Save the model again."
    ) from None


def _some(names: Iterable[str]) -> str:
    return str(sorted(names)[:10])
