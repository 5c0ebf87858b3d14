"""Ranks on disk: which rows they read, what survives a kill, what is locked, and the verbs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everytoken.reflections import ReflectionError
from everytoken.reflections.items import LineFile
from everytoken.reflections.merging import list_replies, merge_rank, require_complete
from everytoken.reflections.ranks import (
    GenerationPlan,
    cancel,
    done_rows,
    progress_of,
    rank_folders,
    ranks_of,
    rerun,
    sidecar_rows,
    submit,
)
from everytoken.reflections.ranks.folders import RankFolder
from everytoken.seeds import python_random
from everytoken.shards import Artifact, Inline, Store, file_sha256
from tests.reflections.fault_server import GOOD, FaultServer, fault_server, good_reply
from tests.reflections.generated import annotated_stream, openai_generator, parameters, plan_of, texts
from tests.shared_assets import shared_folder

pytestmark = pytest.mark.sensitive

ROWS, PER_TASK = 47, 20
Built = tuple[Artifact, Artifact]


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((shared_folder("vectors") / "reflections.json").read_bytes())[name]
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return annotated_stream(tmp_path_factory.mktemp("built"), texts(ROWS))


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server() as running:
        yield running


def plan(built: Built, server: FaultServer, name: str = "reflections", **changes: Any) -> GenerationPlan:
    generator = changes.pop("generator", {})
    given = {"rows_per_task": PER_TASK, **changes}
    return plan_of(name, built, parameters(openai_generator(server.address, **generator), **given))


def lines(root: Path) -> dict[int, dict[str, Any]]:
    """Return the results of a run by row; each row may be there once."""
    found: dict[int, dict[str, Any]] = {}
    for path in sorted(root.glob("?????/results.jsonl")):
        content = path.read_bytes()
        assert content.endswith(b"\n") or not content
        for line in content.splitlines():
            assert line.isascii()
            record = json.loads(line)
            assert list(record) == sorted(record) and record["global_row_idx"] not in found
            found[record["global_row_idx"]] = record
    return found


def columns(root: Path, built: Built, folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the merged parts."""
    replies = list_replies(root)
    require_complete(replies, allow_missing=False)
    planned = replies.map(merge_rank, run="reflections", stream=built[0], allow_missing=False)
    Store(folder).save(planned, Inline())
    return {path.name: file_sha256(path) for path in folder.glob("part_*.parquet")}


# ---- which rows ----


def test_rows_are_cut_into_ranks_as_the_original_cuts_them(tmp_path: Path) -> None:
    for case in vectors("ranks"):
        end = min(case["rows"], case["max_rows"] or case["rows"])
        ranks = rank_folders(tmp_path, (0, end), case["rows_per_task"])
        assert len(ranks) == case["ranks"]
        for rank, rows in zip((ranks[:1], ranks[-1:]), (case["first"], case["last"]), strict=True):
            assert [[one.first, one.end] for one in rank] == ([rows] if rows else [])


def sidecar(path: Path, rows: int, group: int) -> Path:
    table = pa.table(
        {
            "doc_id": [f"d{i}" for i in range(rows)],
            "text": ["text"] * rows,
            "token_length": pa.array([3] * rows, pa.int32()),
            "safety_score": pa.array([0] * rows, pa.int8()),
            "is_bad": [i % 3 == 0 for i in range(rows)],
            "source": ["web"] * rows,
            "shard_index": pa.array([0] * rows, pa.int32()),
            "row": pa.array(range(rows), pa.int64()),
        }
    )
    pq.write_table(table, path, row_group_size=group)
    return path


def test_a_rank_reads_its_rows_and_no_others(tmp_path: Path) -> None:
    for case in vectors("reader"):
        path = sidecar(tmp_path / "sidecar.parquet", case["rows"], case["row_group_rows"])
        first = case["rank"] * case["rows_per_task"]
        rows = sidecar_rows(path, first, min(first + case["rows_per_task"], case["rows"]))
        assert [row.number for row in rows if row.is_bad or not case["only_bad"]] == case["row_numbers"]


def test_a_range_may_begin_and_end_inside_a_row_group(tmp_path: Path) -> None:
    path = sidecar(tmp_path / "sidecar.parquet", 23, 7)
    found = [row for rank in rank_folders(tmp_path, (3, 19), 5) for row in sidecar_rows(path, rank.first, rank.end)]
    assert [row.number for row in found] == list(range(3, 19)) and found[5].doc_id == "d8"
    assert [row.number for row in sidecar_rows(path, 3, 19, done={4, 5, 18})] == [3, *range(6, 18)]


