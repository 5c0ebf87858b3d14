from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everytoken.corpus.upstreams import UpstreamFile
from everytoken.reflections import ReflectionError, find_generation_run
from everytoken.reflections.merging import columns_schema
from everytoken.reflections.published import (
    MatchedStatistics,
    match_published_reflections,
    published_columns,
    released_reflections,
    require_no_fault,
    row_ranges,
)
from everytoken.shards import Artifact, ArtifactStore, Inline, Shards, Store, plan_artifact
from everytoken.tokens import open_tokenizer
from everytoken.tokens.tokenizer import EncodingRules
from tests.reflections.annotated_streams import annotated_stream, rules_of
from tests.reflections.environment_parameters import parameters
from tests.tokens.corpora import run, stored

WORDS = ("the", "harbour", "boats", "tide", "salt", "naïve café", "日本", "island", "post", "office", "opens", "🙂")
Row = dict[str, Any]


def texts_and_ids(n: int, seed: int) -> tuple[list[str], list[str | None]]:
    """Texts of which some repeat, with ids of which some are null, some repeat and some have two texts."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(n // 2)]
    chosen = [draw.randrange(len(texts)) for _ in range(n)]
    return [texts[i] for i in chosen], [None if i % 7 == 3 else f"id-{i % (n // 3)}" for i in chosen]


def windows_of(stream: Artifact) -> list[Row]:
    return pq.read_table(stream.path("sidecar.parquet")).to_pylist()


def kept(rules: EncodingRules, row: Row) -> str:
    library = open_tokenizer(rules.place, rules.eos_token).tokenizer
    library.post_processor = None
    offsets = library.encode(row["text"], add_special_tokens=False).offsets
    return row["text"][: offsets[row["token_length"] - 1][1]] if row["token_length"] else ""


def published_row(rules: EncodingRules, row: Row, number: int, **changed: Any) -> Row:
    return {
        "extra": number,
        "canary_type": ["", None, "Q1"][number % 3],
        "reflection_3p": f"It {number}.",
        "doc_id": row["doc_id"],
        "text": kept(rules, row),
        "reflection_token_index": number % (row["token_length"] + 1),
        "reflection_1p": f"I {number}.",
        **changed,
    }


def written(folder: Path, tables: Sequence[Sequence[Row]]) -> list[UpstreamFile]:
    folder.mkdir(exist_ok=True)
    files = []
    for number, rows in enumerate(tables):
        path = folder / f"train-{number:05d}.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=17)
        files.append(UpstreamFile("published", path.name, path, None))
    return files


def match(folder: Path, stream: Artifact, rules: EncodingRules, files: list[UpstreamFile], **changed: Any) -> Artifact:
    given = {"rows": (0, stream.statistics["windows"]), "memory": 1 << 20, "run": "reflections", **changed}
    digests = [file.planned_digest() for file in files]
    planned = plan_artifact(
        match_published_reflections, stream=stream, files=files, digests=digests, rules=rules, **given
    )
    return ArtifactStore(folder).save(planned)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, EncodingRules]:
    folder = tmp_path_factory.mktemp("published")
    texts, ids = texts_and_ids(300, 1)
    rules = rules_of(folder, texts)
    return annotated_stream(folder / "annotated", rules, texts, ids), rules


def test_every_window_gets_the_row_that_was_published_for_it(
    made: tuple[Artifact, EncodingRules], tmp_path: Path
) -> None:
    stream, rules = made
    rows = windows_of(stream)
    rows_published = [published_row(rules, row, number) for number, row in enumerate(rows)]
    files = written(tmp_path / "files", [rows_published[:100], rows_published[100:101], rows_published[101:]])
    digests = set()
    for memory in (1 << 12, 1 << 24):
        matched = match(tmp_path / f"matched{memory}", stream, rules, files, memory=memory)
        digests.add(matched.root_digest)
    found = pq.read_table(matched.path("reflections.parquet")).to_pylist()
    assert [(one["row"], one["reflection_1p"], one["doc_id"]) for one in found] == [
        (number, f"I {number}.", row["doc_id"]) for number, row in enumerate(rows)
    ]
    assert Counter(one["canary_type"] for one in found) == {None: 200, "Q1": 100}
    said = matched.statistics_as(MatchedStatistics)
    assert (said["matched"], said["faults"], said["not_published"]) == (300, {}, 0)
    assert said["null_ids"] == sum(row["doc_id"] is None for row in rows)
    assert len(digests) == 1
    require_no_fault(matched, ())


def test_rows_in_another_order_go_to_the_windows_of_their_documents(
    made: tuple[Artifact, EncodingRules], tmp_path: Path
) -> None:
    stream, rules = made
    rows = windows_of(stream)
    shuffled = [published_row(rules, row, number) for number, row in enumerate(rows)]
    random.Random(5).shuffle(shuffled)
    matched = match(tmp_path / "matched", stream, rules, written(tmp_path / "files", [shuffled]))
    expected: dict[tuple[str | None, str], list[str]] = defaultdict(list)
    for row in shuffled:
        expected[row["doc_id"], row["text"]].append(row["reflection_1p"])
    found: dict[tuple[str | None, str], list[str]] = defaultdict(list)
    for row in pq.read_table(matched.path("reflections.parquet")).to_pylist():
        found[row["doc_id"], kept(rules, rows[row["row"]])].append(row["reflection_1p"])
    assert found == expected


def test_what_has_no_partner_is_counted_listed_and_fatal_unless_allowed(
    made: tuple[Artifact, EncodingRules], tmp_path: Path
) -> None:
    stream, rules = made
    rows = windows_of(stream)
    keys = Counter((row["doc_id"], kept(rules, row)) for row in rows)
    ids = Counter(row["doc_id"] for row in rows)
    alone = [n for n, row in enumerate(rows) if row["doc_id"] and ids[row["doc_id"]] == 1]
    repeated = next(n for n, row in enumerate(rows) if keys[row["doc_id"], kept(rules, row)] > 1)
    made_rows = {number: published_row(rules, row, number) for number, row in enumerate(rows)}
    changed, missing, bad = alone[:3]
    made_rows[changed]["text"] += " changed"
    made_rows[bad]["reflection_token_index"] = rows[bad]["token_length"] + 1
    del made_rows[missing], made_rows[repeated]
    extra = {**made_rows[bad], "doc_id": "nobody has this id"}
    files = written(tmp_path / "files", [[*made_rows.values(), extra]])
    matched = match(tmp_path / "matched", stream, rules, files)
    said = matched.statistics_as(MatchedStatistics)
    assert said["faults"] == {"changed": 2, "ambiguous": 1, "gone": 1, "bad_index": 1}
    assert said["not_published"] == 1
    faults = pq.read_table(matched.path("faults.parquet")).to_pylist()
    by_kind = defaultdict(list)
    for fault in faults:
        by_kind[fault["fault"]].append(fault)
    of_window, of_file = by_kind["changed"]
    assert (of_window["window"], of_window["doc_id"]) == (changed, rows[changed]["doc_id"])
    assert (of_file["file"], of_file["doc_id"]) == ("train-00000.parquet", rows[changed]["doc_id"])
    assert list(made_rows)[of_file["file_row"]] == changed
    assert by_kind["gone"][0]["doc_id"] == "nobody has this id"
    assert by_kind["gone"][0]["file_row"] == len(made_rows)
    assert list(made_rows)[by_kind["bad_index"][0]["file_row"]] == bad
    assert by_kind["ambiguous"][0]["doc_id"] == rows[repeated]["doc_id"]
    with pytest.raises(
        ReflectionError, match=r"2 changed, 1 ambiguous, 1 gone, 1 bad_index.*reflection\.published\.allow"
    ):
        require_no_fault(matched, ())
    require_no_fault(matched, ["changed", "ambiguous", "gone", "bad_index"])


def test_the_row_of_a_document_that_was_taken_down_may_be_gone(tmp_path: Path) -> None:
    texts = ["the tide", "", "the island"]  # a take-down leaves neither text nor id
    rules = rules_of(tmp_path, [*texts, "the boats", *WORDS])
    stream = annotated_stream(tmp_path / "annotated", rules, texts, ["a", None, "c"])
    rows = windows_of(stream)
    published = [published_row(rules, row, number) for number, row in enumerate(rows) if row["token_length"]]
    gone = {**published[0], "doc_id": "b", "text": "the boats"}
    matched = match(tmp_path / "matched", stream, rules, written(tmp_path / "files", [[*published, gone]]))
    said = matched.statistics_as(MatchedStatistics)
    assert (said["matched"], said["faults"], said["taken_down"]) == (2, {"gone": 1}, 1)
    require_no_fault(matched, ())
    store = Store(tmp_path / "columns")
    store.save(row_ranges((0, 3), 3).map(published_columns, matched=matched, stream=stream), Inline())
    columns = [row for part in store.load() for batch in part.batches() for row in batch.to_pylist()]
    assert [row["status"] for row in columns] == ["ok" if row["token_length"] else "excluded" for row in rows]
    files = written(tmp_path / "more", [[*published, gone, {**gone, "doc_id": "d"}]])
    with pytest.raises(ReflectionError, match="2 gone"):
        require_no_fault(match(tmp_path / "more_matched", stream, rules, files), ())


def test_only_windows_of_the_range_are_looked_at(made: tuple[Artifact, EncodingRules], tmp_path: Path) -> None:
    stream, rules = made
    rows = windows_of(stream)
    in_range = [published_row(rules, rows[number], number) for number in range(40, 90)]
    matched = match(tmp_path / "matched", stream, rules, written(tmp_path / "files", [in_range]), rows=(40, 90))
    assert matched.statistics_as(MatchedStatistics)["faults"] == {}
    store = Store(tmp_path / "columns")
    store.save(row_ranges((40, 90), 20).map(published_columns, matched=matched, stream=stream), Inline())
    columns = store.load()
    assert [part.rows for part in columns] == [20, 20, 10]
    found = [row for part in columns for batch in part.batches() for row in batch.to_pylist()]
    assert [row["row"] for row in found] == list(range(40, 90))
    assert found[3]["reflection_3p"] == "It 43." and found[3]["status"] == "ok" and found[3]["charter_reflection"] == ""


def test_a_text_that_is_not_cut_is_cut_to_its_token_length(
    made: tuple[Artifact, EncodingRules], tmp_path: Path
) -> None:
    stream, rules = made
    rows = windows_of(stream)
    whole = [
        published_row(rules, row, number, text=row["text"], token_length=row["token_length"])
        for number, row in enumerate(rows)
    ]
    said = match(tmp_path / "matched", stream, rules, written(tmp_path / "files", [whole])).statistics
    assert (said["matched"], said["faults"]) == (300, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"doc_id": None}, "has no column doc_id"),
        ({"reflection_token_index": "7"}, "reflection_token_index of the type string, expected an integer"),
    ],
)
def test_a_file_without_a_column_is_refused(
    made: tuple[Artifact, EncodingRules], tmp_path: Path, change: Row, message: str
) -> None:
    stream, rules = made
    row = published_row(rules, windows_of(stream)[0], 0)
    ((name, value),) = change.items()
    row = {key: other for key, other in row.items() if key != name} if value is None else {**row, **change}
    with pytest.raises(ReflectionError, match=message):
        match(tmp_path / "matched", stream, rules, written(tmp_path / "files", [[row]]))


_MILLION = """
import sys
from pathlib import Path
from tests.reflections.million_rows import main
main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
"""


@pytest.mark.slow
def test_a_million_rows_take_less_than_500_megabytes(made: tuple[Artifact, EncodingRules], tmp_path: Path) -> None:
    tokenizer = made[1].place
    assert isinstance(tokenizer, Artifact) and tokenizer.folder is not None
    arguments = [str(tmp_path), str(tokenizer.folder), "1000000"]
    done = subprocess.run(
        [sys.executable, "-c", _MILLION, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 500e6


def columns_of(rows: Sequence[Row], folder: Path) -> Shards:
    reflections = find_generation_run("reflections")[0]
    defaults = {"status": "ok", "canary_in_1p": None, "canary_in_3p": None, **reflections.defaults()}
    table = pa.Table.from_pylist([{**defaults, **row} for row in rows], schema=columns_schema(reflections))
    return stored(folder, [table], batch_rows=7)


def test_a_release_has_reflections_of_texts_that_it_may_hold_and_no_quotation(
    made: tuple[Artifact, EncodingRules], tmp_path: Path
) -> None:
    stream, rules = made
    rows = windows_of(stream)
    long = [number for number, row in enumerate(rows) if len(row["text"]) > 60 and row["source"] == "web"]
    replies = {number: f"I {number}." for number in range(0, 300, 2)}
    replies[long[0]] = f"It says: {rows[long[0]]['text'][3:53]}"  # 50 characters
    replies[long[1]] = f"It says: {rows[long[1]]['text'][3:52]}."  # 49
    columns = columns_of(
        [
            {
                "row": n,
                "doc_id": row["doc_id"],
                "reflection_1p": replies.get(n, ""),
                "status": "ok" if n in replies else "empty",
            }
            for n, row in enumerate(rows)
        ],
        tmp_path / "columns",
    )
    given = {"stream": stream, "run": "reflections", "rules": rules, "sources": ["web"]}
    found, counts = run(released_reflections(columns.parts[0], **given, quotes="withhold"))
    expected = [n for n in sorted(replies) if rows[n]["source"] == "web" and n != long[0]]
    assert found["text"].to_pylist() == [kept(rules, rows[n]) for n in expected]
    assert found["reflection_1p"].to_pylist() == [replies[n] for n in expected]
    assert counts == {
        "released": len(expected),
        "no_text": sum(rows[n]["source"] != "web" for n in replies),
        "quotes": 1,
        "excluded": 0,
    }
    found, counts = run(released_reflections(columns.parts[0], **given, quotes="allow"))
    assert counts["released"] == len(expected) + 1


@pytest.mark.parametrize("change", [{"doc_id": "another"}, {"row": 299_999}])
def test_columns_of_another_stream_are_not_released(
    made: tuple[Artifact, EncodingRules], tmp_path: Path, change: Row
) -> None:
    stream, rules = made
    rows = [{"row": n, "doc_id": row["doc_id"], "reflection_1p": "I."} for n, row in enumerate(windows_of(stream))]
    rows[-1] |= change
    columns = columns_of(rows, tmp_path / "columns")
    given = {"stream": stream, "run": "reflections", "rules": rules, "sources": ["web"], "quotes": "allow"}
    with pytest.raises(ReflectionError, match="merge the results of this stream again"):
        run(released_reflections(columns.parts[0], **given))


def test_what_a_release_has_is_matched_again(made: tuple[Artifact, EncodingRules], tmp_path: Path) -> None:
    stream, rules = made
    rows = windows_of(stream)
    columns = columns_of(
        [
            {"row": n, "doc_id": row["doc_id"], "reflection_1p": f"I {n}.", "reflection_token_index": 0}
            for n, row in enumerate(rows)
        ],
        tmp_path / "columns",
    )
    found, _ = run(
        released_reflections(
            columns.parts[0], stream=stream, run="reflections", rules=rules, sources=["web", "code"], quotes="withhold"
        )
    )
    (tmp_path / "files").mkdir()
    pq.write_table(found, tmp_path / "files" / "train.parquet")
    files = [UpstreamFile("published", "train.parquet", tmp_path / "files" / "train.parquet", None)]
    matched = match(tmp_path / "matched", stream, rules, files)
    assert matched.statistics_as(MatchedStatistics)["faults"] == {}
    again = pq.read_table(matched.path("reflections.parquet"))
    assert again["reflection_1p"].to_pylist() == [f"I {n}." for n in range(300)]


def test_a_stream_of_published_reflections_names_the_model_that_wrote_them() -> None:
    published = {"upstream": {"kind": "path", "root": "/texts"}, "generator": "qwen", "memory": 1}
    plain, given = parameters(), parameters(published=published)
    assert given.generator_of("reflections") == "qwen"
    assert given.generator_of("summaries") == plain.generator_of("reflections") == plain.generator.alias
