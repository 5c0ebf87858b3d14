"""The paths of the datasets of an environment, from its catalog alone: no dataset is made and no pipeline imported.

Names find their factory as in Kedro's ``CatalogConfigResolver``, whose import takes longer than an answer of `trace`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everytoken.datasets.remote_entries import remote_place
from everytoken.redaction import is_url
from everytoken.shards import ShardsError
from everytoken.shards.remote import FileCache, local_view, names_below

_PLACEHOLDER = re.compile(r"\{(.*?)\}")


class DatasetPaths(Mapping[str, Path]):
    """Paths by name: of every catalog entry, and of every dataset of a factory that exists on disk.

    ``paths[name]`` also gives the path of a dataset of a factory that does not exist yet. For one behind a URL it asks
    the storage, and gives the local folder that stands for it (`everytoken.shards.remote.views`).

    Args:
        catalog: the configuration of the catalog; placeholders of a factory are in the last part of its path.
        folder: what the paths are relative to.
        credentials: reads what entries name by ``credentials``; None: Kedro has made the datasets in this process.
    """

    def __init__(
        self,
        catalog: Mapping[str, Any],
        folder: Path = Path(),
        credentials: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        entries = {name: entry for name, entry in catalog.items() if "filepath" in entry}
        self._folder, self._entries, self._credentials = folder, frozenset(catalog), credentials
        self._remote = {name: entry for name, entry in entries.items() if is_url(entry["filepath"])}
        files: dict[str, Path] = {
            name: folder / entry["filepath"] for name, entry in entries.items() if name not in self._remote
        }
        self._paths: dict[str, Path] = {name: path for name, path in files.items() if "{" not in name}
        self._factories = {name: catalog[name] for name in sorted(catalog, key=_order) if "{" in name}
        for factory in self._factories:
            if factory in files:
                self._paths.update(self._made_by(factory, files[factory]))
        self._views: dict[str, Path] = {}

    def __iter__(self) -> Iterator[str]:
        yield from self._paths
        for name, entry in self._remote.items():
            if "{" not in name:
                yield name
                continue
            parent, _, last = str(entry["filepath"]).rpartition("/")
            self._access(name, parent, entry)
            yield from (made for made, _ in self._of_factory(name, last, names_below(parent)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        if name in self._paths or name in self._remote:
            return True
        return isinstance(name, str) and self.is_remote(name) and self[name].exists()

    def __getitem__(self, name: str) -> Path:
        if name in self._paths:
            return self._paths[name]
        if self.is_remote(name):
            if name not in self._views:
                self._views[name] = local_view(*self.place(name))
            return self._views[name]
        factory, values = self._factory_of(name)
        if "filepath" not in (entry := self._factories.get(factory, {})):
            raise KeyError(name)
        return self._folder / str(entry["filepath"]).format_map(values)

    def is_remote(self, name: str) -> bool:
        """Return whether a dataset is behind a URL."""
        return name in self._remote or self._factory_of(name)[0] in self._remote

    def place(self, name: str) -> tuple[str, FileCache]:
        """Return URL and cache of a dataset behind a URL, whose credentials are known from now on.

        Raises:
            ShardsError: its entry has no cache, or credentials that nobody has.
        """
        factory, values = self._factory_of(name)
        entry = self._remote[name if name in self._remote else factory]
        return self._access(name, str(entry["filepath"]).format_map(values), entry)

    def _access(self, name: str, url: str, entry: Mapping[str, Any]) -> tuple[str, FileCache]:
        credentials = None
        if self._credentials is not None and (named := entry.get("credentials")) is not None:
            credentials = self._credentials().get(named)
            if credentials is None:
                raise ShardsError(
                    f"{name} names the credentials {named!r}, which no credentials.yml of the environment has. "
                    "Add them there (docs/stores.md)"
                )
        place = remote_place(url, entry.get("cache"), credentials, self._folder)
        assert place is not None, "it is a URL"
        return place

    def _factory_of(self, name: str) -> tuple[str, Mapping[str, str]]:
        """Return the factory that makes a dataset, and the values of its placeholders; "" for no dataset."""
        for factory in self._factories if name.isidentifier() and name not in self._entries else ():
            if (match := _form(factory).fullmatch(name)) is not None:
                return factory, match.groupdict()
        return "", {}

    def _made_by(self, factory: str, path: Path) -> Iterator[tuple[str, Path]]:
        """Find the datasets of a factory on disk, unless another entry has their name."""
        there = sorted(one.name for one in path.parent.iterdir()) if path.parent.is_dir() else []
        yield from ((name, path.parent / found) for name, found in self._of_factory(factory, path.name, there))

    def _of_factory(self, factory: str, form: str, there: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield name and place of each dataset of a factory among what is there."""
        for found in there:
            if (match := _form(form).fullmatch(found)) is not None:
                name = factory.format_map(match.groupdict())
                if self._factory_of(name)[0] == factory and name not in self._paths:
                    yield name, found


def _form(text: str) -> re.Pattern[str]:
    """Return the form of names or paths; a placeholder in it matches one character or more."""
    literals = iter(map(re.escape, _PLACEHOLDER.split(text)[::2]))
    named = (f"(?P<{name}>.+?)" for name in _PLACEHOLDER.findall(text))
    return re.compile(next(literals) + "".join(name + literal for name, literal in zip(named, literals, strict=True)))


def _order(factory: str) -> tuple[int, int, str]:
    """Put the factory with the most characters outside placeholders first, as Kedro does."""
    return -len(_PLACEHOLDER.sub("", factory)), -factory.count("{"), factory
