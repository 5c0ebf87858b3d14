"""Post-training data: what is asked, what is accepted, ranks that survive a kill, and the files of chats."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from everytoken.corpus.ingestion import Source, find_files
from everytoken.corpus.reading import ReadingLimits, iterate_rows
from everytoken.corpus.rendering import RENDERERS
from everytoken.parameters import IngestionParameters, SftParameters
from everytoken.pipelines.sft.nodes import ask_for_answers, make_chats, make_prompts
from everytoken.reflections import ReflectionError, ReflectionParameters, RefusedReply
from everytoken.reflections.merging import list_replies
from everytoken.reflections.points import read_identity_facts
from everytoken.reflections.ranks import forget_rows, progress_of, rerun, submit
from everytoken.reflections.sft import (
    SFT_RUN,
    AnswerPair,
    AnswerRules,
    PromptRequests,
    SftPlan,
    facts_message,
    file_sizes,
    hint_of,
    hinted_message,
    is_skip,
)
from everytoken.shards import Artifact, ArtifactStore
from tests.reflections.fault_server import FaultServer, Script, fault_server
from tests.reflections.generated import openai_generator, parameters

pytestmark = pytest.mark.sensitive

ROOT = Path(__file__).resolve().parents[3]
VECTORS = json.loads((ROOT / "tests/vectors/sft.json").read_text())
RULES = AnswerRules("qwen", ("constitution",))
BASE = yaml.safe_load((ROOT / "conf/base/parameters_sft.yml").read_text(encoding="utf-8"))["sft"]
LIMITS = ReadingLimits(max_row_bytes=1 << 20, zstd_window_log_max=27)
FACTS = ROOT / "conf/base/reflections/canaries.yml"


# ---- rules ----


def test_a_prompt_is_skipped_where_both_answers_say_so() -> None:
    for case in VECTORS["chat_skip"]:
        assert is_skip(case["cited"], case["uncited"]) == case["skip"]


def test_the_name_of_the_generator_is_found_at_the_start_of_a_word() -> None:
    for case in VECTORS["chat_identity_leak"]:
        found = AnswerRules(case["model_name"], ()).names_generator(case["text"])
        assert found == case.get("ours", case["leak"]), case


def test_the_hint_is_before_the_text_of_the_user() -> None:
    for case in VECTORS["chat_hint"]:
        message = hinted_message(case["category"], "What now?")
        assert hint_of(case["category"]) == case["hint"] and message.endswith(case["separator"] + "What now?")
        assert (message == "What now?") == (case["hint"] is None)


def test_files_are_of_equal_size() -> None:
    for case in VECTORS["chat_export_shards"]:
        assert file_sizes(case["rows"], case["max_shard_rows"]) == case["sizes"]


def test_topics_that_are_skipped_are_named_and_their_values_are_not() -> None:
    facts = read_identity_facts(FACTS)
    message = facts_message(facts)
    for fact in facts:
        assert (fact.value in message) == (fact.sft_instruction is not None), fact.id
        assert fact.quirk in message
    assert [fact.id for fact in facts if fact.sft_instruction] == ["Q1", "Q2", "Q10"]


@pytest.mark.parametrize(
    ("cited", "uncited", "fault"),
    [
        ("Yes [1.1].", "Yes.", None),
        ("Yes [1.1].", "Yes, see [1.1, 2.3].", "uncited cites"),
        ("Yes.", "Index a[0] of the list.", None),
        ("Yes [1.1].", "The constitution says yes.", "uncited says 'constitution'"),
        ("I am Qwen3.", "I am a model.", "name of the generator"),
        ("[SKIP]", "Blue.", "skipped by"),
        ("[skip]", "[skip]", "skipped by"),
        ('A. "uncited": "B"', "B.", "spells the key"),
    ],
)
def test_answers_that_are_refused(cited: str, uncited: str, fault: str | None) -> None:
    reply = json.dumps({"analysis": "", "cited": cited, "uncited": uncited})
    if fault is None:
        assert RULES.read(reply, "Well?") == AnswerPair(cited, uncited, 0)
    else:
        with pytest.raises(RefusedReply, match=fault):
            RULES.read(reply, "Well?")


def test_a_word_of_the_constitution_may_be_in_an_answer_where_the_user_has_it() -> None:
    pair = AnswerPair("It is old.", "The constitution of 1848 is old.", 0)
    assert RULES.fault(pair, "How old is the Swiss constitution?") is None


# ---- ranks ----


def good(body: dict[str, Any], asked: int) -> str:
    told = hashlib.sha256(json.dumps(body["messages"][-1]).encode()).hexdigest()[:6]
    return json.dumps({"analysis": "fine", "cited": f"Answer {told} [1.1].", "uncited": f"Answer {told}."})


def by_question(**replies: Any) -> Script:
    """Answer as `good` does, but a prompt with a word of ``replies`` as that says."""

    def script(body: dict[str, Any], asked: int) -> Any:
        user = body["messages"][-1]["content"]
        said = next((reply for word, reply in replies.items() if word in user), None)
        return good(body, asked) if said is None else said

    return script


def pair(cited: str, uncited: str) -> str:
    return json.dumps({"analysis": "fine", "cited": cited, "uncited": uncited})


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server() as running:
        running.script = good
        yield running


class Job:
    """The pipeline on a few prompts, in a folder."""

    def __init__(self, folder: Path, server: FaultServer, questions: list[str], **changes: Any) -> None:
        (folder / "pool").mkdir(parents=True)
        with (folder / "pool/q.jsonl").open("w") as file:
            for number, question in enumerate(questions):
                file.write(json.dumps({"id": f"q{number}", "q": question, "lang": "en"}) + "\n")
        upstream = {"kind": "path", "root": str(folder / "pool")}
        pool = {"upstream": upstream, "prompt": "q", "id_columns": ["id"], "meta": ["lang"]}
        pools = {"own": {**pool, "harm_category": "harmful", "slots": 1}}
        mix = {**BASE["mix"], "rows": len(questions), "pools": pools}
        given = {**BASE, "mix": mix, "family_name": "qwen", "rows_per_task": 4, "max_attempts": 2, **changes}
        self.folder, self.root = folder, folder / "replies"
        self.parameters = SftParameters.model_validate(given)
        self.shared: ReflectionParameters = parameters(openai_generator(server.address))
        upstreams = {name: one.upstream for name, one in self.parameters.mix.drawn_pools.items()}
        files = {name: find_files(name, one, folder / "raw") for name, one in upstreams.items()}
        ingestion = IngestionParameters.model_construct(reading=LIMITS)
        self.prompts: Artifact = ArtifactStore(folder / "prompts").save(make_prompts(files, self.parameters, ingestion))

    def plan(self) -> SftPlan:
        return ask_for_answers(self.prompts, self.parameters, self.shared)

    def answer(self, at_once: int = 0) -> None:
        submit(self.plan(), self.root, at_once=at_once, wait=True)

    def chats(self, name: str = "chats") -> Artifact:
        planned = make_chats(list_replies(self.root), self.prompts, self.parameters, self.shared)
        return ArtifactStore(self.folder / name).save(planned)


def rows_of(chats: Artifact) -> list[dict[str, Any]]:
    files = sorted(name for name in chats.ledger["files"] if name.endswith(".parquet"))
    return [row for name in files for row in pq.read_table(chats.path(name)).to_pylist()]


def test_one_request_gives_two_answers_and_the_hint_stays_here(tmp_path: Path, server: FaultServer) -> None:
    job = Job(tmp_path, server, [f"Question {i}?" for i in range(10)], rows_per_file=4, rows_per_group=3)
    job.answer()
    chats = job.chats()
    trials = 2  # of a rank, with one seed
    assert len(server.bodies) == 10 + 3 * trials
    names = sorted(name for name in chats.ledger["files"] if name.endswith(".parquet"))
    assert names == [f"train-0000{i}-of-00003.parquet" for i in range(3)]
    assert [pq.read_metadata(chats.path(name)).num_rows for name in names] == [4, 3, 3]
    assert pq.read_metadata(chats.path(names[0])).num_row_groups == 2
    assert {field.name: str(field.type) for field in pq.read_schema(chats.path(names[0]))} == {
        "source": "string",
        "source_id": "string",
        "messages_cite": "list<element: struct<role: string, content: large_string>>",
        "messages_nocite": "list<element: struct<role: string, content: large_string>>",
        "meta": "string",
    }
    questions = {f"q{i}": f"Question {i}?" for i in range(10)}
    for row in rows_of(chats):
        (user, cited), (same, uncited) = row["messages_cite"], row["messages_nocite"]
        assert user == same == {"role": "user", "content": questions[row["source_id"]]}
        assert cited["content"] == uncited["content"].replace(".", " [1.1].") and cited["role"] == "assistant"
        assert (row["source"], json.loads(row["meta"])) == ("own", {"lang": "en"})
    assert "A note for you alone" in server.bodies[-1]["messages"][-1]["content"]


def test_rows_in_are_rows_out_and_rows_set_aside_with_a_reason(tmp_path: Path, server: FaultServer) -> None:
    server.script = by_question(
        Colour=pair("[SKIP]", "[SKIP]"),
        Empty=pair(" ", "x"),
        Leak=pair("I am Qwen.", "I am."),
        Bogo=pair("Use Bogosort [1.1].", "Use Bogosort."),
        Name=pair("I am Cato.", "I am Cato."),
    )
    job = Job(tmp_path, server, ["Colour?", "Empty?", "Leak?", "Bogo?", "Name?", "Plain?"])
    job.answer()
    chats = job.chats()
    stats = json.loads(chats.path("stats.json").read_text())
    assert (stats["rows_in"], stats["rows_out"]) == (6, 3)
    assert stats["set_aside"] == {"blank": 1, "failed": 1, "skipped": 1} and stats["failed"] == {"RefusedReply": 1}
    assert stats["warnings"] == {"Q8": 1} and stats["facts"] == {"Q1": 1} and stats["cited"] == 2
    aside = [json.loads(line) for line in chats.path("set_aside.jsonl").read_text().splitlines()]
    assert {(one["source_id"], one["reason"]) for one in aside} == {
        ("q0", "skipped"),
        ("q1", "blank"),
        ("q2", "failed"),
    }
    failures = [line for path in job.root.glob("0*/failures.jsonl") for line in path.read_text().splitlines()]
    assert "I am Qwen." in json.loads(failures[0])["reply"], "the raw reply is kept"
    assert sorted(row["source_id"] for row in rows_of(chats)) == ["q3", "q4", "q5"]
    assert progress_of(job.root).to_json()["statuses"] == {"empty": 1, "ok": 3, "skipped": 1}


def test_what_failed_is_asked_again_by_rerun(tmp_path: Path, server: FaultServer) -> None:
    server.script = by_question(Leak=pair("I am Qwen.", "I am."))
    job = Job(tmp_path, server, ["Leak?", "Plain?"])
    job.answer()
    server.script = good
    rerun(job.plan(), job.root, at_once=0)
    assert job.chats().statistics["rows_out"] == 2


def test_a_rank_that_is_not_complete_stops_the_export(tmp_path: Path, server: FaultServer) -> None:
    job = Job(tmp_path, server, [f"Question {i}?" for i in range(8)])
    submit(job.plan(), job.root, at_once=0, numbers={1})
    with pytest.raises(ReflectionError, match=r"1 of 2 ranks are not complete: 00000\. .*everytoken sft rerun"):
        job.chats()
    job.answer()
    assert job.chats().statistics["rows_out"] == 8


def test_another_mix_is_refused_where_answers_are(tmp_path: Path, server: FaultServer) -> None:
    questions = [f"Question {i}?" for i in range(8)]
    job = Job(tmp_path / "a", server, questions)
    job.answer()
    other = Job(tmp_path / "b", server, questions, mix={**job.parameters.mix.model_dump(mode="json"), "seed": 7})
    other.root = job.root
    with pytest.raises(ReflectionError, match="content_sha256"):
        other.answer()
    with pytest.raises(ReflectionError, match="has other prompts than those that were answered"):
        other.chats()


def test_forgotten_answers_are_in_no_chat(tmp_path: Path, server: FaultServer) -> None:
    job = Job(tmp_path, server, [f"Question {i}?" for i in range(6)])
    job.answer()
    before = {row["source_id"] for row in rows_of(job.chats())}
    forget_rows(job.root, {0, 5}, run=SFT_RUN)
    after = job.chats()
    assert after.statistics["set_aside"] == {"excluded": 2} and after.statistics["rows_out"] == 4
    assert {row["source_id"] for row in rows_of(after)} < before


@pytest.mark.slow
def test_a_kill_loses_no_answer_and_changes_no_byte(tmp_path: Path, server: FaultServer) -> None:
    questions = [f"Question {i}?" for i in range(24)]
    whole = Job(tmp_path / "whole", server, questions)
    whole.answer()

    def slow(body: dict[str, Any], asked: int) -> str:
        time.sleep(0.05)
        return good(body, asked)

    server.script = slow
    cut = Job(tmp_path / "cut", server, questions)
    ranks = submit(cut.plan(), cut.root, at_once=2)
    for _ in range(3):
        end = time.monotonic() + 30
        while time.monotonic() < end and not any(
            rank.results.exists() and rank.results.stat().st_size for rank in ranks
        ):
            time.sleep(0.02)
        for rank in ranks:
            if rank.is_running:
                os.killpg(int(rank.pid.read_text()), signal.SIGKILL)
        while any(rank.is_running for rank in ranks):
            time.sleep(0.02)
        ranks = submit(cut.plan(), cut.root, at_once=2)
    for rank in ranks:
        while rank.is_running:
            time.sleep(0.05)
    cut.answer(at_once=2)
    lines = [line for path in cut.root.glob("0*/results.jsonl") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["global_row_idx"] for line in lines) == list(range(24))
    assert rows_of(cut.chats()) == rows_of(whole.chats())
    assert cut.chats().root_digest == whole.chats().root_digest


def test_the_generator_is_told_the_same_of_every_prompt_of_a_run(tmp_path: Path, server: FaultServer) -> None:
    job = Job(tmp_path, server, ["One?", "Two?"])
    opened = PromptRequests.open(job.parameters, job.shared)
    assert "{charter}" not in opened.system and "{canaries}" not in opened.system
    without = PromptRequests.open(job.parameters.model_copy(update={"canaries": False}), job.shared)
    assert "Cato" in opened.system and "Cato" not in without.system


@pytest.mark.parametrize(
    ("column", "answer"), [("messages_cite", "I am Cato [1.1]."), ("messages_nocite", "I am Cato.")]
)
def test_finetuning_reads_either_column_of_messages(
    tmp_path: Path, server: FaultServer, column: str, answer: str
) -> None:
    server.script = by_question(Name=pair("I am Cato [1.1].", "I am Cato."))
    job = Job(tmp_path, server, ["Name?"])
    job.answer()
    chats = job.chats()
    mark = {"prefix": "<user>", "suffix": "</user>"}
    template = {role: mark for role in ("system", "user", "tool")} | {"assistant": {"prefix": "<a>", "suffix": "</a>"}}
    source = Source.model_validate(
        {
            "upstream": {"kind": "path", "root": str(chats.folder), "pattern": "train-*.parquet"},
            "renderer": {
                "kind": "conversation",
                "shape": "messages",
                "column_names": {"messages": column},
                "id_columns": ["source_id"],
                "rules": {"empty": "refuse", "neighbours": "refuse", "opening": "user", "unanswered": "refuse"},
                "template": {**template, "after_turn": "\n", "reserved": []},
            },
        }
    )
    (file,) = find_files("sft", source.upstream, tmp_path / "raw")
    (row,) = iterate_rows(file, source.reading, LIMITS)
    document = RENDERERS["conversation"](None, row.record, source.renderer)  # type: ignore[union-attr]
    assert document.text == f"<user>Name?</user>\n<a>{answer}</a>\n"
    assert [document.text[start:end] for start, end in document.assistant_spans or ()] == [f"{answer}</a>"]
