from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everytoken.corpus.errors import BadRow, RowError, UpstreamError
from everytoken.corpus.reading import readers
from everytoken.corpus.reading.lines import Row
from everytoken.corpus.reading.readers import count_rows, format_of, iterate_rows
from everytoken.corpus.reading.rows import ReadingLimits
from everytoken.corpus.rendering.renderers import RENDERERS, NamedRenderer
from everytoken.corpus.upstreams.file import UpstreamFile
from tests.corpus.reading.read_rows import LIMITS, file_at, jsonl, kept, read, reading, set_aside, write, write_arrow
from tests.corpus.rendering.test_chats import renderer
from tests.shared_assets import shared_folder

SUFFIXES = ["jsonl", "jsonl.gz", "jsonl.zst", "json.gz", "json.zst", "json", "parquet", "arrow"]
CHAT = NamedRenderer(kind="chat")
# breaks for str.splitlines, not for JSON Lines
LINES = st.text(st.sampled_from("ab\u2028\u2029\x85\x0b\x0c\x1c\r\n é😀"), max_size=8)


def count(file: UpstreamFile, **changes: Any) -> int:
    return count_rows(file, reading(**changes), LIMITS)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(LINES, min_size=1, max_size=9), data=st.data())
def test_any_range_of_any_format_gives_the_rows_of_the_file(
    tmp_path: Path, suffix: str, texts: list[str], data: st.DataObject
) -> None:
    records = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
    file = write(tmp_path / f"x.{suffix}", records)
    first = data.draw(st.integers(0, len(texts)))
    rows = data.draw(st.integers(0, len(texts) - first))
    whole = read(file)
    assert [(row.number, row.record) for row in whole if isinstance(row, Row)] == list(enumerate(records))
    assert read(file, first, rows) == whole[first : first + rows]
    assert read(file, first) == whole[first:]
    assert count(file) == len(texts)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.sampled_from([b'{"text": "a"}', b"", b"7", b'{"text": "' + b"x" * 50 + b'"}', b"{"]), max_size=8
    ),
    data=st.data(),
)
def test_any_range_has_the_unreadable_rows_that_the_whole_has(tmp_path: Path, pieces: list[bytes], data: Any) -> None:
    limits = ReadingLimits(max_row_bytes=40, zstd_window_log_max=27)
    lines = file_at(tmp_path / "x.jsonl", b"".join(piece + b"\n" for piece in pieces))
    usable = [piece for piece in pieces if piece not in (b"", b"{")]
    array = file_at(tmp_path / "x.json", b"[" + b",\n".join(usable) + b"]")
    keyed = file_at(
        tmp_path / "k.json", b"{" + b",".join(b'"%d": %s' % (n % 3, p) for n, p in enumerate(usable)) + b"}"
    )
    for file, rows in [(lines, pieces), (array, usable), (keyed, usable)]:
        whole = read(file, limits=limits)
        assert [row.number for row in whole] == list(range(len(rows)))
        assert count_rows(file, reading(), limits) == len(rows)
        first = data.draw(st.integers(0, len(rows)))
        assert read(file, first, limits=limits) == whole[first:]
        assert read(file, first, len(rows) - first, limits) == whole[first:]
        assert all(row.offset is not None for row in whole)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_member_is_read_inside_its_wheel(tmp_path: Path, suffix: str) -> None:
    records = [{"id": str(number), "text": "t"} for number in range(5)]
    plain = write(tmp_path / f"x.{suffix}", records)
    with zipfile.ZipFile(tmp_path / "w.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(plain.location, f"data/x.{suffix}")
    member = UpstreamFile("s", f"data/x.{suffix}", tmp_path / "w.whl", f"data/x.{suffix}")
    assert read(member, 1, 3) == read(plain, 1, 3)
    assert len(read(member)) == count(member) == 5


@pytest.mark.parametrize(
    ("name", "form", "expected"),
    [
        ("a/b.jsonl", None, ("jsonl", None)),
        ("b.jsonl.zst", None, ("jsonl", "zst")),
        ("b.json", None, ("json", None)),
        ("b.json.gz", None, ("jsonl", "gz")),
        ("b.json.gz", "json", ("json", "gz")),
        ("b.json.zst", None, ("jsonl", "zst")),
        ("b.json", "jsonl", ("jsonl", None)),
        ("b.txt", None, ("txt", None)),
        ("b.txt.gz", None, ("txt", "gz")),
        ("b.parquet", None, ("parquet", None)),
        ("b.arrow", None, ("arrow", None)),
        ("b.txt", "jsonl", ("jsonl", None)),
        ("b.gz", "jsonl", ("jsonl", "gz")),
        ("part-0001", "parquet", ("parquet", None)),
    ],
)
def test_the_format_goes_by_the_name_unless_it_is_given(name: str, form: str | None, expected: tuple[str, str]) -> None:
    assert format_of(UpstreamFile("s", name, Path(name), None), reading(format=form)) == expected


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        (
            "b.text",
            {},
            r"file b.text: the format is not known by its name. Expected one of \.jsonl.*set the source's format",
        ),
        ("b.gz", {}, "not known by its name"),
        ("b.parquet.gz", {}, r"parquet is compressed inside and is not read from a \.gz file"),
        ("b.arrow.zst", {}, "arrow is compressed inside"),
        ("b.jsonl", {"records": "r"}, "records is 'r', but the file is read as jsonl.*Set records to null"),
        ("b.json.gz", {"records": "r"}, "set format to json"),
        ("b.parquet", {"records": "r"}, "records is 'r'"),
    ],
)
def test_a_format_that_cannot_be_is_refused_before_anything_is_read(name: str, changes: Any, reason: str) -> None:
    file = UpstreamFile("s", name, Path("missing"), None)
    with pytest.raises(UpstreamError, match=reason):
        format_of(file, reading(**changes))
    with pytest.raises(UpstreamError):
        next(iterate_rows(file, reading(**changes), LIMITS))
    with pytest.raises(UpstreamError):
        count(file, **changes)


