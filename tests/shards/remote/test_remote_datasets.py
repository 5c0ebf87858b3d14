"""Catalog entries of artifacts whose ``filepath`` is a URL: they offer what local ones do, and have a login."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from everytoken.datasets import ArtifactFolder, DatasetPaths, ShardStore, TokenStream, verify_content
from everytoken.shards import ArtifactStore, ShardsError, StoredPart, plan_artifact
from everytoken.shards.remote import open_parts, present
from everytoken.tracking.run import contents, state_of
from tests.s3_server import KEY, SECRET, S3Server
from tests.shards.functions import build_arrays, build_folder, given, sift


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
    return {"credentials": login, "cache": {"path": str(tmp_path / "cache"), "bytes": 1 << 30}}


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
def test_datasets_behind_urls_have_folders_that_stand_for_them(entry: dict[str, Any], tmp_path: Path) -> None:
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
    documents = ShardStore(
        filepath="s3://corpora/documents", engine={"kind": "inline"}, credentials=login, cache=entry["cache"]
    )
    documents.save(given(3).map(sift, factor=3))
    paths = DatasetPaths(catalog, tmp_path, lambda: {"bucket": login})
    made = {name: path for name, path in paths.items() if path.exists()}
    assert sorted(made) == ["annotated_index", "compact_index", "documents", "scorer"]
    assert (made["scorer"] / "name.txt").read_text() == "seed 6\n"
    assert "unknown_index" not in paths and "compact_index" in paths and "documents" in paths
    part = made["documents"] / "part_00001.parquet"
    assert not part.exists(), "nothing is fetched before it is asked for"
    assert len(StoredPart.at(present(part)).table()) == documents.load().parts[1].rows
    assert open_parts(made["documents"]).load().root_digest == documents.load().root_digest
    with pytest.raises(ShardsError, match=r"names the credentials 'bucket', which no credentials.yml"):
        DatasetPaths(catalog, tmp_path, lambda: {})["scorer"]


@pytest.mark.parametrize(
    ("filepath", "more", "said"),
    [
        ("s3://corpora/stream", {}, r"s3://corpora/stream is a URL: give its entry a folder of local copies"),
        ("s3://corpora/stream", {"cache": {"path": "data/cache"}}, r"cache takes `path` and `bytes`.*'bytes'"),
        (
            "s3://corpora/stream",
            {"cache": {"path": "x", "bytes": "much"}},
            r"cache.bytes is 'much'; give the most",
        ),
        (
            "data/stream",
            {"cache": {"path": "x", "bytes": 1}},
            r"is a folder of this machine: it takes neither",
        ),
        ("data/stream", {"credentials": {"key": "x"}}, r"it takes neither `cache` nor `credentials`"),
        ("file:///data/stream", {}, r"give a folder of this machine as a path, without file://"),
    ],
)
def test_what_an_entry_lacks_or_cannot_have_is_refused(filepath: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ShardsError, match=said):
        TokenStream(filepath=filepath, **more)
    with pytest.raises(ShardsError, match=said):
        ShardStore(filepath=filepath, engine={"kind": "inline"}, **more)
