"""Where a file comes from when it is not on this machine yet: plain values that go to workers and into JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from everytoken.corpus.upstreams.fetch import Partial


class HubRemote(BaseModel):
    """A dataset on the Hugging Face hub, at a commit. The endpoint and the token are the environment's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["hub"] = "hub"
    dataset: str
    revision: str


class UrlRemote(BaseModel):
    """A folder that fsspec opens, and which version of the file the listing showed (`urls.version_of`).

    ``named``: None, or the roots beyond which no private address and no plain http is reached.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["url"] = "url"
    root: str
    version: str
    named: tuple[str, ...] | None = None


Remote = HubRemote | UrlRemote
REMOTE: TypeAdapter[Remote] = TypeAdapter(Annotated[Remote, Field(discriminator="kind")])


def download(remote: Remote, path: str, size: int | None, stream: Partial) -> None:
    """Append to ``stream`` what follows the bytes that it has, or the whole file again where the server cannot resume.

    The client libraries are imported here: workers that read local files start without them.

    Args:
        path: relative to the remote.
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