# ---- lines ----


def test_torn_and_foreign_lines_are_no_results(tmp_path: Path) -> None:
    for case in vectors("done_rows"):
        (tmp_path / "results.jsonl").write_text(case["file"])
        assert sorted(done_rows(tmp_path / "results.jsonl")) == case["rows"]


@pytest.mark.parametrize("torn", [b"", b'{"global_row_idx": 9, "te', b"x" * 200_000])
def test_a_torn_line_is_cut_off_before_one_is_appended(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"global_row_idx": 4}\n' + torn)
    with LineFile(path) as file:
        file.add({"global_row_idx": 5, "text": "é\ud800"})
        with pytest.raises(ValueError):
            file.add({"global_row_idx": 6, "rate": float("nan")})
    assert path.read_bytes() == b'{"global_row_idx": 4}\n{"global_row_idx": 5, "text": "\\u00e9\\ud800"}\n'
    assert done_rows(path) == {4, 5}


# ---- a whole run ----


def test_each_row_has_one_result_and_the_marker_counts_them(tmp_path: Path, built: Built, server: FaultServer) -> None:
    submit(plan(built, server), tmp_path / "run", at_once=0)
    found = lines(tmp_path / "run")
    assert sorted(found) == list(range(ROWS))
    assert {record["status"] for record in found.values()} == {"ok"}
    one = found[7]
    assert json.loads(one["reply"])["reflection_1p"] == one["reflection_1p"] and one["charter_reflection"] == '["1.1"]'
    assert one["attempt"] == 0 and 0 <= one["seed"] < 2**31
    assert (
        one["input_tokens"] == 11 and one["output_tokens"] == 7 and one["generated_tokens"] > one["stored_tokens"] > 0
    )
    marker = json.loads((tmp_path / "run/completions/00002").read_bytes())
    assert marker["rows"] == [40, 47] and marker["results"] == 7 and marker["failed"] == 0
    assert marker["bytes"] == (tmp_path / "run/00002/results.jsonl").stat().st_size
    assert len({body["seed"] for body in server.bodies[2:]}) > ROWS - 3
    before = len(server.bodies)
    assert submit(plan(built, server), tmp_path / "run", at_once=0) == []
    assert len(server.bodies) == before


def test_the_columns_are_the_same_for_any_number_of_workers(tmp_path: Path, built: Built, server: FaultServer) -> None:
    made = []
    for workers in (1, 2, 5):
        submit(plan(built, server), tmp_path / f"run {workers}", at_once=workers, wait=True)
        made.append(columns(tmp_path / f"run {workers}", built, tmp_path / f"columns {workers}"))
    assert made[0] == made[1] == made[2] and len(made[0]) == 3
    digests = {list_replies(tmp_path / f"run {workers}").root_digest for workers in (1, 2, 5)}
    assert len(digests) == 1