def test_an_object_of_records_gives_keys_and_a_key_given_twice_loses_nothing_silently(tmp_path: Path) -> None:
    file = file_at(tmp_path / "x.json", b'{"other": {"p": [1]}, "problems": {"p": {"text": "a"}, "q": {"text": "b"}}}')
    rows = read(file, records="problems")
    assert rows == [Row(0, 40, "p", {"text": "a"}), Row(1, 60, "q", {"text": "b"})]
    with pytest.raises(RowError, match=r"no key 'answers' at the top, found the keys \['other', 'problems'\]"):
        read(file, records="answers")
    file = file_at(tmp_path / "y.json", b'{"p": {"text": "a"}, "\\u0070": {"text": "b"}, "q": {"text": "c"}}')
    assert [(row.number, row.key) for row in read(file) if isinstance(row, Row)] == [(0, "p"), (2, "q")]
    assert set_aside(read(file)) == [(1, 31, "duplicate_key")]
    assert count(file) == 3


def test_one_record_may_be_cut_into_several_rows_and_one_that_cannot_is_one_row(tmp_path: Path) -> None:
    good = "Lead.\n\nQ: one?\nA: 1\n\nQ: two?\nA: 2\n\n"
    data = {"maths": good, "bad": good + "Q: no answer", "number": 5, "last": good}
    file = file_at(tmp_path / "x.json", json.dumps(data).encode())
    cut = {"renderer": NamedRenderer(kind="flan_cot")}
    rows = read(file, **cut)
    assert [(row.number, row.key) for row in rows if isinstance(row, Row)] == [
        (0, "maths"), (1, "maths"), (4, "last"), (5, "last"),
    ]  # fmt: skip
    assert [(number, reason) for number, _, reason in set_aside(rows)] == [(2, "cannot_render"), (3, "cannot_render")]
    assert count(file, **cut) == 6
    for first in range(6):
        assert read(file, first, **cut) == rows[first:]


def test_the_last_line_needs_no_newline_and_members_of_gzip_follow_each_other(tmp_path: Path) -> None:
    data = gzip.compress(b'{"text": "a"}\n{"te') + gzip.compress(b'xt": "b"}')
    file = file_at(tmp_path / "x.jsonl.gz", data)
    assert [record["text"] for record in kept(read(file))] == ["a", "b"]
    assert count(file) == 2


def test_a_file_of_text_is_one_row_up_to_the_limit_of_a_row(tmp_path: Path) -> None:
    for size in (LIMITS.max_row_bytes, LIMITS.max_row_bytes + 1):
        file = file_at(tmp_path / f"{size}.txt", b"a" * size)
        assert count(file) == 1
        assert [len(record["text"]) for record in kept(read(file))] == ([size] if size == LIMITS.max_row_bytes else [])


def test_the_reader_of_the_last_rows_checks_the_end_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl.gz", [{"text": "a"}] * 4)
    data = bytearray(file.location.read_bytes())
    data[-8] ^= 1  # the checksum
    file.location.write_bytes(data)
    with pytest.raises(RowError, match="Incorrect checksum"):
        read(file, 2, 2)
    file = file_at(tmp_path / "x.json", b'[{"text": "a"}, {"text": "b"}')
    with pytest.raises(RowError, match="at byte 29: expected ',' or ']'"):
        read(file, 1, 1)


