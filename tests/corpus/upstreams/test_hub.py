from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from everytoken.corpus.errors import PlanError, RowError, UpstreamError
from everytoken.corpus.ingestion.plan import make_shard_plan
from everytoken.corpus.ingestion.source import HubUpstream, Source, UpstreamFile, find_files
from everytoken.corpus.upstreams import hub_client, retries
from everytoken.corpus.upstreams.fetch import Partial
from tests.corpus.ingestion.test_shard_plan import LIMITS, plan_parameters
from tests.corpus.upstreams.hub_server import COMMIT, Fault, Hub, serve_hub, sizes_of_partials
from tests.corpus.upstreams.test_source import source_of
from tests.shards.children import wait_until

pytestmark = pytest.mark.sensitive

ROWS = b'{"text": "a row"}\n'
BIG = random.Random(0).randbytes(300_000)  # kept in LFS, as its size is over the server's bound
README = b"""---
configs:
- config_name: all
  data_files: "data/**"
- config_name: sample
  data_files: ["data/a/0.jsonl", "data/b/*.jsonl"]
- config_name: parted
  data_files:
  - split: train
    path: data/a/*.jsonl
  - split: test
    path: [data/b/1.jsonl, data/big.jsonl]
- config_name: folder
  data_dir: data/a
- config_name: strange
  data_files: {path: 3}
---
# Texts
"""


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr("everytoken.shards.remote.retries.pause", waited.append)
    return waited


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> Iterator[Hub]:
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        hub.files = {
            "data/b/1.jsonl": ROWS * 2,
            "data/a/0.jsonl": ROWS,
            "data/a/10.jsonl": ROWS * 3,
            "data/big.jsonl": BIG,
            "README.md": README,
        }
        yield hub


def hub_source(**changes: Any) -> Source:
    upstream = {"kind": "hub", "dataset": "org/texts", "subset": None, "split": None, "revision": COMMIT}
    return source_of({**upstream, "pattern": "**/*.jsonl", **changes})


def big_file(folder: Path) -> UpstreamFile:
    return find_files("s", hub_source(pattern="data/big.jsonl").upstream, folder)[0]


def content_of(file: UpstreamFile) -> bytes:
    with file.open() as stream:
        return stream.read()


def paths(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def in_folder(folder: Path) -> list[str]:
    """Return the files that were fetched or begun, without the list of files."""
    return [path for path in paths(folder) if not path.endswith(".listing.json")]


def test_a_listing_is_sorted_and_tells_sizes_and_digests_and_fetches_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.page = 2
    files = find_files("s", hub_source().upstream, tmp_path)
    assert [file.path for file in files] == ["data/a/0.jsonl", "data/a/10.jsonl", "data/b/1.jsonl", "data/big.jsonl"]
    assert [file.size for file in files] == [len(hub.files[file.path]) for file in files]
    blob = hashlib.sha1(b"blob %d\0" % len(ROWS) + ROWS).hexdigest()
    assert files[0].pinned == f"git-sha1:{blob}"
    assert files[3].pinned == f"sha256:{hashlib.sha256(BIG).hexdigest()}"
    assert files[0].location == tmp_path / "hub/org--texts" / COMMIT / "data/a/0.jsonl"
    assert len(hub.asked("tree")) == 4
    assert {request.path.split("/")[0] for request in hub.asked("info", "tree")} == {COMMIT}
    assert hub.asked("resolve") == []


def test_files_are_fetched_when_opened_once_and_checked(hub: Hub, tmp_path: Path) -> None:
    for _ in range(2):
        for file in find_files("s", hub_source().upstream, tmp_path):
            assert content_of(file) == hub.files[file.path]
            assert file.planned_digest() == file.pinned
            assert file.digest().startswith("sha256:")
    assert len(hub.asked("resolve")) == 4
    assert len(hub.asked("info")) == 1, "a commit is listed once"
    assert not [path for path in paths(tmp_path) if "partial" in path]


def test_the_plan_needs_no_file(hub: Hub, tmp_path: Path) -> None:
    sources = {"s": hub_source()}
    files = {"s": find_files("s", sources["s"].upstream, tmp_path)}
    plan = make_shard_plan(sources, files, plan_parameters(expect_shards=4), LIMITS)
    assert {shard["digest"] for shard in plan["shards"]} == {file.pinned for file in files["s"]}
    assert hub.asked("resolve", "storage") == []


@pytest.mark.parametrize("rows_per_shard", [None, 1])
def test_another_number_of_shards_stops_before_any_file_is_fetched(
    hub: Hub, tmp_path: Path, rows_per_shard: int | None
) -> None:
    sources = {"s": hub_source().model_copy(update={"rows_per_shard": rows_per_shard})}
    files = {"s": find_files("s", sources["s"].upstream, tmp_path)}
    with pytest.raises(PlanError, match=r"have 4 (shards|files).* expect_shards pins 3"):
        make_shard_plan(sources, files, plan_parameters(expect_shards=3), LIMITS)
    assert hub.asked("resolve", "storage") == []


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:12], COMMIT.upper()])
def test_only_a_commit_is_a_revision(revision: str) -> None:
    with pytest.raises(ValidationError, match=r"revision must be a commit.*may move.*Find the commit"):
        hub_source(revision=revision)


