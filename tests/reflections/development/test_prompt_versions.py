"""Versions of a prompt with a judge whose answers are known: the better one wins, ties are told, replies replay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from everytoken.reflections import PromptMissing, ReflectionError
from everytoken.reflections.development import (
    EVAL,
    Candidate,
    Trial,
    development_of,
    figures_of,
    forget_trials,
    improve_prompt,
    rank_versions,
    ranking_lines,
    sampled_rows,
    seed_prompt,
    trials_folder,
    try_candidate,
    versions_page,
    versions_page_path,
)
from everytoken.reflections.ranks import GenerationPlan
from everytoken.seeds import python_random
from everytoken.shards import Artifact
from tests.reflections.development.scripted_judge import (
    ALIAS,
    development_plan,
    judgement,
    prompt,
    questions,
    script,
    write_prompts,
)
from tests.reflections.fault_server import FaultServer, fault_server
from tests.reflections.generated import annotated_stream, texts

pytestmark = pytest.mark.sensitive

Built = tuple[Artifact, Artifact]
SCORES = {"careful": (5, 5, 4, 5), "plain": (4, 4, 4, 3), "rude": (5, 5, 5, 2)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return annotated_stream(tmp_path_factory.mktemp("built"), texts(40))


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server(script(lambda quality, user: SCORES[quality])) as running:
        yield running


def tried(plan: GenerationPlan, folder: Path, *versions: str) -> list[Trial]:
    candidates = [Candidate.open(plan, version, folder) for version in versions]
    given = development_of(plan)
    rows = sampled_rows(plan, candidates[0].builder, given.items, given.seed, EVAL)
    return [try_candidate(candidate, rows, EVAL) for candidate in candidates]


def told(trials: Sequence[Trial]) -> str:
    return " ".join(ranking_lines(rank_versions(trials)))


def test_the_better_version_wins(tmp_path: Path, built: Built, server: FaultServer) -> None:
    plan = development_plan(built, server, write_prompts(tmp_path / "prompts", "plain", "careful", "rude"))
    trials = tried(plan, tmp_path / "run", "v1", "v2", "v3")
    plain, careful, rude = map(figures_of, trials)
    assert (plain.mean_aggregate, careful.mean_aggregate, rude.mean_aggregate) == (3.75, 4.75, 4.25)
    assert (plain.accept_rate, careful.accept_rate, rude.accept_rate) == (0, 1, 0), "rude has a score of 2"
    assert plain.by_dimension == dict(
        zip(("relevance", "specificity", "charter_grounding", "voice_tone"), (4, 4, 4, 3), strict=True)
    )
    assert careful.items == careful.generated == careful.judged == 8
    ranking = rank_versions(trials)
    assert ranking.best == (f"{ALIAS}__reflection_v2",) and ranking.rows == 8
    assert [mean for _, mean in ranking.order] == [Fraction(19, 4), Fraction(17, 4), Fraction(15, 4)]
    assert ranking.against == dict.fromkeys((f"{ALIAS}__reflection_v1", f"{ALIAS}__reflection_v3"), (8, 0, 0))
    assert f"Best is {ALIAS}__reflection_v2 with a mean of 4.750 on 8 rows" in told(trials)


def test_ties_are_told(tmp_path: Path, built: Built, server: FaultServer) -> None:
    plan = development_plan(built, server, write_prompts(tmp_path / "prompts", "plain", "clear"))

    # other scores on each row, and the same mean
    server.script = script(lambda quality, user: (5, 4, 4, 3) if quality == "plain" else (3, 4, 4, 5))
    trials = tried(plan, tmp_path / "run", "v1", "v2")
    assert rank_versions(trials).best == (f"{ALIAS}__reflection_v1", f"{ALIAS}__reflection_v2")
    assert f"Tie of {ALIAS}__reflection_v1 and {ALIAS}__reflection_v2: each has a mean of 4.000" in told(trials)
    assert "better on 0 rows, equal on 8, worse on 0" in told(trials)


def test_accept_rates_are_told_by_safety_score(tmp_path: Path, built: Built, server: FaultServer) -> None:
    plan = development_plan(
        built, server, write_prompts(tmp_path / "prompts", "plain"), "reflection_end", development={"items": 30}
    )
    rows = sampled_rows(plan, Candidate.open(plan, "v1", tmp_path).builder, 30, development_of(plan).seed, EVAL)
    high = {row.text[:40] for row in rows if row.safety_score >= 3}
    server.script = script(lambda quality, user: (1,) * 4 if any(one in user for one in high) else (5,) * 4)
    (trial,) = tried(plan, tmp_path / "run", "v1")
    found = figures_of(trial).accept_by_safety_score
    assert found == {row.safety_score: float(row.safety_score < 3) for row in rows}
    assert {f"accept_rate.safety_score_{score}" for score in found} < set(figures_of(trial).metrics())


def test_a_second_start_asks_nothing_and_a_version_may_join(tmp_path: Path, built: Built, server: FaultServer) -> None:
    plan = development_plan(built, server, write_prompts(tmp_path / "prompts", "plain", "careful"))
    first = tried(plan, tmp_path / "run", "v1")
    assert (questions(server, "generate"), questions(server, "judge")) == (8, 8)
    both = tried(plan, tmp_path / "run", "v1", "v2")
    assert questions(server) == 32 and figures_of(both[0]) == figures_of(first[0])
    assert tried(plan, tmp_path / "run", "v1", "v2")[1].judged == both[1].judged and questions(server) == 32


def test_what_decides_the_replies_must_not_change(tmp_path: Path, built: Built, server: FaultServer) -> None:
    prompts = write_prompts(tmp_path / "prompts", "plain")
    plan = development_plan(built, server, prompts)
    tried(plan, tmp_path / "run", "v1")
    before = questions(server)
    (prompts / ALIAS / "reflection_v1.md").write_text(prompt("careful"))
    with pytest.raises(ReflectionError, match=r"(?s)what the run was started with has changed.*sha256\.prompt"):
        tried(plan, tmp_path / "run", "v1")
    (prompts / ALIAS / "reflection_v1.md").write_text(prompt("plain"))
    rubric = tmp_path / "rubric.md"
    rubric.write_text(Path(development_of(plan).rubric).read_text() + "\nBe kind.\n")
    with pytest.raises(ReflectionError, match=r"(?s)has changed.*sha256\.rubric"):
        tried(development_plan(built, server, prompts, development={"rubric": str(rubric)}), tmp_path / "run", "v1")
    with pytest.raises(ReflectionError, match=r"(?s)has changed.*sampling\.temperature: 1\.0, now 0\.5"):
        warm = development_plan(built, server, prompts, generator={"sampling": {"temperature": 0.5}})
        tried(warm, tmp_path / "run", "v1")
    with pytest.raises(PromptMissing, match=r"the versions in .* are v1"):
        tried(plan, tmp_path / "run", "v2")
    assert questions(server) == before


def test_failures_are_bounded_and_told_by_stage_and_fault(tmp_path: Path, built: Built, server: FaultServer) -> None:
    plan = development_plan(built, server, write_prompts(tmp_path / "prompts", "plain"), "reflection_end")
    answers = script(lambda quality, user: SCORES[quality])
    rows = sampled_rows(plan, Candidate.open(plan, "v1", tmp_path).builder, 8, development_of(plan).seed, EVAL)
    marks = [row.text[:20] for row in rows]

    def faulty(body: dict[str, object], asked: int) -> object:
        user = str(body["messages"][-1]["content"])  # type: ignore[index]
        is_judge = "# Text reflection_1p" in user
        if marks[0] in user and not is_judge:
            return "no JSON"  # 5 attempts
        if marks[1] in user and not is_judge:
            return (400, "this model's maximum context length is 1")
        if marks[2] in user and is_judge:
            return judgement(4, 4, 4, 9)  # 3 attempts
        return answers(body, asked)  # type: ignore[arg-type]

    server.script = faulty
    (trial,) = tried(plan, tmp_path / "run", "v1")
    found = figures_of(trial)
    assert (found.items, found.generated, found.judged) == (8, 6, 5)
    assert found.failure_rates == {
        "generating.api": 1 / 12,
        "generating.parse": 5 / 12,
        "judging.api": 0,
        "judging.parse": 3 / 8,
    }
    assert found.parse_rates == {"generating": 6 / 11, "judging": 5 / 8}
    assert trial.generating.failed == {str(rows[0].number): "RefusedReply", str(rows[1].number): "context"}
    kept = (tmp_path / "run/judgements/eval" / f"{ALIAS}__on__{ALIAS}__reflection_v1/failures.jsonl").read_text()
    assert [json.loads(json.loads(line)["reply"]) for line in kept.splitlines()] == [
        json.loads(judgement(4, 4, 4, 9))
    ] * 3


def test_the_judge_sees_the_passage_up_to_the_point_and_is_told_of_a_canary(
    tmp_path: Path, built: Built, server: FaultServer
) -> None:
    canaries = {"facts": "conf/base/reflections/canaries.yml", "seed": 42, "rate": 1.0}
    plan = development_plan(built, server, write_prompts(tmp_path / "prompts", "plain"), canaries=canaries)
    (trial,) = tried(plan, tmp_path / "run", "v1")
    asked = [body["messages"] for body in server.bodies if body["messages"][0]["content"].startswith("You judge")]
    for one in trial.items.values():
        shown = f"# Passage\n\n{one.request.row.text[: one.request.shown_characters]}\n\n# Text reflection_1p"
        ((system, user),) = [messages for messages in asked if shown in messages[1]["content"]]
        assert one.request.canary is not None and one.request.canary.value in user["content"]
        assert "Do not mark a text down for that" in user["content"]
        assert "### 1.1 Say what is known" in system["content"]


# ---- samples ----


def test_a_sample_is_fixed_by_its_seed_and_purpose(tmp_path: Path, built: Built, server: FaultServer) -> None:
    plan = development_plan(built, server, write_prompts(tmp_path / "prompts", "plain"))
    builder = Candidate.open(plan, "v1", tmp_path).builder
    first = [row.number for row in sampled_rows(plan, builder, 8, 42, EVAL)]
    assert first == [row.number for row in sampled_rows(plan, builder, 8, 42, EVAL)] == sorted(set(first))
    assert first != [row.number for row in sampled_rows(plan, builder, 8, 43, EVAL)]
    other = [row.number for row in sampled_rows(plan, builder, 8, 42, "improve_v1", first)]
    assert len(other) == 8 and not set(first) & set(other)
    part = development_plan(built, server, tmp_path / "prompts", rows=(10, 13))
    assert [row.number for row in sampled_rows(part, builder, 8, 42, EVAL)] == [10, 11, 12]
    with pytest.raises(ReflectionError, match="asks about none of 0 drawn rows"):
        sampled_rows(part, builder, 8, 42, "improve_v1", [10, 11, 12])


# ---- first and next versions ----


def test_a_first_version_is_made_of_template_constitution_and_fields(
    tmp_path: Path, built: Built, server: FaultServer
) -> None:
    for run, kind in (
        ("reflections", "reflection"),
        ("refusal_reflection", "refusal_reflection"),
        ("preflections", "preflection"),
    ):
        plan = development_plan(built, server, tmp_path / "prompts", run)
        path = seed_prompt(plan)
        assert path == tmp_path / "prompts" / ALIAS / f"{kind}_v1.md"
        text = path.read_text()
        assert "1.1 Say what is known; 1.2 Tell claims from evidence" in text and text.count("{charter}") == 1
        assert "{sections}" not in text and "{fields}" not in text and "analysis, " in text
        plan.builder()  # it can be used
        with pytest.raises(ReflectionError, match=f"has prompts of the kind {kind}: v1"):
            seed_prompt(plan)
    with pytest.raises(ReflectionError, match="a summary prompt has no constitution"):
        seed_prompt(development_plan(built, server, tmp_path / "prompts", "summaries"))


def test_an_improvement_sees_rejected_and_accepted_replies_and_is_made_once(
    tmp_path: Path, built: Built, server: FaultServer
) -> None:
    prompts = write_prompts(tmp_path / "prompts", "plain")
    plan = development_plan(built, server, prompts)
    seen: list[str] = []

    def scores(quality: str, user: str) -> tuple[int, ...]:
        return (5, 5, 5, 5) if "number 1" in user.partition("# Text")[0] or len(seen) % 2 else SCORES[quality]

    def alternating(quality: str, user: str) -> tuple[int, ...]:
        seen.append(user)
        return scores(quality, user)

    server.script = script(alternating)
    found = improve_prompt(Candidate.open(plan, "v1", tmp_path / "run"))
    assert found.version == "v2" and found.path == prompts / ALIAS / "reflection_v2.md"
    assert found.path.read_text() == prompt("careful").strip() + "\n"
    assert 1 <= found.rejected <= 3 and 1 <= found.accepted <= 3
    (request,) = [body["messages"] for body in server.bodies if body["messages"][0]["content"].startswith("You impro")]
    assert "{charter}, {writing_guidelines}" in request[0]["content"]
    assert "Scores: relevance 4, specificity 4" in request[1]["content"] and "# Accepted 1" in request[1]["content"]
    assert "Grounds: it earns 4" in request[1]["content"] and prompt("plain").strip() in request[1]["content"]
    compared = sampled_rows(plan, found.trial.candidate.builder, 8, development_of(plan).seed, EVAL)
    assert not {row.number for row in compared} & set(found.trial.items)
    before = questions(server)
    again = improve_prompt(Candidate.open(plan, "v1", tmp_path / "run"))
    assert again.version == "v2" and questions(server) == before
    assert sorted(path.name for path in (prompts / ALIAS).iterdir()) == ["reflection_v1.md", "reflection_v2.md"]


def test_a_new_prompt_without_its_placeholders_is_refused(tmp_path: Path, built: Built, server: FaultServer) -> None:
    prompts = write_prompts(tmp_path / "prompts", "plain")
    plan = development_plan(built, server, prompts)
    answers, tries = script(lambda quality, user: SCORES[quality]), []
    bad = ["no prompt", "<prompt>{charter} alone</prompt>", f"<prompt>{prompt('plain')}</prompt>"]

    def faulty(body: dict[str, object], asked: int) -> object:
        if str(body["messages"][0]["content"]).startswith("You improve"):  # type: ignore[index]
            tries.append(asked)
            return bad[(len(tries) - 1) % 3]
        return answers(body, asked)  # type: ignore[arg-type]

    server.script = faulty
    found = improve_prompt(Candidate.open(plan, "v1", tmp_path / "run"))
    assert found.version is None and len(tries) == 3 and found.asked.failures == {"api": 0, "parse": 3}
    assert [path.name for path in (prompts / ALIAS).iterdir()] == ["reflection_v1.md"]


def test_versions_go_by_number(tmp_path: Path, built: Built, server: FaultServer) -> None:
    prompts = write_prompts(tmp_path / "prompts", *(f"quality{number}" for number in range(1, 11)))
    server.script = script(lambda quality, user: (2, 2, 2, 2))
    found = improve_prompt(Candidate.open(development_plan(built, server, prompts), "v1", tmp_path / "run"))
    assert found.version == "v11", "and not v10: v9 is behind v10 as text"


# ---- a kill ----

_START = """
import json, sys
from pathlib import Path
from everytoken.reflections.development import Candidate
from tests.reflections.development.test_prompt_versions import tried
import pickle
plan = pickle.loads(Path(sys.argv[1]).read_bytes())
tried(plan, Path(sys.argv[2]), "v1", "v2")
"""


@pytest.mark.slow
def test_a_kill_loses_only_what_was_under_way(tmp_path: Path, built: Built, server: FaultServer) -> None:
    import pickle

    plan = development_plan(
        built, server, write_prompts(tmp_path / "prompts", "plain", "careful"), development={"items": 30}
    )
    wanted = [trial.judged for trial in tried(plan, tmp_path / "undisturbed", "v1", "v2")]
    before, answers = questions(server), server.script

    def slow(body: dict[str, object], asked: int) -> object:
        time.sleep(0.03)
        return answers(body, asked)  # type: ignore[arg-type]

    server.script = slow
    (tmp_path / "plan").write_bytes(pickle.dumps(plan))
    draws = python_random(9, "kills")
    for _ in range(3):
        asked = questions(server)
        process = subprocess.Popen([sys.executable, "-c", _START, str(tmp_path / "plan"), str(tmp_path / "run")])
        end = time.monotonic() + 60
        while questions(server) <= asked + 4 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(draws.random() * 0.4)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    found = tried(plan, tmp_path / "run", "v1", "v2")
    assert [trial.judged for trial in found] == wanted
    assert questions(server) - before <= 4 * 30 + 3 * 8, "twice the concurrency was under way at each kill, at most"


# ---- a take-down ----


def test_what_was_said_of_a_row_that_is_taken_down_is_removed(
    tmp_path: Path, built: Built, server: FaultServer
) -> None:
    prompts = write_prompts(tmp_path / "prompts", "plain")
    plan, root = development_plan(built, server, prompts), trials_folder(tmp_path, "reflections")
    (trial,) = tried(plan, root, "v1")
    improved = improve_prompt(Candidate.open(plan, "v1", root))
    page = versions_page_path(tmp_path, "reflections")
    page.parent.mkdir()
    page.write_text(versions_page("reflections", [trial]))
    compared, shown = min(trial.items), min(improved.trial.items)
    others = [row for row in range(40) if row not in trial.items and row not in improved.trial.items]
    assert list(forget_trials(tmp_path, others)) == [] and page.exists()
    assert list(forget_trials(tmp_path, [compared, *others])) == [("reflections", 1)] and not page.exists()
    assert (root / "improvements" / trial.candidate.name / "replies.jsonl").exists(), "it did not see that row"
    before = questions(server)
    assert tried(plan, root, "v1")[0].judged == trial.judged and questions(server) == before + 2
    assert list(forget_trials(tmp_path, [shown])) == [("reflections", 1)]
    assert not (root / "improvements" / trial.candidate.name).exists()
    left = [
        json.loads(line)["id"]
        for path in root.rglob("*.jsonl")
        for line in path.read_text().splitlines()
        if path.name in ("replies.jsonl", "failures.jsonl")
    ]
    assert str(shown) not in left and len(left) == 4 * 8 - 2
    assert improved.path is not None and improved.path.exists(), "the prompt stays"


# ---- the page ----


def test_the_page_shows_versions_side_by_side_and_no_text_acts(
    tmp_path: Path, built: Built, server: FaultServer
) -> None:
    plan = development_plan(built, server, write_prompts(tmp_path / "prompts", "plain", "careful"))
    answers = server.script

    def hostile(body: dict[str, object], asked: int) -> object:
        said = answers(body, asked)  # type: ignore[arg-type]
        return str(said).replace("thought [1.1]", "thought <script>alert(1)</script>")

    server.script = hostile
    trials = tried(plan, tmp_path / "run", "v1", "v2")
    page = versions_page("reflections", trials)
    assert page == versions_page("reflections", tried(plan, tmp_path / "run", "v1", "v2"))
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert page.count('<div class="side">') == 1 + 8 and page.count("<b>accepted</b>") == page.count("<b>rejected</b>")
    assert "a careful thought &lt;script&gt;" in page and "a plain thought" in page
    assert page.index("Best is") < page.index("<td>mean_aggregate</td><td>3.750</td><td>4.750</td>")
