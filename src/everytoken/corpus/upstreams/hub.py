"""Datasets of the Hugging Face hub as upstreams: pinned by commit, listed by the hub, fetched file by file when read.

A commit never changes, so its list of files is kept once it was had, and what is on this machine is read without a
network. Listing takes no file but the dataset's README, and that only for a subset.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from everytoken.corpus.errors import NoFilesError, RowError, UpstreamError
from everytoken.corpus.upstreams.fetch import Listed
from everytoken.corpus.upstreams.file import UpstreamFile
from everytoken.corpus.upstreams.patterns import Pattern, matches_pattern, parts_of
from everytoken.corpus.upstreams.pins import UNKNOWN_REVISION, commit, find_commit, repository_id
from everytoken.corpus.upstreams.remotes import HubRemote
from everytoken.corpus.upstreams.retries import FetchError
from everytoken.shards import write_text

_FRONT_MATTER = re.compile(r"\A\ufeff?---[^\S\n]*\n(.*?\n)---[^\S\n]*(\n|\Z)", re.DOTALL)
_SCALAR = (str, int, float, date)  # what a name may be in YAML: nested values can be short and endless when spelled
_SHOWN = 10
_FIND_COMMIT = find_commit("dataset", "<dataset>")


class HubUpstream(BaseModel):
    """Files of a dataset on the Hugging Face hub at a commit.

    Attributes:
        dataset: its id, ``organisation/name``.
        subset: the name of one of the configurations that the dataset's README declares, or null: the files are those
            of its ``data_files`` that also match ``pattern``.
        split: one split of the subset, or null for all of them.
        revision: the commit, 40 hex digits; or ``???``, which stops the run where the files are listed.
        pattern: of paths in the dataset, as in `PathUpstream`; ``**`` for all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["hub"]
    dataset: str
    subset: str | None = None
    split: str | None = None
    revision: str
    pattern: Pattern = "**"

    @field_validator("dataset")
    @classmethod
    def _is_an_id(cls, dataset: str) -> str:
        return repository_id(dataset, "dataset")

    @field_validator("revision")
    @classmethod
    def _is_a_commit(cls, revision: str) -> str:
        return revision if revision == UNKNOWN_REVISION else commit(revision, "read other text", _FIND_COMMIT)

    @model_validator(mode="after")
    def _split_of_a_subset(self) -> HubUpstream:
        if self.split is not None and self.subset is None:
            raise ValueError(
                f"split {self.split!r} is a split of no subset: set subset to a configuration of the dataset's README, "
                f"or set split to null and choose the files by pattern"
            )
        return self


def find_hub_files(name: str, upstream: HubUpstream, folder: Path) -> list[UpstreamFile]:
    """Return the files of a source, sorted by path; none of them is fetched.

    Args:
        folder: for everything that is fetched; the files' place is ``hub/<organisation--name>/<revision>`` in it.

    Raises:
        UpstreamError: the dataset cannot be listed at that commit, or no file matches.
    """
    if upstream.revision == UNKNOWN_REVISION:
        raise UpstreamError(
            f"source {name!r}: upstream.revision of dataset {upstream.dataset} is {UNKNOWN_REVISION}: its commit is "
            f"not known here. {_FIND_COMMIT}."
        )
    kept = listing_file(upstream, folder)
    place = kept.with_name(upstream.revision)
    try:
        listing = pinned_listing("dataset", upstream.dataset, upstream.revision, kept)
    except FetchError as error:
        raise UpstreamError(f"source {name!r}: {error}") from None
    remote = HubRemote(dataset=upstream.dataset, revision=upstream.revision)

    def file(path: str) -> UpstreamFile:
        return UpstreamFile(name, path, place / path, None, listing[path].pinned, listing[path].size, remote)

    patterns = None
    if upstream.subset is not None:
        if "README.md" not in listing:
            raise UpstreamError(
                f"source {name!r}: dataset {upstream.dataset} has no README.md at {upstream.revision}, which would "
                f"declare subset {upstream.subset!r}. Set subset to null and choose the files by pattern."
            )
        patterns = _subset_patterns(name, upstream, _read_text(file("README.md")))
    chosen = [
        path
        for path in sorted(listing)
        if matches_pattern(parts_of(path), parts_of(upstream.pattern))
        and (patterns is None or any(matches_pattern(parts_of(path), parts_of(pattern)) for pattern in patterns))
    ]
    if not chosen:
        among = "" if patterns is None else f" and one of {patterns} of subset {upstream.subset!r}"
        raise NoFilesError(
            f"source {name!r}: none of the {len(listing):,} files of dataset {upstream.dataset} at {upstream.revision} "
            f"matches {upstream.pattern!r}{among}. Files there are, for example: {sorted(listing)[:_SHOWN]}. Change "
            f"upstream.pattern (**/ reaches subfolders) or upstream.subset."
        )
    return [file(path) for path in chosen]


