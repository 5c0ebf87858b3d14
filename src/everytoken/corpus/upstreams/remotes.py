"""Where a file comes from when it is not on this machine yet: plain values that go to workers and into JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


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