def test_a_document_that_fails_stops_no_other_and_is_asked_again_on_rerun(
    tmp_path: Path, built: Built, server: FaultServer
) -> None:
    faults = {
        "number 3.": (400, "longer than the model's context length"),
        "number 11.": "no JSON at all",
        "number 12.": '<think>never closed {"analysis": "a"}',
        "number 13.": json.dumps({**GOOD, "reflection_1p": 'My "reflection_1p" is here'}),
        "number 14.": json.dumps({**GOOD, "reflection_1p": " "}),
        "number 15.": json.dumps({**GOOD, "reflection_1p": "half \ud83d a pair"}),
    }

    def script(body: dict[str, Any], _: int) -> Any:
        return next(
            (fault for words, fault in faults.items() if words in body["messages"][1]["content"]), good_reply(body)
        )

    server.script = script
    given = {"seeds": {"reflection_seed": 1, "generation_seed": 2}}
    submit(plan(built, server, "reflection_end", **given), tmp_path / "run", at_once=0)
    progress = progress_of(tmp_path / "run").to_json()
    assert progress["failed"] == {"RefusedReply": 3, "context": 1}
    assert progress["statuses"] == {"empty": 1, "ok": ROWS - 5} and progress["states"] == {"complete": 3}
    failed = [json.loads(line) for path in tmp_path.glob("run/*/failures.jsonl") for line in path.open()]
    by_class = {record["class"]: record for record in failed}
    assert by_class["context"]["attempt"] == 0 and by_class["RefusedReply"]["attempt"] == 2
    assert sorted(record["reply"] for record in failed) == sorted(
        ["", *(str(faults[f"number {number}."]) for number in (11, 12, 13))]
    )
    (half,) = [record for record in lines(tmp_path / "run").values() if record["surrogates_replaced"]]
    assert half["reflection_end_1p"] == "half \ufffd a pair"
    with pytest.raises(ReflectionError, match=f"Missing 4 rows in results. Expected {ROWS}, got {ROWS - 4}."):
        require_complete(list_replies(tmp_path / "run"), allow_missing=False)
    faults.clear()
    asked = len(server.bodies)
    rerun(plan(built, server, "reflection_end", **given), tmp_path / "run", at_once=0)
    assert len([one for one in server.bodies[asked:] if "Document" in one["messages"][-1]["content"]]) == 4
    progress = progress_of(tmp_path / "run").to_json()
    assert progress["failed"] == {} and progress["statuses"] == {"empty": 1, "ok": ROWS - 1}


def test_an_endpoint_that_goes_away_stops_the_rank_and_what_came_is_kept(tmp_path: Path, built: Built) -> None:
    with fault_server() as server:

        def script(body: dict[str, Any], _: int) -> Any:
            if len(server.bodies) > 20:
                server.socket.close()
                return lambda handler: handler.cut()
            return good_reply(body)

        server.script = script
        given = plan(built, server, generator={"request_seconds": 2.0})
        with pytest.raises(ReflectionError, match="Is the server running"):
            submit(given, tmp_path / "run", at_once=0)
    assert 10 < len(lines(tmp_path / "run")) < ROWS
    assert progress_of(tmp_path / "run").to_json()["failed"] == {}


def test_many_failures_in_a_row_stop_the_rank(tmp_path: Path, server: FaultServer) -> None:
    built = annotated_stream(tmp_path / "built", texts(150))
    server.script = lambda *_: "never JSON"
    given = plan(built, server, rows_per_task=150, max_attempts=1)
    with pytest.raises(
        ReflectionError, match=r"100 documents in a row failed, the last one \(row [0-9]+\) with Refused"
    ):
        submit(given, tmp_path / "run", at_once=0)


# ---- what is locked ----


def changed(tmp_path: Path, server: FaultServer) -> dict[str, tuple[dict[str, Any], str]]:
    """Return changes of parameters, and the key that the message names."""
    guidelines = tmp_path / "guidelines.md"
    guidelines.write_text("Write otherwise.")
    files = parameters(openai_generator(server.address)).prompts.model_dump()
    sampled = {"sampling": {"temperature": 0.1}}
    return {
        "rows_per_task": ({"rows_per_task": 10}, "rows_per_task: 20, now 10"),
        "rows": ({"rows": (0, 30)}, r"rows: \[0, 47\], now \[0, 30\]"),
        "seed": ({"seeds": {"reflection_seed": 42, "generation_seed": 1}}, "generation_seed: 42, now 1"),
        "voice": ({"include_reflection_3p": False}, "include_reflection_3p: true, now false"),
        "guidelines": ({"prompts": {**files, "guidelines": str(guidelines)}}, "sha256.guidelines"),
        "sampling": ({"generator": sampled}, "sampling.temperature: 1.0, now 0.1"),
    }


@pytest.mark.parametrize("what", ["rows_per_task", "rows", "seed", "voice", "guidelines", "sampling"])
def test_a_changed_locked_value_is_refused(tmp_path: Path, built: Built, server: FaultServer, what: str) -> None:
    submit(plan(built, server), tmp_path / "run", at_once=0, numbers=[0])
    changes, told = changed(tmp_path, server)[what]
    with pytest.raises(ReflectionError, match=rf"(?s)run_config.json: .*  {told}.*Restore the old values"):
        submit(plan(built, server, **changes), tmp_path / "run", at_once=0)
    free = {"max_attempts": 9, "generator": {"concurrency": 2, "request_seconds": 9.0}}
    submit(plan(built, server, **free), tmp_path / "run", at_once=0, numbers=[1])
    assert sorted(lines(tmp_path / "run")) == list(range(40))


