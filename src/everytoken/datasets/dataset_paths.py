"""The paths of the datasets of an environment, from its catalog alone: no dataset is made and no pipeline imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kedro.io.catalog_config_resolver import DEFAULT_RUNTIME_PATTERN, CatalogConfigResolver

_PLACEHOLDER = re.compile(r"\\{(.*?)\\}")  # as re.escape spells it


class DatasetPaths(dict[str, Path]):
    """Paths by name: of every catalog entry, and of every dataset of a factory that exists on disk.

    ``paths[name]`` also gives the path of a dataset of a factory that does not exist yet.

    Args:
        catalog: the configuration of the catalog; placeholders of a factory are in the last part of its path.
        folder: what the paths are relative to.
    """

    def __init__(self, catalog: Mapping[str, Any], folder: Path = Path()) -> None:
        self._resolver = CatalogConfigResolver(dict(catalog), default_runtime_patterns=DEFAULT_RUNTIME_PATTERN)
        self._folder = folder
        entries = self._resolver.config.items()
        super().__init__({name: folder / entry["filepath"] for name, entry in entries if "filepath" in entry})
        for factory in filter(CatalogConfigResolver.is_pattern, catalog):
            if "filepath" in catalog[factory]:  # else its datasets are in memory
                self.update(self._made_by(factory, folder / catalog[factory]["filepath"]))

    def __missing__(self, name: str) -> Path:
        is_of_factory = name.isidentifier() and self._resolver.match_dataset_pattern(name) is not None
        entry = self._resolver.resolve_pattern(name) if is_of_factory else {}
        if "filepath" not in entry:
            raise KeyError(name)
        return self._folder / str(entry["filepath"])

    def _made_by(self, factory: str, path: Path) -> Iterator[tuple[str, Path]]:
        """Find the datasets of a factory on disk, unless another entry has their name."""
        form = re.compile(_PLACEHOLDER.sub(r"(?P<\1>.+)", re.escape(path.name)))
        for found in sorted(path.parent.iterdir()) if path.parent.is_dir() else ():
            if (match := form.fullmatch(found.name)) is None:
                continue
            name = factory.format_map(match.groupdict())
            if name.isidentifier() and self._resolver.match_dataset_pattern(name) == factory and name not in self:
                yield name, found
