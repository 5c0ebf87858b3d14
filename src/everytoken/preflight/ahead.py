"""What a job is going to read and write, as its checks see it; they add what they find out about its size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from everytoken.checks import NotMadeError
from everytoken.shards.remote import FileCache


class BytesAhead(NamedTuple):
    """Bytes that the job is going to write to a folder."""

    what: str
    folder: Path
    size: int


@dataclass
class Ahead:
    """A job before its first stage.

    Attributes:
        groups: parameters by name, as their models, of the groups that the nodes of the job read.
        streams: names of the streams that its training can take; None: it trains on none.
        remote: URL and cache of the datasets of the job that are behind URLs, by name.
        is_offline: whether nothing outside this machine may be asked.
        written: what is known of the bytes that it writes; checks add to it.
        unreachable: why the hub cannot be asked; empty as long as nothing is known against it.
    """

    groups: Mapping[str, Any]
    streams: frozenset[str] | None
    data: Path
    raw: Path
    is_offline: bool
    remote: Mapping[str, tuple[str, FileCache]] = field(default_factory=dict)
    written: list[BytesAhead] = field(default_factory=list)
    unreachable: str = ""

    def require_network(self) -> None:
        """Raise `NotMadeError` where the network may not be used."""
        if self.is_offline:
            raise NotMadeError("--offline")

    def require_hub(self) -> None:
        """Raise `NotMadeError` where the hub may not be asked, or was asked in vain."""
        self.require_network()
        if self.unreachable:
            raise NotMadeError(f"see {self.unreachable}")
