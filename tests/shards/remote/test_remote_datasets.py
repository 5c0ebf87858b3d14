"""Catalog entries of artifacts whose ``filepath`` is a URL: they offer what local ones do, and have a login."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from everytoken.datasets import ArtifactFolder, DatasetPaths, TokenStream, remote_artifacts, verify_content
from everytoken.shards import ArtifactStore, plan_artifact
from everytoken.shards.remote import StorageError
from everytoken.tracking.run import contents, state_of
from tests.s3_server import KEY, SECRET, S3Server
from tests.shards.functions import build_arrays, build_folder


@pytest.fixture
def entry(server: S3Server, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What an entry says besides its URL; nothing but it knows the login."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.delenv("EVERYTOKEN_STORAGE_CREDENTIALS", raising=False)
    monkeypatch.setitem(os.environ, "EVERYTOKEN_STORAGE_CREDENTIALS", "{}")  # restored afterwards
    login = {
        "key": KEY,
        "secret": SECRET,
        "endpoint_url": server.address,
        "client_kwargs": {"region_name": "us-east-1"},
    }
    return {"credentials": login, "cache": {"folder": str(tmp_path / "cache"), "bytes": 1 << 30}}


@pytest.mark.sensitive
def test_a_dataset_behind_a_url_offers_what_a_local_one_does(entry: dict[str, Any], tmp_path: Path) -> None:
    source = ArtifactStore(tmp_path / "source").save(plan_artifact(build_folder, factor=5))
    planned = plan_artifact(build_folder, factor=2, source=source)
    local = TokenStream(filepath=str(tmp_path / "local"))
    remote = TokenStream(filepath="s3://corpora/stream", block_bytes=100, **entry)
    assert not remote.exists() and remote.state() is None
    for dataset in (local, remote):
        dataset.save(planned)
        assert dataset.exists()
        assert dataset.is_made_from(source.root_digest, []) and not dataset.is_made_from("0" * 64, [])
        verify_content(dataset.load())
    assert remote.ledger_summary() == local.ledger_summary()
    assert contents(remote) == contents(local)
    state = state_of(remote)
    remote.save(planned)
    assert state is not None and state_of(remote) == state
    shown = [json.loads(str(dataset.preview())) for dataset in (local, remote)]
    assert [one["statistics"] for one in shown] == [{"factor": 2}] * 2
    assert remote._describe() == {"filepath": "s3://corpora/stream"}
    assert SECRET not in str(remote) and KEY not in str(remote)


@pytest.mark.sensitive
def test_the_artifacts_of_an_environment_behind_urls_are_found(entry: dict[str, Any], tmp_path: Path) -> None:
    login = entry.pop("credentials")
    entry |= {"type": "everytoken.datasets.ArtifactFolder", "credentials": "bucket"}
    catalog = {
        "{kind}_index": {**entry, "filepath": "s3://corpora/run/{kind}_index"},
        "scorer": {**entry, "filepath": "s3://corpora/scorer"},
        "not_made": {**entry, "filepath": "s3://corpora/not_made"},
        "documents": {**entry, "type": "everytoken.datasets.ShardStore", "filepath": "s3://corpora/documents"},
        "local": {"filepath": "data/local"},
    }
    for url in ("run/compact_index", "run/annotated_index", "scorer"):
        dataset = ArtifactFolder(filepath=f"s3://corpora/{url}", credentials=login, cache=entry["cache"])
        dataset.save(plan_artifact(build_arrays, seed=len(url), rows=50))
    found = remote_artifacts(catalog, {"bucket": login}, tmp_path)
    assert sorted(found) == ["annotated_index", "compact_index", "scorer"]
    assert found["scorer"].path("name.txt").read_text() == "seed 6\n"
    assert dict(DatasetPaths(catalog, tmp_path)) == {"local": tmp_path / "data/local"}
    with pytest.raises(KeyError):
        DatasetPaths(catalog, tmp_path)["compact_index"]


def test_a_url_without_a_bounded_cache_is_refused() -> None:
    for cache in (None, {"folder": "data/cache"}):
        with pytest.raises(StorageError, match=r"s3://corpora/stream is a URL, so its entry .* needs cache"):
            TokenStream(filepath="s3://corpora/stream", cache=cache)
    with pytest.raises(StorageError, match=r"cache.bytes is 'much'; give the most bytes"):
        TokenStream(filepath="s3://corpora/stream", cache={"folder": "data/cache", "bytes": "much"})
