"""Files of a model repository on the Hugging Face hub at a commit, fetched when they are asked for.

They lie in ``models/<organisation--name>/<commit>`` of a folder, each whole and with the digest that the hub lists, or
not at all. What is there is not fetched again, and the list of files is kept beside: a second run needs no network.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from everytoken.corpus.upstreams.checksums import algorithm_of, content_digest
from everytoken.corpus.upstreams.fetch import Listed, discard, fetch, is_at_hand
from everytoken.corpus.upstreams.hub import pinned_listing
from everytoken.corpus.upstreams.retries import FetchError


class HubRepository(NamedTuple):
    """A model repository at a commit; ``fetched`` is the folder of what is fetched.

    Its methods raise `FetchError`: the hub does not give the list or a file, or it cannot be stored.
    """

    repository: str
    revision: str
    fetched: Path

    @property
    def names(self) -> set[str]:
        """Names of the files at the commit."""
        return set(self._listing())

    @property
    def is_listed(self) -> bool:
        """Whether the list of its files is kept here, so that the hub is not asked for it."""
        return self._kept.is_file()

    def bring(self, name: str) -> Path:
        """Return where a file is, fetched and checked."""
        from everytoken.corpus.upstreams import hub_client  # the client takes its time to load

        listed, location = self._listing()[name], self._place / name
        ask = (self.repository, self.revision, name, listed.size)
        with self._storing(name):
            if is_at_hand(location, listed) and not _has_digest(location, listed):  # what uses it may share the damage
                discard(location)
            if not is_at_hand(location, listed):
                fetch(location, listed, lambda stream: hub_client.download_from_hub("model", *ask, stream))
        return location

    @property
    def _place(self) -> Path:
        return self.fetched / "models" / self.repository.replace("/", "--") / self.revision

    def _listing(self) -> dict[str, Listed]:
        with self._storing("its list of files"):
            return pinned_listing("model", self.repository, self.revision, self._kept)

    @property
    def _kept(self) -> Path:
        return self._place.with_name(f"{self.revision}.listing.json")

    @contextmanager
    def _storing(self, what: str) -> Iterator[None]:
        try:
            yield
        except FetchError as error:
            raise FetchError(f"{self}, {what}: {error.reason}", error.remedy) from None
        except OSError as error:
            raise FetchError(
                f"{self}, {what}: it cannot be stored in {self._place} ({type(error).__name__}: {error})",
                "Free space, or make the folder writable, and run again: what was fetched so far is not fetched again.",
            ) from None

    def __str__(self) -> str:
        return f"model {self.repository} at {self.revision}"


def _has_digest(location: Path, listed: Listed) -> bool:
    assert listed.pinned is not None, "the hub lists a digest of every file"
    with location.open("rb") as stream:
        return content_digest(stream, algorithm_of(listed.pinned), location.stat().st_size) == listed.pinned
