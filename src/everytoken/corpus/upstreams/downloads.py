"""Downloads of files, from the hub or a URL.

The client libraries are imported when something is fetched: workers that read local files start without them.
"""

from __future__ import annotations

from everytoken.corpus.upstreams.fetch import Partial
from everytoken.corpus.upstreams.remotes import HubRemote, Remote


def download(remote: Remote, path: str, size: int | None, stream: Partial) -> None:
    """Append to ``stream`` what follows the bytes that it has, or the whole file again where the server cannot resume.

    Args:
        path: relative to it.
        size: that the listing told, or None.

    Raises:
        Transient: the transfer broke off; another call resumes there.
        FetchError: the file cannot be had.
        OSError: the bytes cannot be stored.
    """
    if isinstance(remote, HubRemote):
        from everytoken.corpus.upstreams import hub_client

        hub_client.download_from_hub("dataset", remote.dataset, remote.revision, path, size, stream)
    else:
        from everytoken.corpus.upstreams import urls

        urls.download_from_url(remote, path, size, stream)
