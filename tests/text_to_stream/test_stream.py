"""Text files to a stream: the bytes, what is made again and what is not, and what stops a run."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from everytoken.shards import DamagedStore, IncompleteStore, ShardsError, value_digest
from everytoken.shards.artifacts import ArtifactStore
from everytoken.shards.engines import WorkerProcesses
from everytoken.text_to_stream import inputs
from everytoken.text_to_stream import join as join_module
from everytoken.text_to_stream.errors import PreprocessingError
from everytoken.text_to_stream.join import write_index
from everytoken.text_to_stream.parts import LENGTHS, MadePart, SummedFile
from everytoken.tokens.engines import registry
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.streams.megatron import open_indexed
from tests.text_to_stream.files import (
    EOS,
    documents_in,
    expected,
    make,
    parameters,
    stream,
    stream_bytes,
    texts,
    write,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Three files in three formats; their names are not in the order of their content."""
    names = ("b.jsonl", "a/10.jsonl.gz", "a/9.jsonl.zst")
    return [write(tmp_path / "in" / name, texts(150, seed)) for seed, name in enumerate(names)]


IN_ORDER = [*texts(150, 1), *texts(150, 2), *texts(150, 0)]  # a/10, a/9, b


def test_content_and_eos_of_each_line_in_the_order_of_names(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    done = make(three, tmp_path / "out", parameters(tokenizer))
    assert documents_in(tmp_path / "out") == expected(IN_ORDER, tokenizer)
    assert stream(tmp_path / "out").tokens.dtype == np.uint16
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("documents.bin", "documents.idx", "ledger.json"),
    ]
    statistics = done.stream.statistics
    assert list(statistics["by_file"]) == ["a/10.jsonl.gz", "a/9.jsonl.zst", "b.jsonl"]
    assert statistics["total"]["documents"] == 450
    assert statistics["total"]["tokens"] == sum(len(ids) - 1 for ids in expected(IN_ORDER, tokenizer))
    assert statistics["total"]["utf8_bytes"] == sum(len(text.encode()) for text in IN_ORDER)