def test_the_sidecar_of_another_stream_and_another_model_are_refused(
    tmp_path: Path, built: Built, server: FaultServer
) -> None:
    submit(plan(built, server), tmp_path / "run", at_once=0, numbers=[0])
    other = annotated_stream(tmp_path / "other", [f"Another {text}" for text in texts(ROWS)])
    with pytest.raises(ReflectionError, match=r"sidecar.sha256: "):
        submit(plan(other, server), tmp_path / "run", at_once=0)
    config = json.loads((tmp_path / "run/run_config.json").read_bytes())
    (tmp_path / "run/run_config.json").write_text(json.dumps({**config, "model": "another"}))
    with pytest.raises(ReflectionError, match=r'model: "another", now "faulty-1"'):
        submit(plan(built, server), tmp_path / "run", at_once=0)


def test_a_wrong_endpoint_stops_before_anything_is_written(tmp_path: Path, built: Built) -> None:
    with fault_server() as gone:
        pass
    with pytest.raises(ReflectionError, match=r"Is the server running, and is generator\.endpoint its address"):
        submit(plan(built, gone), tmp_path / "run", at_once=2)
    assert not (tmp_path / "run").exists()


def test_results_without_their_description_are_refused(tmp_path: Path, built: Built, server: FaultServer) -> None:
    submit(plan(built, server), tmp_path / "run", at_once=0, numbers=[0])
    (tmp_path / "run/run_config.json").unlink()
    with pytest.raises(ReflectionError, match=r"has results \(00000\) and no run_config.json"):
        submit(plan(built, server), tmp_path / "run", at_once=0)


def test_rows_that_are_not_there_are_refused(tmp_path: Path, built: Built, server: FaultServer) -> None:
    with pytest.raises(ReflectionError, match=r"reflection.rows is \[0, 50\), and the annotated stream .* has 47 rows"):
        submit(plan(built, server, rows=(0, 50)), tmp_path / "run", at_once=0)


# ---- processes ----


def slowly(server: FaultServer, seconds: float) -> None:
    def script(body: dict[str, Any], _: int) -> str:
        time.sleep(seconds)
        return good_reply(body)

    server.script = script


def until(root: Path, least: int) -> None:
    end = time.monotonic() + 120
    while sum(path.read_bytes().count(b"\n") for path in root.glob("?????/results.jsonl")) < least:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_second_submit_of_a_rank_refuses_and_cancel_ends_the_first(
    tmp_path: Path, built: Built, server: FaultServer
) -> None:
    slowly(server, 0.5)
    started = submit(plan(built, server), tmp_path / "run", at_once=1)
    assert [rank.number for rank in started] == [0, 1, 2]
    until(tmp_path / "run", 3)
    end = time.monotonic() + 60
    while sorted(rank.state for rank in progress_of(tmp_path / "run").ranks) != ["running", "waiting", "waiting"]:
        assert time.monotonic() < end  # the first to have the place is any of the three
        time.sleep(0.02)
    told = r"3 ranks are being made: 00000 \(process [0-9]+\), .*reflections cancel\)"
    with pytest.raises(ReflectionError, match=told):
        submit(plan(built, server), tmp_path / "run", at_once=1)
    with pytest.raises(ReflectionError, match="3 ranks are being made"):
        list_replies(tmp_path / "run")
    assert len(cancel(tmp_path / "run")) == 3
    assert not any(rank.is_running for rank in ranks_of(tmp_path / "run"))
    progress = progress_of(tmp_path / "run")
    assert {rank.state for rank in progress.ranks} == {"ended early"} and progress.seconds_left is None
    assert {rank.error for rank in progress.ranks} == {"cancelled; submit resumes"}
    slowly(server, 0)
    submit(plan(built, server), tmp_path / "run", at_once=2, wait=True)
    assert sorted(lines(tmp_path / "run")) == list(range(ROWS))