def test_a_file_that_lost_rows_since_the_plan_is_an_error(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        file = write(tmp_path / f"x.{suffix}", [{"text": "a"}] * 3)
        with pytest.raises(RowError, match="has 3 rows, expected at least 4"):
            read(file, 2, 2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RowError, match=r"file x.jsonl: it cannot be opened"):
        read(file_at(tmp_path / "x.jsonl"))


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RowError, match=r"file x.parquet: truncated or corrupt"):
        read(file_at(tmp_path / "x.parquet", b"PAR1 not really"))
    with pytest.raises(RowError, match=r"file y.parquet: truncated or corrupt"):
        count(file_at(tmp_path / "y.parquet", b""))


def test_a_flipped_bit_of_a_parquet_file_is_named_wherever_it_is(tmp_path: Path) -> None:
    file = file_at(tmp_path / "x.parquet")
    records = pa.table({"id": [str(number) for number in range(50)], "text": [f"{number} tea" for number in range(50)]})
    pq.write_table(records, file.location, write_page_checksum=True, compression="zstd")
    intact = file.location.read_bytes()
    assert len(read(file)) == 50
    refused = 0
    for position in range(0, len(intact), 3):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << (position % 8)
        file.location.write_bytes(damaged)
        try:
            read(file)
            count(file)
        except RowError as error:
            assert "source 's', file x.parquet" in str(error)
            refused += 1
    assert refused > len(intact) // 6
    plain = tmp_path / "plain.parquet"
    pq.write_table(records, plain, write_page_checksum=True, compression="none", use_dictionary=False)
    plain.write_bytes(plain.read_bytes().replace(b"7 tea", b"7 tee", 1))
    with pytest.raises(RowError, match=r"file plain.parquet: truncated or corrupt .*Fetch the file again"):
        read(file_at(plain))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "x.parquet")
    write_arrow(tmp_path / "x.arrow", table, stream=True)
    write_arrow(tmp_path / "y.arrow", table, stream=False)
    for name in ("x.parquet", "x.arrow", "y.arrow"):
        with pytest.raises(RowError, match=rf"file {name}: there is more than one column of the name 'text'"):
            read(file_at(tmp_path / name))
        with pytest.raises(RowError, match="'text'"):
            count(file_at(tmp_path / name))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_table_without_the_text_column_names_the_columns_there_are(tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path / f"x.{suffix}", [{"id": "1", "content": "a", "lang": "en"}])
    with pytest.raises(RowError, match=r"no column 'text', found the columns \['content', 'id', 'lang'\]"):
        read(file)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_table_gives_only_the_columns_that_are_used(tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path / f"x.{suffix}", [{"text": "a", "heavy": "b" * 100, "text.not": 1}])
    assert read(file) == [Row(0, None, None, {"text": "a"})]
    assert kept(read(file, renderer=CHAT)) == [{"text": "a", "heavy": "b" * 100, "text.not": 1}]


def strings_not_utf8() -> pa.Array:
    return pa.array([b"a", b"b", b"\xff", b"d", b"\xe2\x82"], pa.binary()).view(pa.string())


def table_file(folder: Path, name: str, table: pa.Table) -> UpstreamFile:
    path = folder / name
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        write_arrow(path, table, stream=name.startswith("stream"))
    return file_at(path)


TABLES = ["x.parquet", "stream.arrow", "file.arrow"]


@pytest.mark.parametrize("name", TABLES)
def test_a_string_that_is_not_utf8_is_set_aside_alone(tmp_path: Path, name: str) -> None:
    file = table_file(tmp_path, name, pa.table({"id": list("12345"), "text": strings_not_utf8()}))
    rows = read(file)
    assert [record["text"] for record in kept(rows)] == ["a", "b", "d"]
    assert set_aside(rows) == [(2, None, "not_utf8"), (4, None, "not_utf8")]
    assert read(file, 2) == rows[2:]


