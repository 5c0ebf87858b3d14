"""A release as it is read: what it says of a corpus without its text.

A release is the folder that ``kedro run --pipelines release`` makes (`everytoken.provenance.releases.writing`
says what is in it). To open one reads its JSON files alone; whether its bytes are those that were written is for
``sha256sum -c SHA256SUMS`` and ``everytoken verify``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.untrusted import (
    parse_object,
    read_bounded,
    require_boundaries,
    require_path,
    require_recipe,
    require_streams,
    require_upstream,
)
from everytoken.shards import DamagedStore, Shards, StoredPart, file_sha256

RELEASE_FORMAT = "everytoken-release/1"
SPLITS = ("annotated", "unannotated", "held_out")

CARD_FILE = "README.md"
RECIPE_FILE = "recipe.json"
UPSTREAM_FILE = "upstream.json"
BOUNDARIES_FILE = "file_boundaries.json"
SUMS_FILE = "SHA256SUMS"
STREAMS_FILE = "verification/streams.json"
TOKENIZER_PATH = "tokenizer/tokenizer.json"
MANIFEST_FOLDER, RESCUE_FOLDER, CLASSIFICATIONS_FOLDER = "corpus-manifest", "text_rescue", "classifications"
VERIFICATION_FOLDER, REFLECTIONS_FOLDER = "verification", "reflections"

_WHAT_IT_IS = (
    "A release is the folder that `kedro run --pipelines release` makes (data/08_reporting/release), or a copy of it."
)


@dataclass(frozen=True)
class ReleasedPart(StoredPart):
    """A part of a manifest: who received the release cannot make it again."""

    def _damaged(self, error: Exception | str) -> DamagedStore:
        return DamagedStore(f"{self.path} cannot be read ({error}). Copy the release again.")


@dataclass(frozen=True)
class Release:
    """An opened release.

    Attributes:
        recipe: ``recipe.json``: parameters, versions, tokenizer, datasets, functions.
        upstream: ``upstream.json``: ``sources``, by name their pins, licences and files; ``plan``, the shard plan.
        boundaries: ``file_boundaries.json``: by split its rows and parts.
        sha256sums: SHA-256 (hex) of every file, by its path in the release.
    """

    path: Path
    recipe: dict[str, Any] = field(repr=False)
    upstream: dict[str, Any] = field(repr=False)
    boundaries: dict[str, Any] = field(repr=False)
    sha256sums: dict[str, str] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 (hex) of ``SHA256SUMS``: it stands for every byte of the release."""
        return file_sha256(self.path / SUMS_FILE)

    @cached_property
    def streams(self) -> dict[str, Any]:
        """``verification/streams.json``: by stream root_digest, statistics and files."""
        streams = _json(self.path, STREAMS_FILE)
        require_streams(streams, str(self.path / STREAMS_FILE))
        return streams

    def parameters(self, name: str) -> dict[str, Any]:
        """Return the parameters of a pipeline, as plain data that its model validates.

        Raises:
            ProvenanceError: the release has none of this name.
        """
        if name not in self.recipe["parameters"]:
            raise ProvenanceError(
                f"{self.path / RECIPE_FILE} has no parameters {name!r}, only {sorted(self.recipe['parameters'])}"
            )
        return dict(self.recipe["parameters"][name])

    @property
    def second_scores(self) -> list[str]:
        """Names of the second scores that every document of the manifests has."""
        return list(self.recipe["parameters"].get("annotation", {}).get("second_scores", {}))

    def manifest(self, split: str) -> Shards:
        """Return the manifest of a split, its parts in order (see `everytoken.provenance.releases.manifest.MANIFEST`).

        Raises:
            ProvenanceError: there is no such split.
        """
        if split not in self.boundaries:
            raise ProvenanceError(f"{self.path} has no split {split!r}, only {sorted(self.boundaries)}")
        folder = self.path / MANIFEST_FOLDER / split
        return Shards(
            tuple(
                ReleasedPart(
                    part["name"],
                    index,
                    folder / f"{part['name']}.parquet",
                    part["rows"],
                    part["content_digest"],
                    part["sha256"],
                )
                for index, part in enumerate(self.boundaries[split]["parts"])
            )
        )

    def text_rescue(self, split: str) -> list[Path]:
        """Return the files of ``text_rescue`` of a split, in the order of its parts; none where no text is given."""
        folder = f"{RESCUE_FOLDER}/{split}/"
        return [self.path / name for name in sorted(self.sha256sums) if name.startswith(folder)]


def open_release(path: Path) -> Release:
    """Open the release in a folder.

    Raises:
        ProvenanceError: it is none, one of another version, or one of its JSON files is missing or no JSON.
    """
    if not path.is_dir():
        raise ProvenanceError(f"{path} is no folder. {_WHAT_IT_IS}")
    if not (path / RECIPE_FILE).exists():
        here = sorted(entry.name for entry in path.iterdir())[:10]
        raise ProvenanceError(f"{path} has no {RECIPE_FILE}, only {here}: it is no release. {_WHAT_IT_IS}")
    recipe = _json(path, RECIPE_FILE)
    if recipe.get("format") != RELEASE_FORMAT:
        raise ProvenanceError(
            f"{path / RECIPE_FILE} has format {recipe.get('format')!r}, this version reads {RELEASE_FORMAT!r}. "
            f"{_WHAT_IT_IS}"
        )
    upstream, boundaries = _json(path, UPSTREAM_FILE), _json(path, BOUNDARIES_FILE)
    require_recipe(recipe, str(path / RECIPE_FILE))
    require_upstream(upstream, str(path / UPSTREAM_FILE))
    require_boundaries(boundaries, SPLITS, str(path / BOUNDARIES_FILE))
    return Release(path, recipe, upstream, boundaries, read_sums(path))


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        return parse_object(read_bounded(folder / name), str(folder / name))
    except (OSError, ValueError) as error:
        raise ProvenanceError(
            f"{folder / name} cannot be read ({error}): the release is not whole. Copy it again."
        ) from error


def read_sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by ``SHA256SUMS``, as ``sha256sum`` reads it: digest, two spaces, path.

    Raises:
        ProvenanceError: names the first line that is another, or whose path leaves the release.
    """
    path = folder / SUMS_FILE
    try:
        lines = read_bounded(path).decode("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ProvenanceError(f"{path} cannot be read ({error}): the release is not whole. Copy it again.") from error
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        digest, gap, name = line[:64], line[64:66], line[66:]
        if gap != "  " or not name or set(digest) - set("0123456789abcdef"):
            raise ProvenanceError(f"{path} line {number} is {line[:100]!r}, expected a SHA-256, two spaces and a path")
        sums[require_path(name, f"{path} line {number}")] = digest
    return sums