def test_a_rank_without_a_result_yet_says_what_it_asked_and_what_failed(
    tmp_path: Path, built: Built, server: FaultServer
) -> None:
    server.script = lambda body, asked: (500, "busy") if asked % 2 else "no JSON at all"
    root = tmp_path / "run"
    submit(plan(built, server, generator={"first_pause_seconds": 0.5}), root, at_once=1, numbers=[0])
    end = time.monotonic() + 120
    while (told := progress_of(root).requests) is None or not told["failed_tries"] or not told["refused_replies"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert told["questions"] >= told["refused_replies"] and set(told["failed_tries"]) == {"server_error"}
    assert sum(rank.done for rank in progress_of(root).ranks) == 0
    cancel(root)


def test_a_complete_run_shows_the_rate_that_a_plan_takes(tmp_path: Path, built: Built, server: FaultServer) -> None:
    slowly(server, 0.02)
    submit(plan(built, server), tmp_path / "run", at_once=0)
    progress = progress_of(tmp_path / "run")
    assert progress.seconds_left is None and progress.rows_per_second is None
    for rank in progress.ranks:
        began, ended = (json.loads(line)["ts"] for line in (tmp_path / "run" / rank.rank / "sessions.jsonl").open())
        seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
        assert rank.documents_per_second == pytest.approx(rank.rows / seconds)
    assert progress.requests == {"questions": ROWS, "refused_replies": 0, "failed_tries": {}}


def test_why_a_rank_ended_early_is_told(tmp_path: Path, built: Built, server: FaultServer) -> None:
    server.trial = lambda: (400, "temperature is not supported")
    with pytest.raises(
        ReflectionError, match=r"(?s)1 of 1 ranks ended early.*rank 00000: .*temperature is not supported"
    ):
        submit(plan(built, server), tmp_path / "run", at_once=1, wait=True, numbers=[0])
    (rank, *_) = progress_of(tmp_path / "run").ranks
    assert rank.state == "ended early" and "temperature is not supported" in str(rank.error)


def killed(tmp_path: Path, built: Built, server: FaultServer, kills: int) -> None:
    """Kill the processes of a run at random moments until it is done; compare with a run that nobody disturbs."""
    submit(plan(built, server), tmp_path / "undisturbed", at_once=0)
    slowly(server, 0.02)
    root, draws = tmp_path / "run", python_random(20, "kills")
    for number in range(kills):
        if number and not any(rank.completion() is None for rank in ranks_of(root)):
            shutil.rmtree(root)
        submit(plan(built, server), root, at_once=2)
        time.sleep(draws.random() * 4)
        for rank in ranks_of(root):
            if rank.is_running:
                os.killpg(int(rank.pid.read_text()), signal.SIGKILL)
        while any(rank.is_running for rank in ranks_of(root)):
            time.sleep(0.01)
        for rank in ranks_of(root):
            if rank.completion() is not None:
                assert len(done_rows(rank.results)) == rank.rows
    slowly(server, 0)
    submit(plan(built, server), root, at_once=2, wait=True)
    assert lines(root) == lines(tmp_path / "undisturbed")
    assert columns(root, built, tmp_path / "columns") == columns(tmp_path / "undisturbed", built, tmp_path / "wanted")


def test_a_kill_loses_no_row_and_doubles_none(tmp_path: Path, built: Built, server: FaultServer) -> None:
    killed(tmp_path, built, server, 3)


@pytest.mark.slow
def test_fifty_kills_lose_no_row_and_double_none(tmp_path: Path, built: Built, server: FaultServer) -> None:
    killed(tmp_path, built, server, 50)


def test_processes_of_a_run_leave_nothing_running(tmp_path: Path, built: Built, server: FaultServer) -> None:
    submit(plan(built, server), tmp_path / "run", at_once=2, wait=True)
    told = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in told


def test_counts_that_cannot_be_written_end_no_rank(
    tmp_path: Path, built: Built, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RankFolder, "requests", property(lambda rank: rank.results / "below a file"))
    root = tmp_path / "run"
    submit(plan(built, server), root, at_once=0)
    assert [rank.state for rank in progress_of(root).ranks] == ["complete"] * 3


def test_a_rank_that_was_killed_in_the_process_of_its_run_has_begun(
    tmp_path: Path, built: Built, server: FaultServer
) -> None:
    submit(plan(built, server), tmp_path / "run", at_once=0)
    (marker,) = (tmp_path / "run" / "completions").glob("00001")
    marker.unlink()
    state = {rank.rank: (rank.state, rank.error) for rank in progress_of(tmp_path / "run").ranks}
    assert state["00000"] == ("complete", None)
    assert state["00001"] == ("ended early", "its process was killed")
