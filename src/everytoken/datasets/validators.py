"""The validator of stored datasets: Kedro's ``validate_catalog`` compares every byte with the ledger."""

from __future__ import annotations

from everytoken.shards import Artifact, Shards, unchanging


def verify_content(data: Shards | Artifact | None) -> None:
    """Verify the SHA-256 of every file of a loaded dataset; None is a dataset that only some jobs make.

    Raises:
        StoreBusy: another process writes the dataset.
        DamagedStore: a file is not the one that was written.
    """
    with unchanging([data, *(data.set_aside if isinstance(data, Shards) else ())]):
        pass