@pytest.mark.parametrize("name", TABLES)
def test_a_nested_string_that_is_not_utf8_is_set_aside_alone(tmp_path: Path, name: str) -> None:
    messages = pa.StructArray.from_arrays([pa.array(["user"] * 5), strings_not_utf8()], ["role", "content"])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3, 4, 5], pa.int32()), messages)
    rows = read(table_file(tmp_path, name, pa.table({"messages": lists})), renderer=CHAT)
    assert kept(rows) == [
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
        {"messages": [{"role": "user", "content": "d"}]},
    ]
    assert set_aside(rows) == [(1, None, "not_utf8"), (3, None, "not_utf8")]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_strings_of_any_arrow_type_are_strings(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    texts = ["a", None, "é" * 40, "a", ""]
    file = table_file(tmp_path, name, pa.table({"text": pa.array(texts, pa.string()).cast(kind), "id": pa.nulls(5)}))
    assert kept(read(file)) == [{"text": text, "id": None} for text in texts]
    limits = ReadingLimits(max_row_bytes=50, zstd_window_log_max=27)
    found = set_aside(read(file, limits=limits))
    assert found == [(2, None, "row_too_large")]


@pytest.mark.parametrize("name", TABLES)
def test_a_source_column_null_in_one_file_and_string_in_the_next_does_not_matter(tmp_path: Path, name: str) -> None:
    first = table_file(tmp_path, name, pa.table({"text": ["a"], "id": pa.nulls(1), "source": pa.nulls(1)}))
    assert kept(read(first)) == [{"text": "a", "id": None}]
    second = table_file(tmp_path, name, pa.table({"text": ["a"], "id": [7], "source": ["web"]}))
    assert kept(read(second)) == [{"text": "a", "id": 7}]


def test_times_that_python_has_not_set_their_row_aside(tmp_path: Path) -> None:
    times = pa.array([0, 2**62, 5], pa.timestamp("us"))
    file = table_file(tmp_path, "x.parquet", pa.table({"text": list("abc"), "time": times}))
    rows = read(file, renderer=CHAT)
    assert [record["text"] for record in kept(rows)] == ["a", "c"]
    assert set_aside(rows) == [(1, None, "cannot_render")]
    assert len(kept(read(file))) == 3  # nobody asks for the time


def test_parquet_row_groups_of_unequal_size_keep_their_rows(tmp_path: Path) -> None:
    records = [{"text": str(number)} for number in range(7)]  # row groups of 3, 3 and 1
    file = write(tmp_path / "x.parquet", records)
    assert [record["text"] for record in kept(read(file, 4))] == ["4", "5", "6"]
    assert [row.number for row in read(file, 4)] == [4, 5, 6]


@pytest.mark.parametrize("stream", [True, False])
def test_an_arrow_file_cut_at_any_byte_is_an_error(tmp_path: Path, stream: bool) -> None:
    table = pa.table({"text": [f"tea {number}" for number in range(7)]})
    write_arrow(tmp_path / "whole.arrow", table, stream=stream)
    whole = (tmp_path / "whole.arrow").read_bytes()
    assert len(read(file_at(tmp_path / "whole.arrow"))) == count(file_at(tmp_path / "whole.arrow")) == 7
    for size in range(0, len(whole), 7):
        file = file_at(tmp_path / "x.arrow", whole[:size])
        with pytest.raises(RowError, match=r"file x\.arrow"):
            read(file)
        with pytest.raises(RowError, match=r"file x\.arrow"):
            count(file)
    for tail in (whole if stream else b"xy", bytes(8), b"x"):
        with pytest.raises(RowError, match=r"file x\.arrow"):
            read(file_at(tmp_path / "x.arrow", whole + tail))


ARROW_COLUMNS = {
    "strings": pa.array(["tea é", None, "", "cake"] * 3),
    "views": pa.array(["tea", "a text of more than twelve bytes", None] * 4, pa.string_view()),
    "dictionary": pa.array(["tea", "cake", None] * 4).dictionary_encode(),
    "lists": pa.array([[{"role": "user", "content": "tea?"}], [], None, [{"role": "user", "content": None}] * 3]),
    "large lists": pa.array([[1, 2], [], None], pa.large_list(pa.int32())),
    "fixed lists": pa.array([[0.5, 1.5], None, [2.5, 3.5]], pa.list_(pa.float32(), 2)),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ARROW_COLUMNS)
def test_a_flipped_bit_of_an_arrow_file_never_reads_other_memory(tmp_path: Path, name: str, stream: bool) -> None:
    write_arrow(tmp_path / "whole.arrow", pa.table({"text": ARROW_COLUMNS[name]}), stream=stream)
    whole = (tmp_path / "whole.arrow").read_bytes()
    refused = 0
    for position in range(0, len(whole), 2):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position * 5 % 8)
        try:  # arrow has no checksums: a character, or a length, may be another one
            rows = read(file_at(tmp_path / "x.arrow", bytes(damaged)))
        except RowError:
            refused += 1
            continue
        assert len(repr(rows)) < 20 * len(whole)
    assert refused > len(whole) // 20