def listing_file(upstream: HubUpstream, folder: Path) -> Path:
    """Return where the list of a dataset's files is kept once the hub gave it; ``folder`` as in `find_hub_files`."""
    return folder / "hub" / upstream.dataset.replace("/", "--") / f"{upstream.revision}.listing.json"


def pinned_listing(kind: Literal["dataset", "model"], name: str, revision: str, kept: Path) -> dict[str, Listed]:
    """Return all files of a repository at a commit by path, from the list that was kept at ``kept`` or from the hub.

    Raises:
        FetchError: the repository cannot be listed at that commit.
    """
    try:
        return {path: Listed(*listed) for path, listed in json.loads(kept.read_text(encoding="utf-8")).items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        pass
    from everytoken.corpus.upstreams import (
        hub_client,  # imported where the hub is asked: the client takes its time to load
    )

    commit = hub_client.commit_of(kind, name, revision)
    if commit != revision:
        raise FetchError(
            f"a moved revision: the hub takes {revision} of {kind} {name} for commit {commit}",
            f"A branch or tag of that name hides the commit: look at the {kind}'s history, and pin another commit.",
        )
    listing = hub_client.list_tree(kind, name, revision)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_text(kept, json.dumps(listing, ensure_ascii=False))
    return listing


def _read_text(readme: UpstreamFile) -> str:
    try:
        if readme.pinned is not None:
            readme.require(readme.pinned)
        with readme.open() as stream:
            return stream.read().decode("utf-8", errors="replace").replace("\r\n", "\n")
    except RowError as error:
        raise UpstreamError(f"{error}") from None


def _subset_patterns(name: str, upstream: HubUpstream, readme: str) -> list[str]:
    """Return the patterns of the files of a subset, as the front matter of the README declares them."""
    where = f"source {name!r}: README.md of dataset {upstream.dataset} at {upstream.revision}"
    front = _FRONT_MATTER.match(readme)
    try:
        declared = yaml.safe_load(front.group(1)) if front else None
        configs = declared.get("configs") if isinstance(declared, dict) else None
        named = {
            str(config["config_name"]): config
            for config in (configs if isinstance(configs, list) else [])
            if isinstance(config, dict) and isinstance(config.get("config_name"), _SCALAR)
        }
    except Exception as error:  # PyYAML lets through what its constructors raise, and too deep a nesting
        reason = str(error) if isinstance(error, yaml.YAMLError) else f"{type(error).__name__}: {error}"
        raise UpstreamError(
            f"{where} has front matter that is no YAML ({reason}). Set subset to null and choose the files by pattern."
        ) from None
    if upstream.subset not in named:
        raise UpstreamError(
            f"{where} declares no subset {upstream.subset!r}, found {sorted(named)}. Set subset to one of them, or to "
            f"null and choose the files by pattern."
        )
    config = named[upstream.subset]
    try:
        by_split = list(_by_split(config))
    except (TypeError, KeyError, ValueError):
        raise UpstreamError(
            f"{where} declares data_files of subset {upstream.subset!r} in a form that is not known here: "
            f"{reprlib.repr(config.get('data_files'))}. Set subset to null and choose the files by pattern."
        ) from None
    patterns = [pattern for split, pattern in by_split if upstream.split in (None, split)]
    if not patterns:
        raise UpstreamError(
            f"{where} declares no split {upstream.split!r} of subset {upstream.subset!r}, found "
            f"{sorted({split for split, _ in by_split})}. Set split to one of them, or to null for all."
        )
    return patterns


def _by_split(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (split, pattern): ``data_files`` is a path, a list of paths, or a list of {split, path(s)}."""
    folder = config.get("data_dir")
    if folder is not None and not isinstance(folder, _SCALAR):
        raise TypeError(folder)
    entries = config.get("data_files", "**" if folder else None)
    for entry in _as_list(entries):
        split, paths = (entry["split"], entry["path"]) if isinstance(entry, dict) else ("train", entry)
        if not isinstance(split, _SCALAR):
            raise TypeError(split)
        for path in _as_list(paths):
            if not isinstance(path, str) or any("**" in part and part != "**" for part in parts_of(path)):
                raise ValueError(path)
            yield str(split), f"{folder}/{path}" if folder else path


def _as_list(value: Any) -> Sequence[Any]:
    if not isinstance(value, str | list):
        raise TypeError(value)
    return [value] if isinstance(value, str) else value