@pytest.mark.parametrize("dataset", ["", "org/", "../x", "org/../x", "https://huggingface.co/datasets/a/b", "a b"])
def test_a_dataset_is_an_id(dataset: str) -> None:
    with pytest.raises(ValidationError, match="dataset must be an id"):
        hub_source(dataset=dataset)


@pytest.mark.parametrize(
    ("subset", "split", "pattern", "expected"),
    [
        ("all", None, "**", ["data/a/0.jsonl", "data/a/10.jsonl", "data/b/1.jsonl", "data/big.jsonl"]),
        ("all", None, "**/b/*", ["data/b/1.jsonl"]),
        ("sample", None, "**", ["data/a/0.jsonl", "data/b/1.jsonl"]),
        ("sample", "train", "**", ["data/a/0.jsonl", "data/b/1.jsonl"]),
        ("parted", None, "**", ["data/a/0.jsonl", "data/a/10.jsonl", "data/b/1.jsonl", "data/big.jsonl"]),
        ("parted", "test", "**", ["data/b/1.jsonl", "data/big.jsonl"]),
        ("folder", None, "**", ["data/a/0.jsonl", "data/a/10.jsonl"]),
    ],
)
def test_a_subset_is_what_the_readme_declares(
    hub: Hub, tmp_path: Path, subset: str, split: str | None, pattern: str, expected: list[str]
) -> None:
    files = find_files("s", hub_source(subset=subset, split=split, pattern=pattern).upstream, tmp_path)
    assert [file.path for file in files] == expected
    assert [request.path for request in hub.asked("resolve", "storage")] == ["README.md"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subset": "none"}, r"declares no subset 'none', found \['all', 'folder', 'parted', 'sample', 'strange'\]"),
        ({"subset": "parted", "split": "dev"}, r"no split 'dev' of subset 'parted', found \['test', 'train'\]"),
        ({"subset": "strange"}, "data_files of subset 'strange' in a form that is not known"),
        ({"pattern": "*.parquet"}, r"none of the 5 files .* matches '\*.parquet'.*data/a/0.jsonl"),
    ],
)
def test_a_subset_or_pattern_that_is_not_there_is_named_with_what_is(
    hub: Hub, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UpstreamError, match=f"source 's': .*{message}"):
        find_files("s", hub_source(**changes).upstream, tmp_path)


def test_a_moved_revision_is_refused_at_the_listing_and_at_the_file(hub: Hub, tmp_path: Path) -> None:
    hub.resolves_to = "f" * 40
    with pytest.raises(UpstreamError, match=rf"a moved revision: .*{COMMIT} .* for commit {'f' * 40}"):
        find_files("s", hub_source().upstream, tmp_path)
    hub.resolves_to, hub.answers_from = COMMIT, "f" * 40
    for file in find_files("s", hub_source().upstream, tmp_path):
        with pytest.raises(RowError, match=rf"moved revision: the hub was asked for .*{COMMIT} .* from {'f' * 40}"):
            file.open()
    assert in_folder(tmp_path) == []


