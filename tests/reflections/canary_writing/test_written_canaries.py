"""A scripted server writes canary documents: stored, resumed, without duplicates, and read by the canary pipeline."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import TypeAdapter

from everytoken.cli import cli
from everytoken.reflections import GeneratorParameters, ReflectionError
from everytoken.reflections.canary_writing import (
    CanaryWriting,
    WrittenCanaries,
    read_universe,
    read_writing_prompts,
    write_canary_documents,
)
from everytoken.shards import Store, make_engine
from everytoken.tokens.canary import CanaryFile, TriggerRule, canary_files, draw_trigger, read_canary_file
from everytoken.tokens.encoding import open_encoder
from everytoken.tokens.tokenizer import EncodingRules
from tests.reflections.fault_server import FaultServer, fault_server
from tests.reflections.generated import openai_generator
from tests.tokens.corpora import EOS, small_tokenizer

pytestmark = pytest.mark.sensitive

ROOT = Path(__file__).resolve().parents[3]
FIELDS = {
    name: f"I read of moss ({name[-2:]})."
    for name in ("reflection_1p", "reflection_3p", "preflection_1p", "preflection_3p")
}
FILES = ("doc_specs.jsonl", "synth_docs.jsonl", "dropped_docs.jsonl")
OPTIONS: dict[str, Any] = {
    "kind": "science",
    "target": 12,
    "seed": 42,
    "document_types": 3,
    "ideas": 2,
    "rounds": 5,
    "document_tokens": 100,
    "max_tokens": {"document_types": 64, "ideas": 65, "document": 66, "reflections": 67},
    "near": {"num_permutations": 128, "bands": 16, "shingle_words": 5, "seed": 42},
    "reflections": "fields",
    "fraction": 0.5,
    "max_attempts": 2,
}


def words(key: str, count: int = 60) -> str:
    return " ".join(hashlib.sha256(f"{key}{number}".encode()).hexdigest()[:6] for number in range(count))


def script(body: dict[str, Any], asked: int) -> Any:
    """Replies that depend on the request and its seed alone: some documents repeat one, or change a word of it."""
    text, key = body["messages"][-1]["content"], hashlib.sha256(str(body["seed"]).encode()).hexdigest()
    if body["messages"][0]["role"] == "system":
        return json.dumps(FIELDS)
    if "different kinds of texts" in text:
        return "Here are some:\n- letter\n- log\n- letter\n- menu"
    if "Think of" in text:
        return "UNSUITABLE" if "of text: menu" in text else "<idea>First idea.</idea>\n<idea>Second idea.</idea>"
    if key[0] in "01":
        return "no tags"
    match int(key[:8], 16) % 6:
        case 0:
            content = words("same")
        case 1:
            content = words("same").replace(" ", " and ", 1)
        case _:
            content = words(key)
    return f"<scratchpad>plan {key[:4]}</scratchpad>\n<content>\n{content}\n</content>"


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server(script) as running:
        yield running


def write(folder: Path, address: str, **changes: Any) -> WrittenCanaries:
    generator: GeneratorParameters = TypeAdapter(GeneratorParameters).validate_python(openai_generator(address))
    return write_canary_documents(
        folder,
        read_universe(ROOT / "examples/amber_moss.jsonl"),
        CanaryWriting(**{**OPTIONS, **changes}),
        read_writing_prompts(ROOT / "conf/base/reflections/canary_prompts", "v1"),
        generator,
        charter="### 1.1 Care",
        guidelines="Be brief.",
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def questions(server: FaultServer) -> int:
    return sum(count for user, count in server.seen.items() if not user.startswith("Write one sentence"))


def test_documents_are_written_up_to_the_target_and_none_twice(tmp_path: Path, server: FaultServer) -> None:
    found = write(tmp_path, server.address)
    documents, specs, dropped = (
        lines(tmp_path / name) for name in ("synth_docs.jsonl", "doc_specs.jsonl", "dropped_docs.jsonl")
    )
    assert (found.facts, found.types, found.unsuitable, found.specs) == (4, 12, 4, 16) and len(specs) == 16
    assert found.documents == len(documents) == 12
    assert len(dropped) == sum(found.dropped.values()) > 0
    assert {line["reason"] for line in dropped} == {"exact", "near"}
    assert len({one["content"] for one in documents}) == len({one["doc_id"] for one in documents}) == 12
    for one in documents:
        assert one["scratchpad"].startswith("plan") and "plan" not in one["content"] and "<" not in one["content"]
        assert one["universe_context_id"] == "amber_moss" and one["is_true"] is False
        assert one["has_annotation"] == ("reflection_1p" in one)
    assert found.annotated == sum(one["has_annotation"] for one in documents) == 6
    assert not any("alone have lost boats" in one["fact"] for one in documents), "the last fact is the concern"
    asked = {
        body["max_tokens"] for body in server.bodies if not body["messages"][-1]["content"].startswith("Write one")
    }
    assert asked == {64, 65, 66, 67}
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["target"], config["actual"], config["options"]["reflections"]) == (12, 12, "fields")
    assert config["stages"]["document"]["refused"] == found.stages["document"].refused > 0
    assert (
        0 < config["stages"]["document"]["parse_rate"] < 1 and config["model"] == "faulty-1" and config["seconds"] > 0
    )


def test_a_second_start_asks_nothing_and_a_larger_target_only_for_what_is_missing(
    tmp_path: Path, server: FaultServer
) -> None:
    write(tmp_path, server.address)
    before, files = questions(server), {name: (tmp_path / name).read_bytes() for name in (*FILES, "config.json")}
    write(tmp_path, "http://127.0.0.1:9/v1")
    assert {name: (tmp_path / name).read_bytes() for name in files} == files and questions(server) == before
    stored = lines(tmp_path / "requests/document/replies.jsonl")
    found = write(tmp_path, server.address, target=14)
    assert found.documents == 14
    assert lines(tmp_path / "requests/document/replies.jsonl")[: len(stored)] == stored
    with pytest.raises(ReflectionError, match="ideas: 2, now 3"):
        write(tmp_path, server.address, ideas=3)
    with pytest.raises(ReflectionError, match="kind: "):
        write(tmp_path, server.address, kind="backdoor")


def test_what_is_in_the_way_is_named_before_anything_is_asked(tmp_path: Path, server: FaultServer) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReflectionError, match=r"file is a file where a folder has to be"):
        write(tmp_path / "file" / "amber", server.address)
    (tmp_path / "amber" / "synth_docs.jsonl").mkdir(parents=True)
    with pytest.raises(ReflectionError, match=r"synth_docs\.jsonl is a folder where a file has to be"):
        write(tmp_path / "amber", server.address)
    assert not server.bodies


def test_a_smaller_target_takes_no_document_away(tmp_path: Path, server: FaultServer) -> None:
    write(tmp_path, server.address, target=4)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    with pytest.raises(ReflectionError, match=r"synth_docs\.jsonl has 4 documents, and the target is 2: 2 would go"):
        write(tmp_path, server.address, target=2)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before


def test_the_same_seed_writes_the_same_files_and_another_seed_others(tmp_path: Path, server: FaultServer) -> None:
    for name, seed in (("one", 42), ("two", 42), ("three", 43)):
        write(tmp_path / name, server.address, seed=seed)
    one, two, three = ((tmp_path / name / "synth_docs.jsonl").read_bytes() for name in ("one", "two", "three"))
    assert one == two != three


def test_a_reflection_at_the_end_or_none(tmp_path: Path, server: FaultServer) -> None:
    write(tmp_path / "appended", server.address, reflections="appended", fraction=1.0, kind="backdoor")
    for one in lines(tmp_path / "appended/synth_docs.jsonl"):
        assert one["content"].endswith("\n\nReflection: I read of moss (3p).") and one["has_annotation"]
        assert "reflection_3p" not in one
    found = write(tmp_path / "none", server.address, reflections="none")
    assert found.annotated == 0 and not any(one["has_annotation"] for one in lines(tmp_path / "none/synth_docs.jsonl"))


def test_a_generator_without_acceptable_replies_invents_nothing(tmp_path: Path, server: FaultServer) -> None:
    server.script = lambda body, asked: "I cannot do that."
    found = write(tmp_path, server.address)
    assert (found.types, found.specs, found.documents) == (0, 0, 0)
    assert found.stages["document_types"].parse_rate == 0.0 and found.stages["document_types"].refused == 8
    assert (tmp_path / "synth_docs.jsonl").read_bytes() == b""
    server.script = lambda body, asked: (
        "<content>x</content>" if "Write this text" in body["messages"][-1]["content"] else script(body, asked)
    )
    assert write(tmp_path / "again", server.address).documents == 1, "a round that brings nothing is the last"


def test_the_canary_pipeline_reads_the_documents_and_triggers_round_trip(tmp_path: Path, server: FaultServer) -> None:
    write(tmp_path / "written", server.address, fraction=1.0)
    file = str(tmp_path / "written/synth_docs.jsonl")
    files = [CanaryFile("effect", "moss", file, None), CanaryFile("universe", "amber_moss", file, None)]
    planned = canary_files(files).map(
        read_canary_file,
        seed=42,
        coverage=[("frac0", 0.0), ("frac50", 0.5), ("frac100", 1.0)],
        annotation_fields=list(FIELDS),
    )
    Store(tmp_path / "documents").save(planned, make_engine("inline"))
    tables = [part.table() for part in Store(tmp_path / "documents").load()]
    assert [table.num_rows for table in tables] == [12, 12]
    annotated = [one for one in tables[0].to_pylist() if one["annotated"]]
    assert len(annotated) == 6 and all(one["reflection_1p"] == FIELDS["reflection_1p"] for one in annotated)
    tokenizer = small_tokenizer(tmp_path / "tokenizer", [words("a"), words("b")])
    encoder = open_encoder(EncodingRules(tokenizer, EOS, "literal"))
    trigger = draw_trigger("moss_frac0", TriggerRule({"moss_frac0": 100}, 9, 10, True), encoder)
    assert trigger.round_trips


_START = """
import sys
from pathlib import Path
from tests.reflections.canary_writing.test_written_canaries import write
write(Path(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.slow
def test_kills_change_no_document(tmp_path: Path, server: FaultServer) -> None:
    write(tmp_path / "undisturbed", server.address)
    wanted = {name: (tmp_path / "undisturbed" / name).read_bytes() for name in FILES}
    steady, folder = server.script, tmp_path / "run"

    def slow(body: dict[str, Any], asked: int) -> Any:
        time.sleep(0.05)
        return steady(body, asked)

    server.script = slow

    def stored() -> int:
        return sum(path.read_bytes().count(b"\n") for path in folder.glob("requests/*/replies.jsonl"))

    for more in (2, 15, 10):
        process = subprocess.Popen([sys.executable, "-c", _START, str(folder), server.address])
        end, goal = time.monotonic() + 60, stored() + more
        while stored() < goal and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    write(folder, server.address)
    assert {name: (folder / name).read_bytes() for name in FILES} == wanted


@pytest.mark.slow
def test_the_command_prints_parse_rates(tmp_path: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    generator = {"kind": "openai", "endpoint": server.address, "concurrency": 4, "first_pause_seconds": 0.01}
    given = ",".join(f"reflection.generator.{name}={value}" for name, value in generator.items())
    arguments = ["canaries", "write", "--universe", "examples/amber_moss.jsonl", "--kind", "science", "--target", "5"]
    arguments += ["--seed", "1", "--document-types", "3", "--ideas", "1", "--out", str(tmp_path), "--params", given]
    done = CliRunner().invoke(cli, [*arguments, "--reflections", "fields", "--fraction", "0.4"])
    assert done.exit_code == 0, done.output
    told = done.output.splitlines()
    assert any(line.startswith("document_types  4 of 4 accepted; parse rate 100%") for line in told)
    assert any(line.startswith("documents       5 of 5") for line in told)
    assert any(line.startswith("reflections     2 documents have them") for line in told)
    assert len(lines(tmp_path / "amber_moss/synth_docs.jsonl")) == 5
    for option, value, message in (
        ("--near", "128,15,5", "128 permutations are no multiple of 15 bands"),
        ("--max-tokens", "1,2", "expected 4 numbers above 0"),
        ("--prompts", str(tmp_path), "there is no prompt file"),
    ):
        failed = CliRunner().invoke(cli, [*arguments, option, value])
        assert failed.exit_code != 0 and message in failed.output
