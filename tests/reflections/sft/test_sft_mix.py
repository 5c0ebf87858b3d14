"""Post-training data: which prompts are drawn of which files, and what the file of prompts says of itself."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from everytoken.corpus.ingestion import find_files
from everytoken.corpus.reading import ReadingLimits
from everytoken.reflections import ReflectionError
from everytoken.reflections.sft import (
    PROMPTS_FILE,
    PromptMix,
    draw_mix,
    prompts_digest,
    read_prompts,
    rows_of_pools,
    write_prompts,
)
from everytoken.shards import Artifact, ArtifactStore, plan_artifact

VECTORS = json.loads((Path(__file__).resolve().parents[2] / "vectors/sft.json").read_text())
LIMITS = ReadingLimits(max_row_bytes=1 << 20, zstd_window_log_max=27)

PUBLISHED = {
    "wildchat": ("wildchat-unknown", 2),
    "wildguardmix harmful": ("wildguardmix-harmful", 1),
    "wildguardmix benign": ("wildguardmix-benign", 1),
    "adversarial_harmful": ("wjb-adversarial_harmful-adversarial_harmful", 1),
    "adversarial_benign": ("wjb-adversarial_benign-adversarial_benign", 1),
    "vanilla_harmful": ("wjb-vanilla_harmful-harmful", 1),
    "vanilla_benign": ("wjb-vanilla_benign-benign", 1),
}


# ---- the draw ----


def test_the_mix_is_that_of_the_original() -> None:
    for case in VECTORS["chat_mix"]:
        ids = {
            pool: [f"{PUBLISHED[pool][0]}-{i}" for i in range(size) if (pool, i) not in too_long(case)]
            for pool, size in case["pool_sizes"].items()
        }
        sizes, slots = {pool: len(of_pool) for pool, of_pool in ids.items()}, {p: s for p, (_, s) in PUBLISHED.items()}
        wanted = rows_of_pools(case["n"], slots, sizes)
        drawn_from = {pool: count for pool, count in wanted.items() if not is_excluded(pool, case["exclude"])}
        drawn = draw_mix(case["seed"], drawn_from, sizes, slots)
        assert [ids[row.pool][row.place] for row in drawn] == case["source_ids"]


def too_long(case: dict[str, Any]) -> set[tuple[str, int]]:
    return {("wildchat", i) for i in case["too_long_in_wildchat"]}


def is_excluded(pool: str, datasets: list[str]) -> bool:
    return any(PUBLISHED[pool][0].startswith({"wildjailbreak": "wjb"}.get(name, name)) for name in datasets)


def test_a_small_mix_leaves_out_the_pool_that_is_taken_whole() -> None:
    slots = {"harmful_qa": "all", **{pool: count for pool, (_, count) in PUBLISHED.items()}}
    for case in VECTORS["chat_per_slot"]:
        found = rows_of_pools(case["n"], slots, {"harmful_qa": 1_960})  # type: ignore[arg-type]
        assert found["wildguardmix benign"] == case["per_slot"] and found["wildchat"] == 2 * case["per_slot"]
        assert found["harmful_qa"] == (1_960 if case["takes_all_of_first_source"] else 0)
    published = rows_of_pools(301_960, slots, {"harmful_qa": 1_960})  # type: ignore[arg-type]
    assert sum(published.values()) == 301_960


def test_a_pool_that_is_taken_whole_needs_no_draw() -> None:
    slots: Any = {"whole": "all", "drawn": 1}
    drawn = draw_mix(5, {"whole": 2, "drawn": 3}, {"whole": 2, "drawn": 9}, slots)
    alone = draw_mix(5, {"drawn": 3}, {"drawn": 9}, slots)
    places = [row.place for row in drawn if row.pool == "drawn"]
    assert sorted(places) == sorted(row.place for row in alone)
    assert sorted(row.place for row in drawn if row.pool == "whole") == [0, 1]


def test_the_digest_is_that_of_ids_and_texts_in_order() -> None:
    for case in VECTORS["chat_content_digest"]:
        assert prompts_digest((row["source_id"], row["user"]) for row in case["rows"]) == case["sha256"]


# ---- the files ----


def chat(*said: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]


def write_pools(folder: Path) -> None:
    english: dict[str, Any] = {"language": "English", "toxic": False}
    rows = [{"conversation": chat(f"Question {i}?", "Answer."), **english} for i in range(6)]
    rows[1] |= {"language": "German"}
    rows[2] |= {"toxic": True}
    rows[3] |= {"conversation": chat("x" * 41)}
    rows += [{"conversation": [{"role": "assistant", "content": "Hello."}], **english}]
    (folder / "chats").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "chats/a.parquet")
    (folder / "questions").mkdir()
    lines = [{"q": "How do I bake?", "kind": "food", "key": 7}, {"q": " ", "kind": "food", "key": 8}]
    lines += [{"q": f"Harm {i}?", "kind": "bad", "key": 9 + i} for i in range(3)]
    with gzip.open(folder / "questions/b.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def pools(folder: Path) -> dict[str, Any]:
    return {
        "whole": {
            "upstream": {"kind": "path", "root": str(folder / "questions")},
            "source": "questions",
            "prompt": "q",
            "id_columns": ["key"],
            "where": {"kind": "bad"},
            "harm_category": "harmful",
            "slots": "all",
        },
        "chats": {
            "upstream": {"kind": "path", "root": str(folder / "chats")},
            "chat": "conversation",
            "where": {"language": "English", "toxic": False},
            "meta": ["language"],
            "harm_category": "unknown",
            "slots": 2,
        },
        "food": {
            "upstream": {"kind": "path", "root": str(folder / "questions")},
            "prompt": "q",
            "where": {"kind": ["food", "drink"]},
            "harm_category": "benign",
            "slots": 1,
        },
    }


def mix(folder: Path, **changes: Any) -> PromptMix:
    given = {"rows": 12, "seed": 3, "max_characters": 40, "max_bad_share": 0.0, "pools": pools(folder)}
    return PromptMix.model_validate(given | changes)


def made(folder: Path, given: PromptMix, name: str = "prompts") -> Artifact:
    files = {pool: find_files(pool, one.upstream, folder / "raw") for pool, one in given.drawn_pools.items()}
    digests = {pool: [file.planned_digest() for file in some] for pool, some in files.items()}
    return ArtifactStore(folder / name).save(
        plan_artifact(write_prompts, mix=given, files=files, digests=digests, limits=LIMITS)
    )


def test_prompts_of_chats_and_columns_become_one_file(tmp_path: Path) -> None:
    write_pools(tmp_path)
    prompts = made(tmp_path, mix(tmp_path))
    table = pq.read_table(prompts.path(PROMPTS_FILE))
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "global_row_idx": "int64",
        "source": "string",
        "source_id": "string",
        "user": "large_string",
        "meta": "string",
        "harm_category": "string",
    }
    rows = sorted(table.drop_columns("global_row_idx").to_pylist(), key=lambda row: row["source_id"])
    assert [tuple(row.values()) for row in rows] == [
        ("questions", "10", "Harm 1?", "{}", "harmful"),
        ("questions", "11", "Harm 2?", "{}", "harmful"),
        ("questions", "9", "Harm 0?", "{}", "harmful"),
        *(("chats", f"chats-{i}", f"Question {i}?", '{"language":"English"}', "unknown") for i in (0, 4, 5)),
        ("food", "food-0", "How do I bake?", "{}", "benign"),
    ]
    assert table.column("global_row_idx").to_pylist() == list(range(7))


def test_every_row_of_a_pool_is_a_prompt_or_set_aside_with_a_reason(tmp_path: Path) -> None:
    write_pools(tmp_path)
    found = made(tmp_path, mix(tmp_path)).statistics
    assert found["n"] == 7 and found["seed"] == 3 and found["sources"] == {"chats": 3, "food": 1, "questions": 3}
    assert found["pools"]["chats"] == {
        "rows": 7,
        "set_aside": {"no_user_turn": 1, "other_values": 2, "too_long": 1},
        "fit": 3,
        "wanted": 6,
        "drawn": 3,
    }
    assert found["pools"]["food"]["set_aside"] == {"blank": 1, "other_values": 3}
    for pool in found["pools"].values():
        assert pool["rows"] == pool["fit"] + sum(pool["set_aside"].values())


def test_the_fingerprint_says_what_was_drawn(tmp_path: Path) -> None:
    write_pools(tmp_path)
    prompts = made(tmp_path, mix(tmp_path))
    rows = list(read_prompts(prompts.path(PROMPTS_FILE), 0, 7))
    content = "".join(f"{row.doc_id}\0{row.user}\n" for row in rows)
    told = json.loads(prompts.path("fingerprint.json").read_text())
    assert told == {
        "n": 7,
        "seed": 3,
        "sources": {"chats": 3, "food": 1, "questions": 3},
        "content_sha256": hashlib.sha256(content.encode()).hexdigest(),
    }
    again, other = made(tmp_path, mix(tmp_path), "again"), made(tmp_path, mix(tmp_path, seed=4), "other")
    assert again.root_digest == prompts.root_digest != other.root_digest


def test_a_range_of_prompts_is_read_without_those_that_are_done(tmp_path: Path) -> None:
    write_pools(tmp_path)
    path = made(tmp_path, mix(tmp_path)).path(PROMPTS_FILE)
    assert [row.number for row in read_prompts(path, 2, 6, done={3})] == [2, 4, 5]


def test_an_excluded_pool_gives_nothing_and_the_others_keep_their_share(tmp_path: Path) -> None:
    write_pools(tmp_path)
    found = made(tmp_path, mix(tmp_path, exclude=["chats"], rows=3)).statistics
    assert found["sources"] == {"food": 1} and "chats" not in found["pools"]


def test_rows_that_cannot_be_read_stop_the_mix_and_are_named(tmp_path: Path) -> None:
    write_pools(tmp_path)
    with gzip.open(tmp_path / "questions/b.jsonl.gz", "at") as file:
        file.write("{broken\n")
    with pytest.raises(ReflectionError, match=r"pools.whole: 1 of 6 rows cannot be read, first row 5 of b\.jsonl\.gz"):
        made(tmp_path, mix(tmp_path))
    allowed = made(tmp_path, mix(tmp_path, max_bad_share=0.5), "allowed").statistics
    assert sum(allowed["pools"]["whole"]["set_aside"].values()) == 3 and allowed["n"] == 7


def test_a_column_that_a_file_lacks_is_named(tmp_path: Path) -> None:
    write_pools(tmp_path)
    given = pools(tmp_path)
    given["food"] |= {"prompt": "question"}
    with pytest.raises(ReflectionError, match="it has no 'question'"):
        made(tmp_path, mix(tmp_path, pools=given))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exclude": ["chat"]}, "exclude names"),
        ({"pools": {"food": None}}, "none with slots"),
    ],
)
def test_a_mix_that_means_nothing_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        mix(tmp_path, **change)


def test_a_pool_has_a_text_or_a_chat(tmp_path: Path) -> None:
    given = pools(tmp_path)
    given["food"] |= {"chat": "conversation"}
    with pytest.raises(ValidationError, match="and not both"):
        mix(tmp_path, pools=given)
