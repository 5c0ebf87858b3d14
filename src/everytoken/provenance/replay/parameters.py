"""Parameters of a replay: those that decide bytes come from the release, those of this machine from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.release import TOKENIZER_PATH, Release, open_release
from everytoken.provenance.replay.manifest_files import is_release

RELEASED = ("ingestion", "subsampling", "tokenization")
_OF_THE_MACHINE = {
    "ingestion": ("reading", "keep_fetched", "dedup_memory"),
    "tokenization": ("fetched", "engine", "certificate", "shuffle_memory"),
}


def with_released_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters whose pipelines `RELEASED` are those of the release that ``replay.release`` names.

    The tokenizer is the file in the release. Parameters that change no byte (`_OF_THE_MACHINE`) stay. Where the folder
    is not there, or is a manifest in the published format, which tells no parameters, all stay as they are.

    Args:
        parameters: of an environment, plain data by pipeline.

    Raises:
        ProvenanceError: the release cannot be read.
    """
    folder = Path(parameters["replay"]["release"])
    if not is_release(folder):
        return dict(parameters)
    release = open_release(folder)
    return {**parameters, **{name: _released(release, name, parameters[name]) for name in RELEASED}}


def _released(release: Release, name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: own[key] for key in _OF_THE_MACHINE.get(name, ()) if key in own}
    released = {**release.parameters(name), **kept}
    if name == "tokenization":
        path = str(release.path / TOKENIZER_PATH)
        released["tokenizer"] = {"kind": "file", "path": path, "sha256": release.recipe["tokenizer"]["sha256"]}
    return released


def require_released(release: Release, name: str, found: Mapping[str, Any]) -> None:
    """Check that the parameters of a run are those of the release, but for those that change no byte.

    Args:
        release: that is replayed.
        name: of the pipeline.
        found: its parameters, as plain data.

    Raises:
        ProvenanceError: one differs.
    """
    expected = {**release.parameters(name), **{key: found.get(key) for key in _OF_THE_MACHINE.get(name, ())}}
    for path, told, own in _differences(expected, dict(found), name):
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