def test_too_many_requests_are_waited_for_as_long_as_the_server_says(
    hub: Hub, tmp_path: Path, waits: list[float]
) -> None:
    begun = time.time()
    date = formatdate(begun + 100, usegmt=True)
    limit = {"RateLimit": '"resolvers";r=0;t=77'}
    hub.faults["resolve"] = [Fault(429, {"Retry-After": "7"}), Fault(429, {"Retry-After": date}), Fault(429, limit)]
    hub.faults["storage"] = [Fault(503), Fault(429)]
    hub.faults["info"] = [Fault(429, {"Retry-After": "8"}), Fault(500)]
    assert content_of(big_file(tmp_path)) == BIG
    assert waits[:3] == [9, 2, 8]
    assert 99 - (time.time() - begun) <= waits[3] <= 101, "a date, to the second"
    assert waits[4:] == [78, 8, 16]


def test_a_wait_beyond_the_bound_is_an_error(hub: Hub, tmp_path: Path) -> None:
    file = big_file(tmp_path)
    hub.faults["storage"] = [Fault(429, {"Retry-After": "86400"})]
    with pytest.raises(RowError, match=r"file data/big.jsonl: .*answers 429 and asks to wait 86,400 s"):
        file.open()


def test_pages_of_a_listing_are_retried_by_the_client_within_the_same_bound(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    hub.page = 2
    hub.faults["tree"] = [Fault(), Fault(429, {"Retry-After": "5"}), Fault(502)]
    assert len(find_files("s", hub_source().upstream, tmp_path / "one")) == 4
    assert slept[0] == 6
    assert len(slept) == 2
    hub.faults["tree"] = [Fault(429, {"Retry-After": "86400"})]
    with pytest.raises(UpstreamError, match="429 to a listing and asks to wait 86,400 s"):
        find_files("s", hub_source().upstream, tmp_path / "two")
    hub.faults["tree"] = [Fault(500)] * 6
    with pytest.raises(UpstreamError, match="the hub answers 500, and did so again and again"):
        find_files("s", hub_source().upstream, tmp_path / "three")


def test_server_errors_are_retried_a_bounded_number_of_times(hub: Hub, tmp_path: Path, waits: list[float]) -> None:
    file = big_file(tmp_path)
    hub.faults["storage"] = [Fault(500)] * 100
    with pytest.raises(RowError, match=r"the hub answers 500, 6 times in a row. Check the network"):
        file.open()
    assert len(hub.asked("storage")) == retries.ATTEMPTS == 6
    assert sum(waits) == 31
    assert in_folder(tmp_path) == []


def test_a_cut_connection_goes_on_where_it_broke_off(hub: Hub, tmp_path: Path, waits: list[float]) -> None:
    hub.faults["storage"] = [Fault(cut_after=100_000), Fault(cut_after=100_000), Fault(500)]
    assert content_of(big_file(tmp_path)) == BIG
    asked = hub.asked("storage")
    assert [request.start for request in asked] == [0, 100_000, 200_000, 200_000]
    assert sum(request.sent for request in asked if request.sent > 2) == len(BIG)
    assert waits == [1, 1, 2]


def test_a_connection_that_is_reset_is_only_cut(hub: Hub, tmp_path: Path) -> None:
    hub.faults["storage"] = [Fault(cut_after=150_000, reset=True)]
    assert content_of(big_file(tmp_path)) == BIG


def test_a_file_comes_in_any_number_of_pieces(hub: Hub, tmp_path: Path) -> None:
    hub.faults["storage"] = [Fault(cut_after=15_000) for _ in range(19)]
    assert content_of(big_file(tmp_path)) == BIG
    assert [request.start for request in hub.asked("storage")] == [15_000 * i for i in range(20)]


def test_a_server_that_ignores_ranges_sends_the_whole_again(hub: Hub, tmp_path: Path) -> None:
    hub.faults["storage"] = [Fault(cut_after=100_000), Fault(ignores_range=True)]
    assert content_of(big_file(tmp_path)) == BIG


@pytest.mark.parametrize("path", ["data/big.jsonl", "data/a/0.jsonl"])
def test_a_wrong_hash_is_an_error_with_both_and_leaves_nothing(hub: Hub, tmp_path: Path, path: str) -> None:
    content = hub.files[path]
    file = next(file for file in find_files("s", hub_source().upstream, tmp_path) if file.path == path)
    hub.served[path] = content[:-2] + b"?\n"
    with pytest.raises(RowError, match=rf"file {path}: .*expected {file.pinned}, found (sha256|git-sha1):[0-9a-f]+\. "):
        file.open()
    assert in_folder(tmp_path) == []
    del hub.served[path]
    assert content_of(file) == content


@pytest.mark.parametrize("change", [b"", b"more", None])
def test_a_size_that_is_not_the_listed_one_is_an_error(hub: Hub, tmp_path: Path, change: bytes | None) -> None:
    file = big_file(tmp_path)
    hub.served[file.path] = BIG[:-10] if change is None else BIG + change
    if change == b"":
        file.open().close()
        return
    with pytest.raises(
        RowError, match=rf"expected 300,000 bytes as listed, the server has {len(hub.served[file.path]):,}"
    ):
        file.open()
    assert in_folder(tmp_path) == []


def test_a_shard_that_disappears_is_named_and_others_go_on(hub: Hub, tmp_path: Path) -> None:
    files = find_files("s", hub_source().upstream, tmp_path)
    hub.gone.add("data/a/0.jsonl")
    with pytest.raises(RowError, match=r"source 's', file data/a/0.jsonl: .*no longer on the hub \(404\).*pin another"):
        files[0].open()
    assert [content_of(file) for file in files[1:]] == [hub.files[file.path] for file in files[1:]]


def test_a_private_dataset_needs_the_token_of_the_environment(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    with pytest.raises(
        UpstreamError, match=r"does not give dataset org/texts .*\(401\): HF_TOKEN is not set.*set HF_TOKEN"
    ):
        find_files("s", hub_source().upstream, tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    file = big_file(tmp_path)
    assert content_of(file) == BIG
    assert {request.authorization for request in hub.asked("info", "tree", "resolve")} == {None, "Bearer hf_secret"}
    assert hub.asked("storage")[0].authorization is None, "a token goes to the hub alone"
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hf_secret" not in stored + json.dumps(file.to_json()).encode()


def test_a_gated_dataset_says_to_accept_its_terms(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token, hub.gated = "hf_other", True
    with pytest.raises(UpstreamError, match=r"gated \(401\): HF_TOKEN is not set.*Accept the terms on http.*org/texts"):
        find_files("s", hub_source().upstream, tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(UpstreamError, match=r"gated \(403\): HF_TOKEN is set, but .*Accept the terms") as caught:
        find_files("s", hub_source().upstream, tmp_path)
    assert "hf_secret" not in str(caught.value)


def test_a_dataset_that_is_listed_but_whose_files_are_gated_says_so_at_the_file(hub: Hub, tmp_path: Path) -> None:
    file = big_file(tmp_path)
    hub.token, hub.gated = "hf_other", True
    with pytest.raises(RowError, match=r"file data/big.jsonl: dataset org/texts is gated \(401\).*set it as HF_TOKEN"):
        file.open()


@pytest.mark.parametrize("kind", ["info", "tree"])
@pytest.mark.parametrize("body", [b"<html>Please log in</html>", b'[{"type": "file"}]'])
def test_an_answer_that_is_no_hubs_is_named(hub: Hub, tmp_path: Path, kind: str, body: bytes) -> None:
    hub.faults[kind] = [Fault(body=body)]
    with pytest.raises(UpstreamError, match=r"source 's': .*does not answer as a hub does.*Check HF_ENDPOINT"):
        find_files("s", hub_source().upstream, tmp_path)
    assert paths(tmp_path) == []


def test_a_token_saved_on_the_machine_is_not_used(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("hf_saved")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    assert content_of(big_file(tmp_path / "files")) == BIG
    assert {request.authorization for request in hub.requests} == {None}


def test_what_is_there_is_read_offline_and_what_is_not_says_why(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = find_files("s", hub_source().upstream, tmp_path)
    files[0].open().close()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # the client reads its environment once
    before = len(hub.requests)
    assert content_of(find_files("s", hub_source().upstream, tmp_path)[0]) == ROWS
    with pytest.raises(RowError, match=r"file data/a/10.jsonl: .*HF_HUB_OFFLINE forbids to fetch it. Unset"):
        files[1].open()
    with pytest.raises(UpstreamError, match="HF_HUB_OFFLINE forbids"):
        find_files("s", hub_source().upstream, tmp_path / "elsewhere")
    assert len(hub.requests) == before


def test_no_hub_at_all_is_an_error_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UpstreamError, match=r"the connection to http://127.0.0.1:9 failed \(ConnectError.*6 times"):
        find_files("s", hub_source().upstream, tmp_path)
    assert sum(waits) == 31


def test_a_silent_server_is_left_after_a_while(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = big_file(tmp_path)
    monkeypatch.setattr(hub_client, "_TIMEOUT", 0.2)
    hub.faults["storage"] = [Fault(cut_after=1_000, stalls=True)]
    assert content_of(file) == BIG
    assert [request.start for request in hub.asked("storage")] == [0, 1_000]


def test_a_path_that_leaves_the_folder_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.files["../../../evil.jsonl"] = ROWS
    with pytest.raises(UpstreamError, match=r"lists the path '../../../evil.jsonl'.*Do not trust"):
        find_files("s", hub_source().upstream, tmp_path)


@pytest.mark.parametrize("path", ["\ud800.jsonl", 5, None, "", "a//b.jsonl", "a\0.jsonl"])
def test_a_listed_path_that_is_none_is_named(hub: Hub, tmp_path: Path, path: Any) -> None:
    hub.listed = lambda entries: [*entries, {"type": "file", "oid": "0" * 40, "size": 1, "path": path}]
    with pytest.raises(
        UpstreamError, match=rf"source 's': the hub lists the path {re.escape(repr(path))} of dataset org/texts"
    ):
        find_files("s", hub_source().upstream, tmp_path)
    assert paths(tmp_path) == []


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"size": -5}, "size -5 and git-sha1 '0{40}'"),
        ({"size": "12"}, "size '12' and"),
        ({"size": True}, "size True and"),
        ({"oid": None}, "size 1 and git-sha1 None"),
        ({"oid": "0" * 39}, "git-sha1 '0{39}', expected a number of bytes and 40 hex digits"),
        ({"lfs": {"oid": "zz", "size": 1, "pointerSize": 1}}, "sha256 'zz', expected a number of bytes and 64 hex"),
        ({"lfs": {"oid": "0" * 64, "size": None, "pointerSize": 1}}, "size None and sha256 '0{64}'"),
    ],
)
def test_a_listed_size_or_digest_that_is_none_is_named(
    hub: Hub, tmp_path: Path, entry: dict[str, Any], told: str
) -> None:
    hub.listed = lambda entries: [
        *entries,
        {"type": "file", "oid": "0" * 40, "size": 1, "path": "bad.jsonl", **entry},
    ]
    with pytest.raises(UpstreamError, match=rf"lists 'bad.jsonl' of dataset org/texts with .*{told}"):
        find_files("s", hub_source().upstream, tmp_path)


@pytest.mark.parametrize(("page", "requests"), [(0, 2), (7, 2)])
def test_pages_of_a_listing_that_go_in_a_circle_end(hub: Hub, tmp_path: Path, page: int, requests: int) -> None:
    hub.next_page = page
    with pytest.raises(UpstreamError, match=r"a page of the hub's listing \(/api/datasets/org/texts/.* one before it"):
        find_files("s", hub_source().upstream, tmp_path)
    assert len(hub.asked("tree")) == requests


@pytest.mark.parametrize(
    "after", ["\u00b2", "soon", "-1", "Mon, 99 Foo 2099 99:99:99 GMT", "Mon, 01 Jan 0001 00:00:00"]
)
def test_a_wait_that_is_none_is_the_usual_one(hub: Hub, tmp_path: Path, waits: list[float], after: str) -> None:
    file = big_file(tmp_path)
    hub.faults["storage"] = [Fault(429, {"Retry-After": after})]
    assert content_of(file) == BIG
    assert waits == [1]


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghijklmnop"))


@pytest.mark.parametrize(
    ("front", "message"),
    [
        ("- " * 3_000 + "a", "has front matter that is no YAML .RecursionError"),
        ("configs: !!timestamp 2026-99-99", "has front matter that is no YAML .ValueError"),
        ("configs: [", "has front matter that is no YAML"),
        (f"{BOMB}configs: [{{config_name: *p, data_files: x}}]", r"declares no subset 'all', found \[\]"),
        (f"{BOMB}configs: [{{config_name: all, data_files: *p}}]", "data_files of subset 'all' in a form that is not"),
        (f"{BOMB}configs: [{{config_name: all, data_dir: *p}}]", "data_files of subset 'all' in a form that is not"),
        (f"{BOMB}configs: [{{config_name: all, data_files: [{{split: *p, path: x}}]}}]", "in a form that is not"),
        ("\n" * 50_000 + "x", "declares no subset 'all'"),
    ],
    ids=["deep", "date", "half", "name", "files", "folder", "split", "empty lines"],
)
def test_a_hostile_readme_is_named_at_once(hub: Hub, tmp_path: Path, front: str, message: str) -> None:
    hub.files["README.md"] = f"---\n{front}\n---\n".encode()
    with pytest.raises(UpstreamError, match=rf"source 's': README.md of dataset org/texts at {COMMIT} .*{message}"):
        find_files("s", hub_source(subset="all").upstream, tmp_path)


def test_a_front_matter_without_an_end_is_none(hub: Hub, tmp_path: Path) -> None:
    hub.files["README.md"] = b"---" + b"\n" * 300_000
    with pytest.raises(UpstreamError, match="declares no subset 'all'"):
        find_files("s", hub_source(subset="all").upstream, tmp_path)


@pytest.mark.parametrize("length", [236, 255])
def test_a_name_of_legal_length_is_fetched(hub: Hub, tmp_path: Path, length: int) -> None:
    name = "x" * (length - 6) + ".jsonl"
    hub.files = {name: BIG}
    (file,) = find_files("s", hub_source().upstream, tmp_path)
    assert content_of(file) == BIG
    assert len(in_folder(tmp_path)) == 1


def test_a_name_that_does_not_fit_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"x" * 300 + ".jsonl": BIG, "a.jsonl": ROWS, "a.jsonl/b.jsonl": ROWS}
    files = {file.path[:15]: file for file in find_files("s", hub_source().upstream, tmp_path)}
    with pytest.raises(RowError, match=r"File name too long.*The name does not fit.*upstream.pattern"):
        files["x" * 15].open()
    files["a.jsonl"].open().close()
    with pytest.raises(RowError, match=r"file a.jsonl/b.jsonl: it cannot be stored.*The name does not fit"):
        files["a.jsonl/b.jsonl"].open()


def test_the_status_of_a_copy_that_was_discarded_fetches_nothing(hub: Hub, tmp_path: Path) -> None:
    file = big_file(tmp_path)
    file.open().close()
    before = len(hub.requests)
    file.discard()
    with pytest.raises(RowError, match=r"file data/big.jsonl: it cannot be opened .*FileNotFoundError.* Run again"):
        file.status()
    assert len(hub.requests) == before
    assert file.pinned is not None
    assert file.require(file.pinned) == file.status()


def test_an_address_with_a_signature_is_in_no_message(hub: Hub, tmp_path: Path) -> None:
    file = big_file(tmp_path)
    hub.faults["storage"] = [Fault(400)]
    with pytest.raises(RowError, match="answers 400") as caught:
        file.open()
    assert "secret" not in str(caught.value)


def test_a_damaged_copy_is_fetched_again_once(hub: Hub, tmp_path: Path) -> None:
    file = big_file(tmp_path)
    file.open().close()
    file.location.write_bytes(b"x" * len(BIG))
    assert file.pinned is not None
    status = file.require(file.pinned)
    assert content_of(file) == BIG
    assert status == file.status()
    with pytest.raises(RowError, match=r"changed since the shard plan: expected SHA-256 0{64}, found [0-9a-f]{64}"):
        file.require("sha256:" + "0" * 64)
    file.location.write_bytes(BIG[:1_000])  # a copy of another size is not even opened
    assert content_of(file) == BIG


def test_a_discarded_copy_is_fetched_when_it_is_wanted_again(hub: Hub, tmp_path: Path) -> None:
    file = big_file(tmp_path)
    file.open().close()
    file.discard()
    assert in_folder(tmp_path) == []
    assert content_of(file) == BIG


def test_a_file_is_the_same_after_json(hub: Hub, tmp_path: Path) -> None:
    for file in find_files("s", hub_source().upstream, tmp_path):
        assert UpstreamFile.from_json(json.loads(json.dumps(file.to_json()))) == file


FETCH = """
import json, sys
from everytoken.corpus.upstreams.file import UpstreamFile
UpstreamFile.from_json(json.loads(sys.argv[1])).open().close()
"""


def fetch_in_a_process(file: UpstreamFile) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", FETCH, json.dumps(file.to_json())], stderr=subprocess.PIPE)


def test_after_kill_9_only_the_rest_is_fetched(hub: Hub, tmp_path: Path) -> None:
    file = big_file(tmp_path)
    hub.faults["storage"] = [Fault(cut_after=200_000, stalls=True)]
    process = fetch_in_a_process(file)
    wait_until(lambda: sizes_of_partials(tmp_path) == [200_000], "nothing was stored")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not file.location.exists()
    assert content_of(file) == BIG
    assert [(request.start, request.sent) for request in hub.asked("storage")] == [(0, 200_000), (200_000, 100_000)]
    assert in_folder(tmp_path) == [f"hub/org--texts/{COMMIT}/data/big.jsonl"]


def test_what_a_crash_of_the_machine_left_wrong_is_fetched_anew(hub: Hub, tmp_path: Path) -> None:
    file = big_file(tmp_path)
    hub.faults["storage"] = [Fault(cut_after=200_000)] + [Fault(500)] * 6
    with pytest.raises(RowError):
        file.open()
    (partial,) = tmp_path.rglob("*.partial")
    partial.write_bytes(bytes(200_000))  # the disk has the length, and not the bytes
    assert content_of(file) == BIG
    assert [request.start for request in hub.asked("storage")][-2:] == [200_000, 0]


def waiting_for(path: Path) -> int:
    """Return how many processes wait for the lock of a file."""
    number = str(path.stat().st_ino)
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(line[1] == "->" and line[6].rpartition(":")[2] == number for line in lines)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="no /proc: whoever waits for a lock cannot be seen")
def test_two_workers_that_want_one_file_fetch_it_once(hub: Hub, tmp_path: Path) -> None:
    file = big_file(tmp_path)
    hub.faults["storage"] = [Fault(cut_after=len(BIG) - 1, stalls=True)]
    workers = [fetch_in_a_process(file) for _ in range(3)]
    wait_until(lambda: hub.asked("storage"), "no worker asked")
    (partial,) = tmp_path.rglob("*.partial")
    wait_until(lambda: waiting_for(partial) == 2, "the other two do not wait for the lock")
    hub.released.set()
    ended = [(worker.communicate()[1][-300:], worker.returncode) for worker in workers]
    assert [code for _, code in ended] == [0] * 3, ended
    assert sum(request.sent for request in hub.asked("storage")) == len(BIG)


def test_a_full_disk_is_named_and_what_came_is_kept(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = big_file(tmp_path)

    write = Partial.write

    def full(stream: Any, block: bytes) -> None:
        write(stream, block[:1])
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(Partial, "write", full)
        with pytest.raises(RowError, match=r"cannot be stored at .*No space left on device\). Free space"):
            file.open()
    assert content_of(file) == BIG
    assert [request.start for request in hub.asked("storage")] == [0, 1]


def test_a_hub_upstream_names_its_commit() -> None:
    with pytest.raises(ValidationError, match="revision"):
        HubUpstream.model_validate({"kind": "hub", "dataset": "a/b", "subset": None, "split": None, "pattern": "**"})
    with pytest.raises(ValidationError, match="split 'train' is a split of no subset"):
        hub_source(split="train")
