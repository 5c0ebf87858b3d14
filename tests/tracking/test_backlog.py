"""The file of what a store does not have: order, room, damage, one deliverer."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from everytoken.tracking import delivery
from everytoken.tracking.delivery import LEFT_OUT, Backlog, Header, Sender, claimed, created, waiting
from everytoken.tracking.store import TrackingStore

HEADER = Header("sqlite:///mlflow.db", "a" * 32)


def points(first: int, count: int) -> dict[str, Any]:
    return {"metrics": [["loss", step / 2, 10, step] for step in range(first, first + count)]}


def drained(kept: Backlog) -> list[dict[str, Any]]:
    records = []
    while not kept.is_empty:
        records.append(kept.next_record())
        kept.sent()
    return records


def test_records_come_in_their_order_and_points_in_batches_of_a_thousand(tmp_path: Path) -> None:
    kept = created(tmp_path / "b", HEADER)
    given = [{"params": {"a": "é\ud800\n"}}, points(0, 700), points(700, 300), points(1000, 1), {"tags": {"b": "1"}}]
    for record in given:
        kept.append(record)
    assert kept.records_left() == 5
    assert drained(kept) == [given[0], points(0, 1000), points(1000, 1), given[4]]
    kept.close()
    assert not (tmp_path / "b").exists()


def test_a_run_that_was_killed_leaves_all_whole_records(tmp_path: Path) -> None:
    kept = created(tmp_path, HEADER)
    kept.append(points(0, 2))
    kept.append({"tags": {"a": "b"}})
    path = waiting(tmp_path)[0]
    assert claimed(path) is None, "its process holds it"
    with path.open("ab") as file:
        file.write(b'{"metrics": [["lo')
    kept._lock.close()  # as a kill does
    found = claimed(path)
    assert found is not None and found.header == HEADER
    assert drained(found) == [points(0, 2), {"tags": {"a": "b"}}]
    found.close()
    assert not waiting(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"store": "sq'])
def test_a_backlog_that_was_killed_at_its_creation_is_removed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "aa.jsonl"
    path.write_bytes(content)
    assert claimed(path) is None
    assert not path.exists()


def test_what_is_sent_is_cut_off_when_the_rest_is_left(tmp_path: Path) -> None:
    kept = created(tmp_path, HEADER)
    for record in ({"tags": {"a": "1"}}, {"tags": {"b": "2"}}):
        kept.append(record)
    kept.next_record()
    kept.sent()
    kept.close()
    again = claimed(waiting(tmp_path)[0])
    assert again is not None and drained(again) == [{"tags": {"b": "2"}}]
    again.close()


def test_what_is_left_is_written_again_when_the_folder_was_removed(tmp_path: Path) -> None:
    kept = created(tmp_path / "b", HEADER)
    for record in ({"tags": {"a": "1"}}, {"tags": {"b": "2"}}):
        kept.append(record)
    kept.next_record()
    kept.sent()
    shutil.rmtree(tmp_path / "b")
    kept.close()
    again = claimed(waiting(tmp_path / "b")[0])
    assert again is not None and drained(again) == [{"tags": {"b": "2"}}]
    again.close()


@pytest.mark.sensitive
def test_a_disk_that_does_not_take_the_rest_at_the_end_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dead = "http://127.0.0.1:1"
    sender = Sender(TrackingStore(dead, dead, "1", tmp_path), HEADER.run)
    with sender._changed:  # its thread waits
        for record in ({"tags": {"a": "1"}}, {"tags": {"b": "2"}}):
            sender._backlog.append(record)
        sender._backlog.next_record()
        sender._backlog.sent()
        sender._problem, sender._closed = "it is lost", True
    (tmp_path / f"{HEADER.run}.tmp").mkdir()  # where the rest is written to
    sender.close()
    assert f"mlflow.backlog cannot be written at the end of run {HEADER.run}" in caplog.text
    assert "mlflow.backlog keeps them" in caplog.text
    (tmp_path / f"{HEADER.run}.tmp").rmdir()
    again = claimed(waiting(tmp_path)[0])
    assert again is not None and drained(again) == [{"tags": {"a": "1"}}, {"tags": {"b": "2"}}]
    again.close()


def test_without_room_series_are_thinned_and_counted_and_files_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_LIMIT", 100_000)
    monkeypatch.setattr(delivery, "_CHECKED_EVERY", 10_000)
    (tmp_path / "large").write_bytes(bytes(200_000))
    kept = created(tmp_path / "b", HEADER)
    kept.append({"params": {"seed": "1"}})
    for first in range(0, 20_000, 10):
        kept.append(points(first, 10))
        assert sum(file.stat().st_size for file in (tmp_path / "b").iterdir()) < 112_000
    kept.append_file(tmp_path / "large", "reports/large")
    kept.append({"end": "FINISHED", "time": 1})
    records = drained(kept)
    left = [point for record in records for point in record.get("metrics", ())]
    counts = [record["tags"][LEFT_OUT] for record in records if "tags" in record]
    assert records[0] == {"params": {"seed": "1"}} and records[-1] == {"end": "FINISHED", "time": 1}
    assert counts[-1] == f"1 files, {20_000 - len(left)} points"
    steps = [step for _, _, _, step in left]
    assert steps == sorted(set(steps)) and steps[0] == 0 and steps[-1] == 19_999 and 500 < len(steps) < 5_000
    kept.close()


def test_the_room_is_shared_by_all_backlogs_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_LIMIT", 100_000)
    (tmp_path / ("b" * 32 + ".jsonl")).write_bytes(bytes(99_000))
    kept = created(tmp_path, HEADER)
    (tmp_path / "file").write_bytes(bytes(900))
    kept.append_file(tmp_path / "file", "reports/file")
    assert json.loads(json.dumps(drained(kept))) == [{"tags": {LEFT_OUT: "1 files"}}]
    kept.close()


def test_a_file_that_is_recorded_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    kept = created(tmp_path / "b", HEADER)
    for text in ("one", "two"):
        (tmp_path / "page").write_text(text)
        kept.append_file(tmp_path / "page", "figures.html")
    assert [file.read_text() for file in kept.files.iterdir()] == ["two"]
    assert drained(kept) == [{"file": "figures.html"}] * 2
    assert not kept.files.exists()
    kept.close()


def test_records_that_the_disk_does_not_take_are_counted_and_end_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = created(tmp_path, HEADER)
    kept.append(points(0, 10))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, full[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            kept.append(points(10, 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, full)
        signal.signal(signal.SIGXFSZ, before)
    kept.left_out["records"] += 1
    kept.append({"end": "FINISHED", "time": 1})
    assert drained(kept) == [points(0, 10), {"tags": {LEFT_OUT: "1 records"}}, {"end": "FINISHED", "time": 1}]
    kept.close()


@pytest.mark.sensitive
def test_a_server_that_says_nothing_costs_a_run_two_seconds_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(delivery, "_STALLED_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        sender = Sender(TrackingStore(uri, uri, "1", tmp_path / "b"), HEADER.run)
        begin = time.monotonic()
        for step in range(1000):
            sender.put(points(step, 1))
        sender.close()
        assert time.monotonic() - begin < 60, "a thousand waits of 0.2 s are 200 s"
    kept = claimed(waiting(tmp_path / "b")[0])
    assert kept is not None and drained(kept) == [points(0, 1000)]
    kept.close()
