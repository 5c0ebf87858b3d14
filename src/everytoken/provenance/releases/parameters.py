"""What may be published of a source: its licence, whether its text may be part of a release, and where it is from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, field_validator

from everytoken.redaction import is_web_link, require_no_secret

_UNKNOWN = "???"

TextPolicy = Literal["none", "rescue", "all"]


def _link(url: str) -> str:
    require_no_secret("the link", url)
    if not is_web_link(url):
        raise ValueError(f"a link that is published must be a http:// or https:// URL, found {url!r}")
    return url


WebLink = Annotated[str, AfterValidator(_link)]
"""A URL that a card may link to."""


class Homepage(BaseModel):
    """The page where anybody finds the files of a source that were read from a place without a public address."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    homepage: WebLink


class NotPublic(BaseModel):
    """A source whose files nobody else may have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    public: Literal[False]


Origin = Homepage | NotPublic


class Licence(BaseModel):
    """The licence of a source.

    Attributes:
        name: as people write it; ``???`` where nobody has looked it up: a release then stops.
        spdx: its identifier in the SPDX list, or ``LicenseRef-...`` for one that is not in it.
        attribution: what has to be said wherever something made from the source is published.
        text: of which documents a release holds the text: ``none``; ``rescue``, those that an id cannot give back (it
            has none, or documents of different text share it); ``all``. More than ``none`` needs a licence that allows
            it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    spdx: str
    url: str
    attribution: str
    text: TextPolicy = "none"

    @field_validator("url")
    @classmethod
    def _is_a_link(cls, url: str) -> str:
        return url if url == _UNKNOWN else _link(url)

    @property
    def is_known(self) -> bool:
        """Whether somebody has looked it up."""
        return _UNKNOWN not in (self.name, self.spdx)
