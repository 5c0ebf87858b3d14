"""Parameters of a replay: those that decide bytes come from the release, those of this machine from the environment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import (
    REFLECTIONS_FOLDER,
    TOKENIZER_PATH,
    Release,
    is_readable,
    open_release,
    why_not_rebuilt,
    without_foreign_places,
)
from everytoken.provenance.replay.manifest_files import is_release
from everytoken.tokens.streams import released_kinds

_OF_THE_MACHINE = {
    "ingestion": ("reading", "keep_fetched", "dedup_memory", "max_evaluation_ngrams"),
    "tokenization": ("fetched", "engine", "certificate", "shuffle_memory"),
    "packing": ("shuffle_memory",),
}
_REFLECTION, _REFLECTED = "reflection", "reflected"
# What a parameter was before there was it, where the default is now another one.
_BEFORE = {"packing": {"cross_document_boundary": True}}


def released_groups() -> list[str]:
    """Return the pipelines whose parameters decide the bytes of a replay.

    Those of streams that only some jobs have only where the release has their stream.
    """
    return [*dict.fromkeys(("ingestion", "subsampling", *(kind.pipeline for kind in released_kinds())))]


def named_release(parameters: Mapping[str, Any]) -> Release:
    """Open the release that ``replay.release`` names.

    Raises:
        ProvenanceError: the folder is no release, or one that is not whole.
    """
    folder = Path(str(parameters["replay"]["release"]))
    if not is_release(folder):
        what = "has no recipe.json" if folder.is_dir() else "is no folder"
        raise ProvenanceError(
            f"replay.release is {folder.absolute()}, which {what}: it is no release, and a replay takes its parameters "
            "from one. Give --params replay.release=PATH, in every command of this environment. (A manifest in the "
            "published format tells no parameters: --env spp --pipelines replay)"
        )
    return open_release(folder)


def rebuilding_pipelines(release: Release) -> tuple[str, ...]:
    """Return the pipelines on request that a replay runs: ``packing`` where the release has raw shards.

    Not ``canary``: its documents are in no release, and whoever has them asks for it. Nor one of a reflected stream
    whose reflections are not all in the release.
    """
    kinds = [kind for kind in released_kinds() if kind.is_on_request and kind.own_documents is None]
    found = (kind for kind in kinds if kind.name in release.streams and why_not_rebuilt(release, kind.name) is None)
    return tuple(kind.pipeline for kind in found)


def with_released_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters in which those of `released_groups` are those of the release that ``replay.release`` names.

    Those of a pipeline of which the release has none (raw shards that were not released) stay, and those that change
    no byte (`_OF_THE_MACHINE`). The tokenizer is the file in the release. Places that are not read unasked are those
    of ``parameters`` (`everytoken.provenance.releases.roots`).

    Raises:
        ProvenanceError: see `named_release`.
    """
    release, allowed = named_release(parameters), listed_roots(parameters["replay"].get("allow_roots", ()))
    told = [name for name in released_groups() if name in release.recipe["parameters"]]
    released = {name: _released(release, name, parameters.get(name, {}), allowed) for name in told}
    if _REFLECTION in released:
        released[_REFLECTION] = _reflection(release, parameters)
    return {**parameters, **released}


def _reflection(release: Release, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of reflections: those in the release, in place of a generator, where it has them all."""
    own, told = parameters.get(_REFLECTION, {}), release.parameters(_REFLECTION)
    if why_not_rebuilt(release, _REFLECTED) is not None or _REFLECTED not in release.streams:
        return {**own, **told}
    files = {"kind": "path", "root": str(release.path.absolute() / REFLECTIONS_FOLDER), "pattern": "*.parquet"}
    generator = release.streams[_REFLECTED]["statistics"].get("generator")
    published = {"upstream": files, "generator": generator, "memory": parameters["replay"]["memory"]}
    return {**own, **told, "published": published}


def listed_roots(value: Any) -> Any:
    """Return ``replay.allow_roots`` as a list, which a command line gives as one string with | between them."""
    return [one.strip() for one in value.split("|") if one.strip()] if isinstance(value, str) else value


def _released(release: Release, name: str, own: Mapping[str, Any], allowed: Collection[str]) -> dict[str, Any]:
    of_machine = _OF_THE_MACHINE.get(name, ()) if own else ()
    of_release = {**_BEFORE.get(name, {}), **release.parameters(name)}
    told = {key: value for key, value in of_release.items() if key not in of_machine}
    kept = {key: own[key] for key in of_machine if key in own}  # of the others the default holds
    released = {**without_foreign_places(told, own, allowed), **kept}
    if name == "tokenization":
        path = str(release.path / TOKENIZER_PATH)
        released["tokenizer"] = {"kind": "file", "path": path, "sha256": release.recipe["tokenizer"]["sha256"]}
    return released


def require_released(release: Release, name: str, found: Mapping[str, Any]) -> None:
    """Check that the parameters of a run are those of the release, but for those that change no byte.

    Raises:
        ProvenanceError: one differs.
    """
    expected = {**release.parameters(name), **{key: found.get(key) for key in _OF_THE_MACHINE.get(name, ())}}
    for path, told, own in _differences(expected, dict(found), name):
        if path.endswith(".root") and not is_readable(str(told), ()):  # the user's, see `without_foreign_places`
            continue
        if path.endswith(".path"):
            continue
        raise ProvenanceError(
            f"{path} is {own!r}, the release {release.path} was made with {told!r}: other rows would be read. Run with "
            "--env replay, which takes the parameters of the release, and do not set this one"
        )


def _differences(expected: Any, found: Any, path: str) -> list[tuple[str, Any, Any]]:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        keys = sorted({*expected, *found})
        return [
            difference
            for key in keys
            for difference in _differences(expected.get(key), found.get(key), f"{path}.{key}")
        ]
    return [] if expected == found else [(path, expected, found)]