@pytest.mark.parametrize("name", ARROW_COLUMNS)
def test_a_flipped_bit_of_a_parquet_file_without_checksums_never_ends_the_process(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({"text": ARROW_COLUMNS[name]}), tmp_path / "whole.parquet", compression="none")
    whole = (tmp_path / "whole.parquet").read_bytes()
    refused = 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position * 3 % 8)
        try:
            read(file_at(tmp_path / "x.parquet", bytes(damaged)))
        except RowError:
            refused += 1
    assert refused > len(whole) // 20


def test_real_jsonl_files_read_row_by_row() -> None:
    folder = shared_folder("samples/dolma-fixtures")
    plain = read(file_at(folder / "multiple_files__cc_en_head-0091.jsonl"))
    assert plain == read(file_at(folder / "multiple_files__cc_en_head-0091.jsonl.gz"))
    assert len(plain) > 0
    assert all({"id", "text"} <= record.keys() for record in kept(plain))


def test_rows_go_through_pickling_between_processes_unchanged(tmp_path: Path) -> None:
    import pickle

    rows = read(file_at(tmp_path / "x.jsonl", jsonl({"text": "a"}) + b"\n"))
    assert pickle.loads(pickle.dumps(rows)) == rows


TREES = [
    {
        "message_tree_id": tree,
        "prompt": {
            "text": "why",
            "role": "prompter",
            "replies": [
                {"text": answer, "role": "assistant", "rank": rank, "replies": []}
                for rank, answer in enumerate(answers)
            ],
        },
    }
    for tree, answers in (("one", ["a", "b"]), ("two", ["c"]), ("three", ["d", "e", "f"]))
]


def messages_of_tree(name: str, answers: str) -> list[dict[str, Any]]:
    told = {"message_tree_id": name, "rank": None}
    root = {**told, "message_id": name, "parent_id": None, "role": "prompter", "text": name}
    keys = {**told, "parent_id": name, "role": "assistant"}
    return [root, *({**keys, "message_id": name + one, "text": one, "rank": at} for at, one in enumerate(answers))]


MESSAGES = [*messages_of_tree("one", "ab"), *messages_of_tree("two", ""), *messages_of_tree("three", "cde")]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_messages_that_follow_each_other_are_gathered_to_trees(tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path / f"x.{suffix}", MESSAGES)
    gathering = renderer("oasst_tree", kind="conversation_messages")
    rows = read(file, renderer=gathering)
    assert [(row.number, row.record["message_tree_id"]) for row in rows] == [(0, "one"), (1, "two"), (2, "three")]
    assert [message for row in rows for message in row.record["messages"]] == MESSAGES
    documents = [RENDERERS[gathering.kind](row.key, row.record, gathering) for row in rows]
    assert [document.id.text for document in documents if document.id] == ["one/onea", "two/two", "three/threec"]
    assert count(file, renderer=gathering) == 3
    for first in range(3):
        assert read(file, first, 1, renderer=gathering) == rows[first : first + 1]


def test_a_tree_whose_messages_are_apart_or_damaged_is_not_read_as_another(tmp_path: Path) -> None:
    gathering = renderer("oasst_tree", kind="conversation_messages")
    apart = [MESSAGES[0], MESSAGES[3], *MESSAGES[1:3]]
    lines = [json.dumps(message) for message in apart]
    lines.insert(1, "{")
    rows = read(file_at(tmp_path / "x.jsonl", ("\n".join(lines) + "\n").encode()), renderer=gathering)
    assert [row.number for row in rows] == [0, 1, 2, 3]
    assert [(number, reason) for number, _, reason in set_aside(rows)] == [(1, "not_json")]
    with pytest.raises(BadRow, match="'parent_id' is 'one', which is no message of the tree"):
        RENDERERS[gathering.kind](None, kept(rows)[2], gathering)


def test_a_tree_without_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_GATHERED", 2)
    rows = read(write(tmp_path / "x.jsonl", MESSAGES), renderer=renderer("oasst_tree", kind="conversation_messages"))
    assert [getattr(row, "reason", "read") for row in rows] == ["row_too_large", "read", "row_too_large"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_records_of_every_format_are_cut_into_rows(tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path / f"x.{suffix}", TREES)
    paths = renderer("oasst_tree", kind="conversation_paths")
    rows = read(file, renderer=paths)
    assert [(row.number, row.record["messages"][-1]["text"]) for row in rows] == list(enumerate("abcdef"))
    assert count(file, renderer=paths) == 6
    for first in range(6):
        assert read(file, first, 1, renderer=paths) == rows[first : first + 1]
