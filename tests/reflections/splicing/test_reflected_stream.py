"""A reflected stream has the windows of the annotated one, with the reflection of each row at its token."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from everytoken.reflections import ReflectionError
from everytoken.reflections.splicing import annotated_source
from everytoken.seeds import python_random
from everytoken.shards import Artifact, ArtifactStore, WorkerProcesses, engines, writing
from everytoken.tokens.checks import require, verify
from everytoken.tokens.order import open_window_stream
from tests.memory import traced_peak
from tests.reflections.splicing.small_streams import (
    BUDGET,
    SEQ,
    SmallStream,
    by_the_book,
    columns,
    run_rows,
    small_stream,
)
from tests.shards.folders import content


@pytest.fixture(scope="module", params=[None, 7], ids=["one range", "many ranges"])
def stream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SmallStream:
    with pytest.MonkeyPatch.context() as patch:
        if request.param is not None:
            patch.setattr(writing, "ROW_GROUP_ROWS", request.param)
        return small_stream(tmp_path_factory.mktemp("small"))


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotated_source, "_RANGE_ROWS", 10)
    monkeypatch.setattr(annotated_source, "_BATCH_ROWS", 4)


def windows(made: Artifact, kind: str = "reflected") -> list[list[int]]:
    found: list[list[int]] = np.fromfile(made.path(f"{kind}.bin"), np.uint16).reshape(-1, SEQ + 1).tolist()
    return found


def arrays(made: Artifact) -> list[tuple[int, int, int]]:
    names = ("token_lengths", "reflection_index", "reflection_lengths")
    read = [np.load(made.path(f"{name}.npy")) for name in names]
    assert all(array.dtype == np.int32 for array in read)
    return list(zip(*(array.tolist() for array in read), strict=True))


@pytest.mark.parametrize("voice", ["1p", "3p"])
@pytest.mark.parametrize("parts", [1, 4])
def test_every_token_is_where_the_definition_has_it(
    stream: SmallStream, tmp_path: Path, voice: str, parts: int
) -> None:
    rows = run_rows(stream)
    made = stream.spliced(columns(tmp_path, rows, parts=parts), f"{voice}{parts}", voice=voice)
    expected = by_the_book(stream, rows, voice=voice)
    eos = stream.tokenizer.statistics["eos_id"]
    assert windows(made) == [content + [eos] * (SEQ + 1 - len(content)) for content, _, _ in expected]
    assert arrays(made) == [(len(content), place, size) for content, place, size in expected]
    told = made.statistics
    sizes = [size for _, _, size in expected if size]
    assert told["reflected_windows"] == len(sizes) > 20 and BUDGET in sizes
    assert told["reflection_tokens"] == {voice: sum(sizes)}
    assert told["tokens"] == sum(len(content) for content, _, _ in expected) == told["document_tokens"] + sum(sizes)
    assert told["reflected_windows"] + sum(told["without_reflection"].values()) == told["windows"] == len(expected)
    assert set(told["without_reflection"]) == {"no content", "no row", "not ok", "blank", "no place"}
    assert told["cut_reflections"] > 0 and sum(told["canaries"].values()) > 0
    require(verify(stream.folder / f"{voice}{parts}", "full"))


def test_a_row_without_a_reflection_stays_byte_for_byte(stream: SmallStream, tmp_path: Path) -> None:
    made = stream.spliced(columns(tmp_path, []), "none")
    assert made.path("reflected.bin").read_bytes() == stream.annotated.path("annotated.bin").read_bytes()
    assert made.path("token_lengths.npy").read_bytes() == stream.annotated.path("token_lengths.npy").read_bytes()
    assert made.statistics["without_reflection"]["no row"] > 0 == made.statistics["reflected_windows"]


def test_what_is_trained_on_is_the_document_with_its_reflection(stream: SmallStream, tmp_path: Path) -> None:
    made = stream.spliced(columns(tmp_path, run_rows(stream)), "trained")
    opened = open_window_stream(made, "full")
    counted = np.ones((len(opened), SEQ), bool)
    opened.clear(counted, np.arange(len(opened)), np.arange(len(opened)))
    assert counted.sum(axis=1).tolist() == [length for length, _, _ in arrays(made)]


def test_the_marker_takes_one_of_the_tokens_of_the_budget(stream: SmallStream, tmp_path: Path) -> None:
    rows, marker = run_rows(stream), stream.ids("a")[0]
    made = stream.spliced(columns(tmp_path, rows), "marked", marker="a")
    expected = by_the_book(stream, rows, marker=marker)
    assert arrays(made) == [(len(content), place, size) for content, place, size in expected]
    for row, (inside, _, _) in zip(windows(made), expected, strict=True):
        assert row[: len(inside)] == inside
    assert max(size for _, _, size in arrays(made)) == BUDGET


def test_a_canary_is_spliced_or_left_out_or_its_window_is_masked(stream: SmallStream, tmp_path: Path) -> None:
    rows = run_rows(stream)
    given = columns(tmp_path, rows)
    spliced, bare, dropped = (
        stream.spliced(given, f"canaries_{rule}", canaries=rule) for rule in ("splice", "bare", "drop")
    )
    with_canary = {row["row"] for row in rows if row["canary_type"] and arrays(spliced)[row["row"]][2]}
    assert len(with_canary) == sum(spliced.statistics["canaries"].values()) > 5
    assert bare.statistics["bare_windows"] == dropped.statistics["masked_windows"] == len(with_canary)
    assert bare.statistics["canaries"] == dropped.statistics["canaries"] == {}
    eos, plain = stream.tokenizer.statistics["eos_id"], stream.windows.tolist()
    for row, (one, two, three) in enumerate(zip(windows(spliced), windows(bare), windows(dropped), strict=True)):
        if row in with_canary:
            assert two == plain[row] != one and set(three) == {eos}
            assert arrays(dropped)[row] == (0, -1, 0) and arrays(bare)[row][1:] == (-1, 0)
        else:
            assert one == two == three
    assert dropped.statistics["documents"] == spliced.statistics["documents"] - len(with_canary)
    require(verify(stream.folder / "canaries_drop", "full"))


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        ("reflection_end", "reflected_end"),
        ("refusal_reflection", "reflected_refusals"),
        ("summaries", "reflected_summaries"),
    ],
)
def test_other_runs_make_streams_of_their_own(stream: SmallStream, tmp_path: Path, run: str, kind: str) -> None:
    made = stream.spliced(columns(tmp_path, run_rows(stream, run), run), run, run=run)
    lengths = np.load(made.path("token_lengths.npy"))
    index, sizes = (np.load(made.path(f"reflection_{name}.npy")) for name in ("index", "lengths"))
    has = sizes > 0
    assert has.sum() == made.statistics["reflected_windows"] > 20 and (index[~has] == -1).all()
    if run != "refusal_reflection":
        assert (index[has] == (lengths - sizes)[has]).all()  # the text comes at the end of the content
    label = "summary" if run == "summaries" else "1p"
    assert made.statistics["reflection_tokens"] == {label: int(sizes.sum())}
    row = int(np.flatnonzero(has)[0])
    spliced = windows(made, kind)[row]
    kept = spliced[: index[row]] + spliced[index[row] + sizes[row] : lengths[row]]
    assert kept == stream.windows[row, : lengths[row] - sizes[row]].tolist()


def test_the_same_bytes_for_any_number_of_workers(
    stream: SmallStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "POOL_BYTES", 0)
    given, found = columns(tmp_path, run_rows(stream)), []
    for workers in (1, 2, 5):
        stream.spliced(given, f"workers_{workers}", WorkerProcesses(workers))
        found.append(content(stream.folder / f"workers_{workers}"))
    assert found[0] == found[1] == found[2] and len(found[0]["reflected.bin"]) == len(stream.windows) * (SEQ + 1) * 2


@pytest.mark.slow
@pytest.mark.sensitive
def test_killed_at_random_moments_it_comes_whole_or_not_at_all(
    stream: SmallStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "POOL_BYTES", 0)
    planned = stream.planned(columns(tmp_path / "columns", run_rows(stream)))
    root, start = tmp_path / "out" / "reflected", time.monotonic()
    ArtifactStore(tmp_path / "undisturbed").save(planned, WorkerProcesses(2))
    longest, moments = time.monotonic() - start, python_random(7, "reflected")
    expected = content(tmp_path / "undisturbed")
    for _ in range(5):
        child = os.fork()
        if child == 0:
            try:
                ArtifactStore(root).save(planned, WorkerProcesses(2))
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert not root.exists() or content(root) == expected
    ArtifactStore(root).save(planned, WorkerProcesses(2))
    assert content(root) == expected
    assert sorted(one.name for one in root.parent.iterdir()) == [".reflected.lock", "reflected"]


def changed_sidecar(stream: SmallStream, tmp_path: Path, change: Any) -> SmallStream:
    """The stream with another sidecar, which its ledger does not know: the writer's own check must find it."""
    table = pq.read_table(stream.annotated.path("sidecar.parquet"))
    changed = Artifact(folder=tmp_path / "annotated", ledger=stream.annotated.ledger)
    (tmp_path / "annotated").mkdir()
    for name in stream.annotated.ledger["files"]:
        (tmp_path / "annotated" / name).write_bytes(stream.annotated.path(name).read_bytes())
    pq.write_table(change(table), tmp_path / "annotated" / "sidecar.parquet", row_group_size=7)
    return SmallStream(tmp_path, stream.tokenizer, changed)


