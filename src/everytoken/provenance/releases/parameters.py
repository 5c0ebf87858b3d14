"""What may be published of a source: its licence, and whether its text may be part of a release."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

UNKNOWN = "???"

TextPolicy = Literal["none", "rescue", "all"]


class Licence(BaseModel):
    """The licence of a source.

    Attributes:
        name: as people write it; ``???`` where nobody has looked it up: a release then stops.
        spdx: its identifier in the SPDX list, or ``LicenseRef-...`` for one that is not in it.
        url: of its text.
        attribution: what has to be said wherever something made from the source is published.
        text: of which documents a release holds the text: ``none``; ``rescue``, those that an id cannot give back (it
            has none, or documents of different text share it); ``all``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    spdx: str
    url: str
    attribution: str
    text: TextPolicy

    @property
    def is_known(self) -> bool:
        """Whether somebody has looked it up."""
        return UNKNOWN not in (self.name, self.spdx)