def test_megatron_reads_it(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    make(three, tmp_path / "out", parameters(tokenizer))
    dataset = indexed.IndexedDataset(str(tmp_path / "out" / "documents"))
    assert [dataset[i].tolist() for i in range(len(dataset))] == expected(IN_ORDER, tokenizer)
    assert dataset.document_indices.tolist() == list(range(451))


def test_datatrove_writes_the_same_bytes(tmp_path: Path, tokenizer: Path) -> None:
    megatron = pytest.importorskip("datatrove.pipeline.tokens.megatron_tokenizer")
    from datatrove.data import Document

    documents = texts(300)
    make([write(tmp_path / "in/a.jsonl", documents)], tmp_path / "out", parameters(tokenizer))
    step = megatron.MegatronDocumentTokenizer(str(tmp_path / "other"), "x", str(tokenizer), EOS)
    step.write_tokens((Document(text=text, id=str(i)) for i, text in enumerate(documents)), "documents")
    assert stream_bytes(tmp_path / "out") == stream_bytes(tmp_path / "other")


def test_large_vocabularies_are_int32(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    library = Tokenizer.from_file(str(tokenizer))
    library.add_tokens([f"<extra {i}>" for i in range(65_537 - library.get_vocab_size())])
    library.save(str(tokenizer))
    documents = ["a <extra 65000> b"]
    make([write(tmp_path / "in/a.jsonl", documents)], tmp_path / "out", parameters(tokenizer))
    assert stream(tmp_path / "out").tokens.dtype == np.int32
    assert documents_in(tmp_path / "out") == expected(documents, tokenizer)
    assert max(map(max, documents_in(tmp_path / "out"))) > 65_000


def test_the_same_bytes_for_any_workers_and_ranges(
    tmp_path: Path, tokenizer: Path, three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = []
    for name, step, workers in (("inline", 1 << 26, None), ("ranges", 777, None), ("two", 1 << 12, WorkerProcesses(2))):
        monkeypatch.setattr(inputs, "RANGE_BYTES", step)
        ledgers.append(make(reversed(three), tmp_path / name, parameters(tokenizer), workers).stream)  # type: ignore[arg-type]
    assert len({ledger.root_digest for ledger in ledgers}) == 1
    assert stream_bytes(tmp_path / "inline") == stream_bytes(tmp_path / "ranges") == stream_bytes(tmp_path / "two")


def test_the_same_bytes_for_every_engine(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    reference = make(three, tmp_path / "reference", parameters(tokenizer)).stream
    assert reference.measured["engine"] == "tokenizers"
    certificates = tmp_path / "certificates"
    for name in ("fastest", *registry.installed_engines()):
        made = make(three, tmp_path / name, parameters(tokenizer, engine=name, certificate=certificates)).stream
        assert made.root_digest == reference.root_digest
        assert name in ("fastest", made.measured["engine"])
        if made.measured["engine"] != "tokenizers":
            assert 150 < made.measured["rechecked_documents"] < 300, "half of 450"


def test_an_engine_that_is_not_there(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    with pytest.raises(PreprocessingError, match=r"engine 'fast' is not installed; there is fastest.*--engine"):
        make(three, tmp_path / "out", parameters(tokenizer, engine="fast"))


def _stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_second_run_does_nothing(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    first = make(three, tmp_path / "out", parameters(tokenizer))
    before = _stamps(tmp_path / "out")
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "in", moved)
    again = make([moved / path.relative_to(tmp_path / "in") for path in three], tmp_path / "out", parameters(tokenizer))
    assert (first.made, again.made) == (True, False)
    assert again.stream.root_digest == first.stream.root_digest
    assert _stamps(tmp_path / "out") == before
    assert not (tmp_path / "out.parts").exists()


def _edit(three: Sequence[Path]) -> None:
    write(three[0], [*texts(149), "another"])


def _rename(three: Sequence[Path]) -> None:
    three[0].rename(three[0].with_name("c.jsonl"))


CHANGES: dict[str, tuple[Callable[[Sequence[Path]], None] | None, dict[str, Any]]] = {
    "content": (_edit, {}),
    "name": (_rename, {}),
    "cap": (None, {"max_tokens": 5}),
    "policy": (None, {"special_tokens_in_text": "control"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_made_again(tmp_path: Path, tokenizer: Path, three: list[Path], change: str) -> None:
    make(three, tmp_path / "out", parameters(tokenizer))
    edit, changed = CHANGES[change]
    if edit is not None:
        edit(three)
    files = sorted(path for path in (tmp_path / "in").rglob("*") if path.is_file())
    assert make(files, tmp_path / "out", parameters(tokenizer, **changed)).made
    fresh = make(files, tmp_path / "fresh", parameters(tokenizer, **changed))
    assert stream_bytes(tmp_path / "out") == stream_bytes(tmp_path / "fresh")
    assert ArtifactStore(tmp_path / "out").load().root_digest == fresh.stream.root_digest


def test_streams_of_earlier_versions_count_as_made(tmp_path: Path, tokenizer: Path) -> None:
    """What is recorded of a part of JSON Lines stays what 0.1.0 recorded, and so does its fingerprint."""
    path = write(tmp_path / "in/a.jsonl.zst", texts(20))
    made = make([path], tmp_path / "out", parameters(tokenizer)).stream
    sha256, tokenizer_sha256 = (hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, tokenizer))
    recorded = {
        "encoding": {
            "eos_token": EOS,
            "max_tokens": None,
            "special_tokens_in_text": "literal",
            "tokenizer_sha256": tokenizer_sha256,
        },
        "proof": None,
        "source": {"sha256": sha256, "begin": 0, "end": path.stat().st_size, "text_field": "text"},
    }
    part = {"function": "everytoken.preprocessing.encode_file.encode_file", "version": 1, "parameters": recorded}
    files = [["a.jsonl.zst", [value_digest([value_digest(part), []])]]]
    stream = {"function": "everytoken.preprocessing.join.join_files", "version": 1, "parameters": {"files": files}}
    assert made.ledger["fingerprint"] == value_digest([value_digest(stream), []])


def test_a_damaged_part_is_not_joined(
    tmp_path: Path, tokenizer: Path, three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = join_module._tokenizer

    def damaged(parts: Sequence[MadePart]) -> Any:
        with parts[1].path(".lengths").open("r+b") as file:
            file.write(b"\xff")
        return found(parts)

    monkeypatch.setattr("everytoken.text_to_stream.join._tokenizer", damaged)
    with pytest.raises(DamagedStore, match=r"lengths is not the file that was written"):
        make(three, tmp_path / "out", parameters(tokenizer))
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    make(three, tmp_path / "out", parameters(tokenizer))
    assert documents_in(tmp_path / "out") == expected(IN_ORDER, tokenizer)


def test_a_damaged_stream_is_made_again(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    make(three, tmp_path / "out", parameters(tokenizer))
    good = stream_bytes(tmp_path / "out")
    with (tmp_path / "out/documents.bin").open("r+b") as file:
        file.write(b"\xff\xff")
    assert make(three, tmp_path / "out", parameters(tokenizer)).made
    assert stream_bytes(tmp_path / "out") == good


def test_a_run_that_was_killed_at_its_end_damages_no_stream(
    tmp_path: Path, tokenizer: Path, three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its joined tokens and those of the stream are one file then."""

    def killed(run: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("everytoken.text_to_stream.stream._Run.remove_parts", killed)
        with pytest.raises(KeyboardInterrupt):
            make(three, tmp_path / "out", parameters(tokenizer))
    good = stream_bytes(tmp_path / "out")
    three[0].write_bytes(b"{")
    with pytest.raises(PreprocessingError, match="1 of 3 parts"):
        make(three, tmp_path / "out", parameters(tokenizer))
    assert stream_bytes(tmp_path / "out") == good


def test_bad_files_are_named_and_the_others_are_kept(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    good = three[2].read_bytes()
    three[2].write_bytes(good[:-9])
    three[0].write_bytes(three[0].read_bytes() + b'{"text": 7}\n')
    with pytest.raises(PreprocessingError) as caught:
        make(three, tmp_path / "out", parameters(tokenizer))
    message = str(caught.value)
    assert "2 of 3 parts cannot be encoded, the other 1 are done and kept" in message
    assert f"{three[0]}, line 151: the field 'text' is a number" in message
    assert f"{three[2]}: truncated or corrupt" in message
    assert not (tmp_path / "out").exists()

    three[2].write_bytes(good)
    write(three[0], texts(150))
    make(three, tmp_path / "out", parameters(tokenizer))
    assert documents_in(tmp_path / "out") == expected(IN_ORDER, tokenizer)


class Watching:
    """Runs tasks in this process, and notes which there were."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def run(self, function: Any, tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        for task in tasks:
            self.made.append(task.number)
            yield task, function(task)


def test_finished_parts_are_not_made_twice(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    bad = write(tmp_path / "in/z.jsonl", ["a"])
    bad.write_bytes(b"{")
    with pytest.raises(PreprocessingError, match="1 of 4 parts"):
        make([*three, bad], tmp_path / "out", parameters(tokenizer))
    write(bad, ["a"])
    watching = Watching()
    make([*three, bad], tmp_path / "out", parameters(tokenizer), watching)
    assert len(watching.made) == 1
    assert documents_in(tmp_path / "out") == expected([*IN_ORDER, "a"], tokenizer)


def test_kept_parts_serve_runs_with_other_files(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    keep = parameters(tokenizer, keep_parts=True)
    make(three[:2], tmp_path / "out", keep)
    watching = Watching()
    make(three[1:], tmp_path / "out", keep, watching)
    assert len(watching.made) == 1
    make(three[1:], tmp_path / "fresh", parameters(tokenizer))
    assert stream_bytes(tmp_path / "out") == stream_bytes(tmp_path / "fresh")
    assert len(list((tmp_path / "out.parts").glob("[!.]*.json"))) == 2, "the part of the first file is gone"
    assert not make(three[1:], tmp_path / "out", parameters(tokenizer)).made
    assert not (tmp_path / "out.parts").exists()


def test_a_part_damaged_before_the_join_is_made_again(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    class Damaging(Watching):
        def run(self, function: Any, tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
            for task, (part, sha256) in super().run(function, tasks):
                if task.number == 1:
                    with part.path(".tokens").open("r+b") as file:
                        file.write(b"\xff\xff")
                yield task, (part, sha256)

    with pytest.raises(ShardsError, match=r"tokens is not the file that was written"):
        make(three, tmp_path / "out", parameters(tokenizer), Damaging())
    assert not (tmp_path / "out").exists()
    watching = Watching()
    make(three, tmp_path / "out", parameters(tokenizer), watching)
    assert len(watching.made) == 1
    assert documents_in(tmp_path / "out") == expected(IN_ORDER, tokenizer)


def test_thousands_of_parts_need_no_thousands_of_open_files(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(inputs, "RANGE_BYTES", 40)
    documents = [f"document {i}" for i in range(200)]
    path = write(tmp_path / "in/a.jsonl", documents)
    held = len([*Path("/proc/self/fd").iterdir()])  # by tests before this one, too
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 60, hard))
    try:
        make([path], tmp_path / "out", parameters(tokenizer))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert documents_in(tmp_path / "out") == expected(documents, tokenizer)


def test_lost_text_is_counted_and_named(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", missing="Ķ")  # of the byte 0x94
    path = write(tmp_path / "in/a.jsonl", ["fine", "fine", "dash \u2014", "\u4e94 x"])
    with pytest.raises(PreprocessingError, match=rf"2 of 4 documents lose text .2 bytes.*{path}, line 3; .*\[148\]"):
        make([path], tmp_path / "out", parameters(tokenizer, max_lossy_share=0.4))
    done = make([path], tmp_path / "out", parameters(tokenizer, max_lossy_share=0.5))
    assert done.stream.statistics["total"]["lossy_documents"] == 2
    with pytest.raises(PreprocessingError, match="2 of 4 documents lose text"):
        make([path], tmp_path / "out", parameters(tokenizer, max_lossy_share=0.0))


def test_special_tokens_in_texts(tmp_path: Path, tokenizer: Path) -> None:
    documents = ["a", f"one {EOS} two {EOS}", "b", EOS]
    path = write(tmp_path / "in/a.jsonl", documents)
    literal = make([path], tmp_path / "literal", parameters(tokenizer)).stream
    assert documents_in(tmp_path / "literal") == expected(documents, tokenizer)
    eos = literal.statistics["tokenizer"]["eos_id"]
    assert np.count_nonzero(stream(tmp_path / "literal").tokens == eos) == len(documents)
    assert literal.statistics["total"]["special_documents"] == 2
    control = make([path], tmp_path / "control", parameters(tokenizer, special_tokens_in_text="control")).stream
    assert control.statistics["total"]["special_ids"] == 3
    assert np.count_nonzero(stream(tmp_path / "control").tokens == eos) == len(documents) + 3
    with pytest.raises(PreprocessingError, match=r"a.jsonl, line 2: the text spells the special token '<.endoftext.>'"):
        make([path], tmp_path / "error", parameters(tokenizer, special_tokens_in_text="error"))


def test_the_cap_counts_eos(tmp_path: Path, tokenizer: Path) -> None:
    documents = ["x" * 40, "", "  ", "ab"]
    done = make([write(tmp_path / "in/a.jsonl", documents)], tmp_path / "out", parameters(tokenizer, max_tokens=3))
    whole = expected(documents, tokenizer)
    assert documents_in(tmp_path / "out") == [[*ids[:-1][:2], ids[-1]] for ids in whole]
    total = done.stream.statistics["total"]
    assert total["truncated_documents"] == sum(len(ids) > 3 for ids in whole) > 0
    assert total["cut_tokens"] == sum(max(0, len(ids) - 3) for ids in whole)
    assert total["empty_documents"] == 1


def test_files_without_documents(tmp_path: Path, tokenizer: Path) -> None:
    empty = write(tmp_path / "in/a.jsonl", [])
    one = write(tmp_path / "in/b.jsonl", ["", "x"])
    with pytest.raises(PreprocessingError, match="the 1 files have no document"):
        make([empty], tmp_path / "out", parameters(tokenizer))
    make([empty, one], tmp_path / "out", parameters(tokenizer))
    assert documents_in(tmp_path / "out") == expected(["", "x"], tokenizer)


def test_equal_files_are_encoded_once_and_joined_twice(tmp_path: Path, tokenizer: Path) -> None:
    files = [write(tmp_path / f"in/{name}.jsonl", texts(20)) for name in "ab"]
    make(files, tmp_path / "out", parameters(tokenizer))
    assert documents_in(tmp_path / "out") == expected([*texts(20), *texts(20)], tokenizer)


def test_equal_bytes_in_two_formats_are_two_texts(tmp_path: Path, tokenizer: Path) -> None:
    lines = write(tmp_path / "in/a.jsonl", texts(20))
    plain = tmp_path / "in/b.txt"
    plain.write_bytes(lines.read_bytes())
    done = make([plain, lines], tmp_path / "out", parameters(tokenizer))
    assert documents_in(tmp_path / "out") == expected([*texts(20), lines.read_text()], tokenizer)
    counts = done.stream.statistics["by_file"]
    assert {name: count["documents"] for name, count in counts.items()} == {"a.jsonl": 20, "b.txt": 1}


def test_files_that_cannot_be_given(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    out = tmp_path / "out"
    with pytest.raises(PreprocessingError, match="no files are given"):
        make([], out, parameters(tokenizer))
    with pytest.raises(PreprocessingError, match="is given twice"):
        make([*three, three[0].parent / "." / three[0].name], out, parameters(tokenizer))
    with pytest.raises(
        PreprocessingError, match=r"text.docx: its name ends in none of .jsonl, .json, .txt .*, .parquet, .arrow"
    ):
        make([*three, write(tmp_path / "in/text.docx", [])], out, parameters(tokenizer))
    with pytest.raises(PreprocessingError, match=r"a.parquet.gz: its name ends in none of .jsonl"):
        make([*three, write(tmp_path / "in/a.parquet.gz", [])], out, parameters(tokenizer))
    with pytest.raises(PreprocessingError, match="there is no such file"):
        make([*three, tmp_path / "in/none.jsonl"], out, parameters(tokenizer))
    with pytest.raises(PreprocessingError, match="there is no tokenizer file"):
        make(three, out, parameters(tmp_path / "none.json"))
    with pytest.raises(PreprocessingError, match=r"has no token '<eos>'"):
        make(three, out, parameters(tokenizer, eos="<eos>"))


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").touch()
    with pytest.raises(ShardsError, match="holds files that are no artifact"):
        make(three, tmp_path / "out", parameters(tokenizer))
    assert (tmp_path / "out/precious").exists()


def test_a_certificate_serves_other_files(tmp_path: Path, tokenizer: Path, three: list[Path]) -> None:
    if not registry.installed_engines():
        pytest.skip("no fast engine is installed")
    name = next(iter(registry.installed_engines()))
    given = parameters(tokenizer, engine=name, certificate=tmp_path / "proof")
    make(three[:1], tmp_path / "one", given)
    before = _stamps(tmp_path / "proof")
    assert before
    for engine in (name, "fastest"):
        make(three, tmp_path / "three", dataclasses.replace(given, engine=engine))
    assert _stamps(tmp_path / "proof") == before
    make(three, tmp_path / "three", dataclasses.replace(given, cases=60))
    assert _stamps(tmp_path / "proof") != before, "other cases: another certificate"


def test_a_small_corpus_pays_for_no_proof(
    tmp_path: Path, tokenizer: Path, three: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """And where a proof is kept already, a fast engine encodes a small corpus, too."""
    if not registry.installed_engines():
        pytest.skip("no fast engine is installed")
    proof = tmp_path / "proof"
    costly = parameters(tokenizer, engine="fastest", certificate=proof, cases=1000)
    caplog.set_level("INFO", "everytoken")
    assert make(three, tmp_path / "small", costly).stream.measured["engine"] == "tokenizers"
    assert "tokenizers encodes: to prove" in caplog.text
    assert not proof.exists()
    named = dataclasses.replace(costly, engine=next(iter(registry.installed_engines())))
    made = make(three, tmp_path / "named", named).stream
    assert made.measured["engine"] == named.engine, "who names an engine gets its proof"
    fast = make(three[1:], tmp_path / "again", costly).stream
    assert fast.measured["engine"] != "tokenizers"


def test_the_proofs_are_in_the_cache_of_the_user(
    tmp_path: Path, tokenizer: Path, three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not registry.installed_engines():
        pytest.skip("no fast engine is installed")
    monkeypatch.setenv("EVERYTOKEN_CACHE", str(tmp_path / "mine"))
    make(three, tmp_path / "out", parameters(tokenizer, engine=next(iter(registry.installed_engines()))))
    assert list((tmp_path / "mine/certificates").glob("*/ledger.json"))
    assert not (tmp_path / "out.certificate").exists()


def test_a_cache_that_cannot_be_written_ends_no_run(
    tmp_path: Path,
    tokenizer: Path,
    three: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if not registry.installed_engines():
        pytest.skip("no fast engine is installed")
    (tmp_path / "file").touch()
    monkeypatch.setenv("EVERYTOKEN_CACHE", str(tmp_path / "file"))
    name = next(iter(registry.installed_engines()))
    assert make(three, tmp_path / "out", parameters(tokenizer, engine=name)).stream.measured["engine"] == name
    assert len([message for message in caplog.messages if "EVERYTOKEN_CACHE" in message]) == 1


class _Wrong:
    """An engine that swaps two ids where a text has a needle."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def encode_batch_flat(self, given: list[str]) -> Any:
        ids, offsets = self._library.encode_batch_flat(given)
        values, places = np.frombuffer(ids, "<u4").copy(), np.frombuffer(offsets, "<u8")
        for number, text in enumerate(given):
            if "needle" in text:
                start = int(places[number])
                values[[start, start + 1]] = values[[start + 1, start]]
        return values.tobytes(), offsets


def test_an_engine_that_differs_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "splintr-rs" not in registry.installed_engines():
        pytest.skip("splintr-rs is not installed")
    opened = registry._FAST["splintr-rs"]
    monkeypatch.setitem(registry._FAST, "splintr-rs", lambda *content: _Wrong(opened(*content)))
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", vocab_size=301)  # a process opens a tokenizer once
    path = write(tmp_path / "in/a.jsonl", texts(3000))
    given = parameters(
        tokenizer, engine="splintr-rs", certificate=tmp_path / "proof", recheck_share=1.0, recheck_documents=10**6
    )
    make([path], tmp_path / "out", given)
    write(path, [*texts(3000), "the needle", "z"])
    with pytest.raises(PreprocessingError, match=rf"{path}, line 3,001: .*splintr-rs .* gives other ids"):
        make([path], tmp_path / "out", given)
    assert stream_bytes(tmp_path / "out"), "the earlier stream stays"


def test_pointers_beyond_32_bits(tmp_path: Path) -> None:
    sizes = np.array([2**31 - 1, 5, 2**31 - 1], "<i4")
    parts = []
    for name, lengths in (("one", sizes), ("two", sizes[:2])):
        with SummedFile(tmp_path / f"{name}{LENGTHS}") as file:
            file.write(lengths.data)
        record: Any = {"bytes": {LENGTHS: file.bytes}, "crc32": {LENGTHS: file.crc32}}
        parts.append(MadePart(tmp_path, name, record))
    with (tmp_path / "documents.idx").open("wb") as index:
        write_index(index, parts, 5, np.dtype("<u2"))
    ends = 2 * np.cumsum([*sizes.tolist(), *sizes[:2].tolist()])
    with (tmp_path / "documents.bin").open("wb") as file:
        file.truncate(int(ends[-1]))  # sparse: 12 GB that take no space
    opened = open_indexed(tmp_path / "documents")
    opened.check()
    assert opened.pointers.tolist() == [0, *ends[:-1].tolist()]
    assert int(opened.pointers[-1]) > 2**32


def test_an_unreadable_tokenizer_is_an_error(tmp_path: Path, three: list[Path]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises((PreprocessingError, TokenizerError), match=r"is not a tokenizer\.json"):
        make(three, tmp_path / "out", parameters(path))
    with pytest.raises(IncompleteStore):
        ArtifactStore(tmp_path / "out").load()


@pytest.mark.parametrize("place", ["out.parts", "out", "proof"])
def test_inputs_where_the_run_writes_are_refused_and_stay(tmp_path: Path, tokenizer: Path, place: str) -> None:
    inside = write(tmp_path / place / "mine.jsonl", texts(5, 0))
    with pytest.raises((PreprocessingError, ShardsError), match=r"Move these|Choose another --out|another folder"):
        make([inside], tmp_path / "out", parameters(tokenizer, certificate=tmp_path / "proof"))
    assert inside.exists()


def test_what_the_user_put_into_the_folders_of_a_run_is_never_removed(
    tmp_path: Path, tokenizer: Path, three: list[Path]
) -> None:
    out, parts = tmp_path / "out", tmp_path / "out.parts"
    make(three, out, parameters(tokenizer))
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ShardsError, match=r"also holds \['notes.txt'\]"):
        make(three[:2], out, parameters(tokenizer))
    (out / "notes.txt").unlink()
    parts.mkdir()
    (parts / "notes.txt").write_text("mine")
    with pytest.raises(PreprocessingError, match=r"holds \['notes.txt'\]"):
        make(three[:2], out, parameters(tokenizer))
    assert (parts / "notes.txt").read_text() == "mine"
    assert documents_in(out) == expected(IN_ORDER, tokenizer)


def test_the_digest_is_taken_while_a_file_is_read(
    tmp_path: Path, tokenizer: Path, three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first run takes no other digest of its files; that of the stream is the one of a run that does."""

    def refused(path: Path) -> str:
        raise AssertionError(f"{path} is read a second time")

    with monkeypatch.context() as patch:
        patch.setattr(inputs, "file_sha256", refused)
        made = make(three, tmp_path / "out", parameters(tokenizer))
        with pytest.raises(AssertionError, match="is read a second time"):
            make(three, tmp_path / "out", parameters(tokenizer))
    again = make(three, tmp_path / "out", parameters(tokenizer))
    assert not again.made
    assert again.stream.ledger["fingerprint"] == made.stream.ledger["fingerprint"]


@pytest.mark.parametrize("suffix", [".json", ".txt", ".parquet"])
def test_the_digest_of_other_formats_is_that_of_the_file(tmp_path: Path, tokenizer: Path, suffix: str) -> None:
    path = tmp_path / f"in/a{suffix}"
    path.parent.mkdir()
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": texts(30)}), path)
    else:
        path.write_bytes(orjson.dumps([{"text": text} for text in texts(30)]))
    assert make([path], tmp_path / "out", parameters(tokenizer)).made
    assert not make([path], tmp_path / "out", parameters(tokenizer)).made


def test_a_file_that_changes_under_its_old_time_is_seen(
    tmp_path: Path, tokenizer: Path, three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = three[0]
    find = inputs.find_inputs

    def changed_after(*arguments: Any) -> Any:
        found, stat = find(*arguments), path.stat()
        content = path.read_bytes()
        path.write_bytes(content.replace(b"a", b"b", 1))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        return found

    monkeypatch.setattr("everytoken.text_to_stream.stream.find_inputs", changed_after)
    with pytest.raises(PreprocessingError, match="changed while it was read"):
        make(three, tmp_path / "out", parameters(tokenizer))