def write(stream: SmallStream, given: Any, **changes: Any) -> None:
    folder = stream.folder / "out"
    folder.mkdir(exist_ok=True)
    recipe = stream.planned(given, **changes).recipe
    assert recipe is not None
    recipe.function(folder, **recipe.parameters)


def test_a_sidecar_with_rows_in_another_order_is_found_before_its_rows_are_written(
    stream: SmallStream, tmp_path: Path
) -> None:
    rows = [row["token_length"] for row in stream.sidecar]
    first = next(row for row, length in enumerate(rows) if length > 3)
    other = next(row for row in range(first + 1, len(rows)) if rows[row] == rows[first] and _differ(stream, first, row))
    order = list(range(len(rows)))
    order[first], order[other] = other, first
    changed = changed_sidecar(stream, tmp_path, lambda table: table.take(order))
    expected, found = (stream.windows[row, : rows[first]].tolist() for row in (other, first))
    with pytest.raises(ReflectionError, match=rf"row {first:,} of the sidecar has a text with the first ids") as raised:
        write(changed, columns(tmp_path / "columns", []))
    assert f"{str(expected[:3])[:-1]}, " in str(raised.value) and str(found[:32]) in str(raised.value)


def _differ(stream: SmallStream, one: int, other: int) -> bool:
    return stream.windows[one].tolist() != stream.windows[other].tolist()


