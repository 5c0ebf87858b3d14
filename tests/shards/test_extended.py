"""A part that extends another stores its own columns, links the file of the other, and reads as one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everytoken.shards import (
    DamagedStore,
    Engine,
    IncompleteStore,
    Inline,
    PartsFailed,
    Rows,
    Shards,
    ShardsError,
    Store,
    StoredPart,
    WorkerProcesses,
)
from everytoken.shards.parts import EXTENDED_ROW, extended_path
from tests.shards.folders import content
from tests.shards.functions import (
    count_up,
    draw,
    draw_as_before,
    given,
    leave,
    mark,
    mark_as_before,
    score,
    score_as_before,
)

Function = Callable[..., Rows]


def save(root: Path, planned: Shards, engine: Engine = Inline()) -> Shards:  # noqa: B008 - immutable
    Store(root).save(planned, engine)
    return Store(root).load()


def made(folder: Path, functions: tuple[Function, Function] = (score, draw), engine: Engine = Inline()) -> Shards:  # noqa: B008 - immutable
    """Make documents, their scores and a draw of these; return the draw."""
    documents = save(folder / "documents", given(3).map(count_up), engine)
    scored = save(folder / "scored", documents.map(functions[0]), engine)
    return save(folder / "drawn", scored.map(functions[1]), engine)


def table(shards: Shards) -> pa.Table:
    return pa.concat_tables([part.table() for part in shards])


@pytest.mark.parametrize("engine", [Inline(), WorkerProcesses(2)], ids=str)
def test_it_reads_as_copies_did_to_the_same_digests_and_has_no_text(tmp_path: Path, engine: Engine) -> None:
    made(tmp_path / "new", engine=engine)
    made(tmp_path / "old", (score_as_before, draw_as_before))
    for name, own in (("scored", ["score"]), ("drawn", [EXTENDED_ROW, "score", "drawn"])):
        new, old = (Store(tmp_path / which / name).load() for which in ("new", "old"))
        assert new.root_digest == old.root_digest and new.statistics == old.statistics
        assert table(new) == table(old) and new.part_rows == old.part_rows
        for part in new:
            assert isinstance(part, StoredPart)
            assert pq.read_schema(part.path).names == own
            documents = tmp_path / "new/documents" / part.path.name
            assert extended_path(part.path).samefile(documents), "no byte of a document is stored again"
            assert part.content() == (part.rows, part.digest)


def test_any_columns_from_any_row_are_those_of_copies(tmp_path: Path) -> None:
    drawn, copied = made(tmp_path / "new"), made(tmp_path / "old", (score_as_before, draw_as_before))
    for part, copy in zip(drawn, copied, strict=True):
        for columns in (None, ["text"], ["score"], ["drawn", "number"], ["text", "score", "number"]):
            for first in (0, 1, 30, part.rows - 1, part.rows):
                batches = [list(one.batches(columns, first)) for one in (part, copy)]
                rows = [[row for batch in found for row in batch.to_pylist()] for found in batches]
                assert rows[0] == rows[1], (columns, first)
                assert all(batch.schema.names == (columns or part.schema.names) for batch in batches[0])
        assert StoredPart.at(part.path).table() == copy.table()  # type: ignore[attr-defined]
        with pytest.raises(ShardsError, match=r"has no columns \['sorce'\], only \['number', 'text', 'list', 'score'"):
            list(part.batches(["sorce"]))


def test_what_the_version_before_made_counts_as_made(tmp_path: Path, ran: Callable[[], list[str]]) -> None:
    made(tmp_path, (score_as_before, draw_as_before))
    _, before = ran(), content(tmp_path)
    made(tmp_path)
    assert ran() == [] and content(tmp_path) == before
    (tmp_path / "scored/part_00001.parquet").unlink()
    drawn = made(tmp_path)
    assert ran() == ["part_00001"], "one part in the new form, others in the old one, and the draw is of both"
    assert table(drawn) == table(made(tmp_path / "new"))


def test_a_link_that_a_kill_left_next_to_a_copied_part_is_removed(tmp_path: Path, ran: Callable[[], list[str]]) -> None:
    made(tmp_path, (score_as_before, draw_as_before))
    _, right = ran(), content(tmp_path)
    os.link(tmp_path / "documents/part_00001.parquet", tmp_path / "scored/part_00001.extended.parquet")
    made(tmp_path)
    assert ran() == [] and content(tmp_path) == right


def test_documents_that_are_made_again_or_gone_leave_it_whole(tmp_path: Path) -> None:
    drawn = made(tmp_path)
    right = table(drawn)
    save(tmp_path / "documents", given(3).map(count_up, factor=2))
    assert table(Store(tmp_path / "drawn").load()) == right
    shutil.rmtree(tmp_path / "documents")
    shutil.rmtree(tmp_path / "scored")
    for part in Store(tmp_path / "drawn").load():
        part.verify()  # type: ignore[attr-defined]
    assert table(Store(tmp_path / "drawn").load()) == right


@pytest.mark.parametrize("damage", ["lost", "changed"])
def test_a_link_that_is_lost_or_changed_is_made_again_and_the_part_kept(
    tmp_path: Path, damage: str, ran: Callable[[], list[str]]
) -> None:
    made(tmp_path)
    _, right = ran(), content(tmp_path)
    for name in ("scored", "drawn"):
        link = tmp_path / name / "part_00001.extended.parquet"
        data = bytearray(link.read_bytes())
        data[len(data) // 2] ^= 1
        link.unlink()
        if damage == "changed":
            link.write_bytes(data)
            with pytest.raises(DamagedStore, match=r"part_00001\.extended\.parquet"):
                Store(tmp_path / name).load().parts[1].verify()  # type: ignore[attr-defined]
        else:
            with pytest.raises(IncompleteStore, match=r"lacks 1 of 3 parts.*first: part_00001.*Run the pipeline"):
                Store(tmp_path / name).load()
    made(tmp_path)
    assert ran() == [] and content(tmp_path) == right
    assert (tmp_path / "drawn/part_00001.extended.parquet").samefile(tmp_path / "documents/part_00001.parquet")


def test_a_changed_document_is_made_again_with_all_that_extends_it(
    tmp_path: Path, ran: Callable[[], list[str]]
) -> None:
    made(tmp_path)
    _, right = ran(), content(tmp_path)
    documents = tmp_path / "documents/part_00002.parquet"
    data = bytearray(documents.read_bytes())
    data[len(data) // 2] ^= 1
    documents.write_bytes(data)  # in place: all links have it
    made(tmp_path)
    assert ran() == ["part_00002"], "scores and draw are kept, and linked to the document again"
    assert content(tmp_path) == right


def test_where_there_are_no_links_it_has_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "linked")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    made(tmp_path / "copied")
    assert content(tmp_path / "copied") == content(tmp_path / "linked")


def test_a_part_that_stays_as_it_is_keeps_what_it_extends(tmp_path: Path) -> None:
    drawn = made(tmp_path)
    left = save(tmp_path / "left", drawn.map(leave))
    assert table(left) == table(drawn) and left.root_digest == drawn.root_digest
    save(tmp_path / "left", Store(tmp_path / "documents").load().map(leave))
    assert not list((tmp_path / "left").glob("*.extended.parquet")), "nor what its successor does not"


def test_of_a_part_that_is_only_planned_or_selects_the_columns_are_written(tmp_path: Path) -> None:
    planned = save(tmp_path / "planned", given(3).map(count_up).map(score))
    made(tmp_path / "made")
    assert table(planned) == table(Store(tmp_path / "made/scored").load())
    twice = save(tmp_path / "twice", Store(tmp_path / "made/drawn").load().map(mark))
    copied = save(tmp_path / "copied", Store(tmp_path / "made/drawn").load().map(mark_as_before))
    assert table(twice) == table(copied) and twice.root_digest == copied.root_digest
    for folder in ("planned", "twice"):
        assert not list((tmp_path / folder).glob("*.extended.parquet"))


@pytest.mark.parametrize("lost", [1, 40])
def test_a_row_without_its_own_columns_is_an_error(tmp_path: Path, lost: int) -> None:
    documents = save(tmp_path / "documents", given(1).map(count_up))
    with pytest.raises(PartsFailed, match=f"differ in length, by {lost} rows"):
        save(tmp_path / "scored", documents.map(score, lost=lost))
    assert not (tmp_path / "scored/ledger.json").exists()
