"""The paths of the datasets of an environment, from its catalog alone: no dataset is made and no pipeline imported.

Names find their factory as in Kedro's ``CatalogConfigResolver``, whose import takes longer than an answer of `trace`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from everytoken.redaction import is_url

_PLACEHOLDER = re.compile(r"\{(.*?)\}")


class DatasetPaths(dict[str, Path]):
    """Paths by name: of every catalog entry, and of every dataset of a factory that exists on disk; none of URLs.

    ``paths[name]`` also gives the path of a dataset of a factory that does not exist yet.

    Args:
        catalog: the configuration of the catalog; placeholders of a factory are in the last part of its path.
        folder: what the paths are relative to.
    """

    def __init__(self, catalog: Mapping[str, Any], folder: Path = Path()) -> None:
        local = {name: entry for name, entry in catalog.items() if not is_url(str(entry.get("filepath", "")))}
        files = {name: folder / entry["filepath"] for name, entry in local.items() if "filepath" in entry}
        super().__init__({name: path for name, path in files.items() if "{" not in name})
        self._folder, self._entries = folder, frozenset(catalog)
        self._factories = {name: catalog[name] for name in in_factory_order(catalog) if "{" in name}
        for factory in self._factories:
            if factory in files:
                self.update(self._made_by(factory, files[factory]))

    def __missing__(self, name: str) -> Path:
        factory, values = self._factory_of(name)
        entry = self._factories.get(factory, {})
        if "filepath" not in entry or is_url(str(entry["filepath"])):
            raise KeyError(name)
        return self._folder / str(entry["filepath"]).format_map(values)

    def _factory_of(self, name: str) -> tuple[str, Mapping[str, str]]:
        """Return the factory that makes a dataset, and the values of its placeholders; "" for no dataset."""
        for factory in self._factories if name.isidentifier() and name not in self._entries else ():
            if (match := _form(factory).fullmatch(name)) is not None:
                return factory, match.groupdict()
        return "", {}

    def _made_by(self, factory: str, path: Path) -> Iterator[tuple[str, Path]]:
        """Find the datasets of a factory on disk, unless another entry has their name."""
        found = sorted(one.name for one in path.parent.iterdir()) if path.parent.is_dir() else []
        for name, place in made_by_factory(factory, path.name, found):
            if self._factory_of(name)[0] == factory and name not in self:
                yield name, path.parent / place


def made_by_factory(factory: str, form: str, found: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the datasets of a factory among names of files: each with the name of its file.

    Args:
        factory: the pattern of names of datasets.
        form: the pattern of names of files.
    """
    for place in found:
        if (match := _form(form).fullmatch(place)) is not None:
            yield factory.format_map(match.groupdict()), place


def in_factory_order(catalog: Iterable[str]) -> list[str]:
    """Return the names in a catalog, and its factories in the order in which Kedro matches them."""
    return sorted(catalog, key=_order)


def _form(text: str) -> re.Pattern[str]:
    """Return the form of names or paths; a placeholder in it matches one character or more."""
    literals = iter(map(re.escape, _PLACEHOLDER.split(text)[::2]))
    named = (f"(?P<{name}>.+?)" for name in _PLACEHOLDER.findall(text))
    return re.compile(next(literals) + "".join(name + literal for name, literal in zip(named, literals, strict=True)))


def _order(factory: str) -> tuple[int, int, str]:
    """Put the factory with the most characters outside placeholders first, as Kedro does."""
    return -len(_PLACEHOLDER.sub("", factory)), -factory.count("{"), factory