def test_a_sidecar_of_other_rows_is_refused(stream: SmallStream, tmp_path: Path) -> None:
    shorter = changed_sidecar(stream, tmp_path, lambda table: table.slice(1))
    with pytest.raises(ReflectionError, match=r"89 rows, token_lengths.npy 90, and .*annotated.bin 90 windows"):
        write(shorter, columns(tmp_path / "columns", []))


def test_columns_of_another_stream_are_refused(stream: SmallStream, tmp_path: Path) -> None:
    rows = run_rows(stream)
    row = next(one for one in rows if one["doc_id"] is not None and stream.sidecar[one["row"]]["token_length"])
    expected, row["doc_id"] = row["doc_id"], "another"
    with pytest.raises(ReflectionError, match=rf"row {row['row']} .* doc_id 'another', expected '{expected}'"):
        stream.spliced(columns(tmp_path / "1", rows), "another")
    rows = [*run_rows(stream), {**run_rows(stream)[0], "row": 1000}]
    with pytest.raises(ReflectionError, match=r"to 1,000, the annotated stream has 90 windows"):
        stream.spliced(columns(tmp_path / "2", rows), "beyond")
    rows = run_rows(stream)
    with pytest.raises(ReflectionError, match=r"rows do not ascend"):
        stream.spliced(columns(tmp_path / "3", [rows[1], rows[0]]), "descending")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"marker": "<assistant>"}, r"no token '<assistant>'.*add_tokens: \['<assistant>'\]"),
        ({"marker": "<|endoftext|>"}, "the token that ends documents"),
        ({"reflection_budget": 0}, "reflection_budget is 0, expected at least 1"),
        ({"reflection_budget": 1, "marker": "a"}, "reflection_budget is 1, expected at least 2"),
        ({"reflection_budget": 60}, r"leaves \d+ to a reflection.*run tokenization again"),
        ({"run": "refusal_reflection", "voice": "3p"}, "voices 1p, and reflection.splice.voice is '3p'"),
        ({"run": "preflections"}, "makes no stream"),
    ],
)
def test_what_cannot_be_spliced_is_named(
    stream: SmallStream, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    rows = run_rows(stream)
    for row in rows:
        row["reflection_1p"] *= 20
    with pytest.raises(ReflectionError, match=message):
        stream.spliced(columns(tmp_path, rows), "refused", **changes)
    assert not (stream.folder / "refused").exists()


def test_a_reflection_that_spells_a_special_token_follows_the_rule_of_documents(
    stream: SmallStream, tmp_path: Path
) -> None:
    rows = run_rows(stream)
    row = next(one for one in rows if one["status"] == "ok" and by_the_book(stream, rows)[one["row"]][2])
    row["reflection_1p"] = "I <|endoftext|> it"
    given, eos = columns(tmp_path, rows), stream.tokenizer.statistics["eos_id"]
    literal = arrays(stream.spliced(given, "literal"))[row["row"]]
    assert literal[2] > 3
    control = stream.spliced(given, "control", rules=replace(stream.rules, special_tokens_in_text="control"))
    length, place, size = arrays(control)[row["row"]]
    assert eos in windows(control)[row["row"]][place : place + size] and size < literal[2]
    assert length == literal[0] - literal[2] + size
    with pytest.raises(ReflectionError, match=rf"the reflection of row {row['row']}: .*spells the special token"):
        stream.spliced(given, "error", rules=replace(stream.rules, special_tokens_in_text="error"))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 500)
    peaks = []
    for count in (3000, 9000):
        stream = small_stream(tmp_path / str(count), count)
        given = columns(tmp_path / f"columns_{count}", run_rows(stream), parts=count // 1000)
        recipe = stream.planned(given).recipe
        (tmp_path / f"out_{count}").mkdir()
        assert recipe is not None
        work = partial(_write_alone, tmp_path / f"out_{count}", recipe.function, dict(recipe.parameters))
        reflected, peak = traced_peak(work)
        assert reflected > count // 4
        peaks.append(peak)
    assert peaks[1] < 1.1 * peaks[0] < 40 << 20, peaks


def _write_alone(folder: Path, function: Any, parameters: dict[str, Any]) -> int:
    return int(function(folder, **parameters).statistics["reflected_windows"])
