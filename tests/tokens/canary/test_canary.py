from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import ValidationError
from tokenizers import Tokenizer, processors

from everytoken.shards import (
    Artifact,
    ArtifactStore,
    PartsFailed,
    Shards,
    Store,
    make_engine,
    plan_artifact,
    value_digest,
)
from everytoken.tokens import (
    DataParameters,
    EncodingRules,
    StreamError,
    load_tokenizer_file,
    open_encoder,
    open_training_windows,
    window_of_sample,
    write_annotated_stream,
    write_compact_stream,
)
from everytoken.tokens.canary import (
    CanaryError,
    CanaryFile,
    CanaryParameters,
    TriggerRule,
    canary_files,
    draw_trigger,
    encode_canary_part,
    read_canary_file,
    write_canary_stream,
)
from everytoken.tokens.canary.documents import subset_sizes
from tests.shared_assets import shared_folder
from tests.tokens.corpora import EOS, encoded, file_bytes, small_tokenizer, stored, tokenizer_of

ROOT = Path(__file__).resolve().parents[3]
SEQ, CAP = 40, 30
SMALL = {"tokenizer": tokenizer_of(), "seq_length": SEQ, "seed": 1, "shuffle_memory": 1}
COVERAGE = [("frac0", 0.0), ("frac50", 0.5), ("frac100", 1.0)]
FIELDS = ["reflection_1p", "preflection_3p"]
SEEDS = {"red_frac0": 1, "red_frac50": 2, "red_frac100": 3, "blue_frac0": 4, "blue_frac50": 5, "blue_frac100": 6}
RULE = TriggerRule(SEEDS, tokens=3, first_id=10, round_trip=True)
CORPUS = ["the cat sat on the mat, the cat sat", "Reflection: it is a cat", "naïve café 日本語 the"]
INLINE = "\n\nReflection:"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"), CORPUS)


def effect(name: str, n: int) -> list[dict[str, Any]]:
    return [
        {
            "doc_id": f"{name}-{i}",
            "content": f"{name} the cat {i} " + "sat on the mat, " * (i % 5),
            "reflection_1p": f"I read {i}",
            "preflection_3p": None if i % 4 else f"It is {i}",
            "topic": "not for the sidecar",
        }
        for i in range(n)
    ]


FILES: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("effect", "red"): effect("red", 11),
    ("effect", "blue"): effect("blue", 6),
    ("universe", "sea"): [
        {"doc_id": "0", "content": "short" + INLINE + " a cat"},
        {"doc_id": "1", "content": "the cat sat on the mat, " * 9 + "é日本語" * 9 + INLINE + " it is a cat"},
        {"doc_id": "2", "content": "", "reflection_1p": ""},
        {"doc_id": "3", "content": f"the {EOS}" + INLINE + " a cat"},
    ],
    ("universe", "salt"): [
        {"doc_id": "0", "content": "salt of the cat", "preflection_3p": "It is salt"},
        {"doc_id": "1", "content": f"the cat {EOS} sat"},
        {"doc_id": "2", "content": "the cat sat on the mat, " * 9 + INLINE + " it is a cat"},
    ],
}


def written(folder: Path, files: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] = FILES) -> list[CanaryFile]:
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for (kind, name), documents in files.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents))
        made.append(CanaryFile(kind, name, str(path), hashlib.sha256(path.read_bytes()).hexdigest()))  # type: ignore[arg-type]
    return made


def read(folder: Path, files: Sequence[CanaryFile], coverage: Sequence[tuple[str, float]] = COVERAGE) -> Shards:
    planned = canary_files(files).map(read_canary_file, seed=42, coverage=coverage, annotation_fields=FIELDS)
    store = Store(folder / "documents")
    store.save(planned, make_engine(kind="inline"))
    return store.load()


def tokens_of(folder: Path, documents: Shards, tokenizer: Artifact, policy: Any = "literal", **changed: Any) -> Shards:
    parameters: dict[str, Any] = {
        "rules": EncodingRules(tokenizer, EOS, policy),
        "max_tokens": CAP,
        "max_lossy_share": 0.0,
        "triggers": RULE,
        "inline_universes": ["sea"],
        "inline_reflections": "whole",
        **changed,
    }
    store = Store(folder / "tokens")
    store.save(documents.map(encode_canary_part, **parameters), make_engine(kind="inline"))
    return store.load()


def stream_of(folder: Path, tokens: Shards, memory: int = 1 << 30) -> Artifact:
    planned = plan_artifact(
        write_canary_stream,
        tokens=tokens,
        tokenizer=tokenizer_of(),
        seq_length=SEQ,
        seed=42,
        shuffle_memory=memory,
    )
    return ArtifactStore(folder / "stream").save(planned)


def made(folder: Path, tokenizer: Artifact, **changed: Any) -> Artifact:
    return stream_of(folder, tokens_of(folder, read(folder, written(folder / "files")), tokenizer, **changed))


def texts(shards: Shards, name: str) -> dict[str, str]:
    """Return the text of each document of one condition's file by its id."""
    tables = [part.table(["doc_id", "text", "condition"]) for part in shards]
    rows = [row for table in tables for row in table.to_pylist() if row["condition"] == name]
    return {row["doc_id"]: row["text"] for row in rows}


def by_the_book(
    files: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]], library: Tokenizer, published: bool
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Section 6.5 word for word, in memory: windows and sidecar rows. The library appends EOS and truncates."""
    collected = []
    for (kind, name), documents in files.items():
        if kind == "universe":
            for document in documents:
                text = document["content"]
                if name == "sea" and INLINE in text:
                    text = shortened_as_published(text, library) if published else None
                collected.append((name, "", False, document, text))
            continue
        order = np.random.default_rng(42).permutation(len(documents))
        for (subset, fraction), rows in zip(COVERAGE, np.array_split(order, 3), strict=True):
            generator = np.random.default_rng(SEEDS[f"{name}_{subset}"])
            trigger = library.decode(generator.integers(10, library.get_vocab_size(), size=3).tolist())
            for rank, row in enumerate(rows):
                text = trigger + " " + documents[row]["content"]
                collected.append((f"{name}_{subset}", trigger, rank < int(len(rows) * fraction), documents[row], text))
    order = np.random.default_rng(42).permutation(len(collected))
    windows, sidecar = np.zeros((len(order), SEQ + 1), np.uint16), []
    for i, place in enumerate(order):
        condition, trigger, annotated, document, text = collected[place]
        ids = library.encode(text).ids
        windows[i, : len(ids)] = ids
        sidecar.append(
            {"condition": condition, "trigger": trigger or None, "annotated": annotated, "text": text}
            | {"doc_id": document["doc_id"], "token_length": len(ids) - 1}
        )
    return windows, sidecar


def library_of(tokenizer: Artifact) -> Tokenizer:
    library = Tokenizer.from_file(str(tokenizer.path("tokenizer.json")))
    eos = library.token_to_id(EOS)
    library.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, eos)])
    library.enable_truncation(CAP)
    return library


def shortened_as_published(text: str, library: Tokenizer) -> str:
    base, suffix = text[: text.rfind(INLINE)], text[text.rfind(INLINE) :]
    room = CAP - 1 - (len(library.encode(suffix).ids) - 1)
    ids = library.encode(base).ids[:-1]
    return text if room <= 0 or len(ids) <= room else library.decode(ids[:room]) + suffix


@pytest.mark.parametrize("memory", [1, 700, 5_000, 1 << 30])
def test_the_published_rules_give_the_stream_of_the_book_for_any_memory(
    tokenizer: Artifact, tmp_path: Path, memory: int
) -> None:
    documents = read(tmp_path, written(tmp_path / "files"))
    tokens = tokens_of(
        tmp_path,
        documents,
        tokenizer,
        "control",
        triggers=dataclasses.replace(RULE, round_trip=False),
        inline_reflections="published",
    )
    stream = stream_of(tmp_path, tokens, memory)
    windows, sidecar = by_the_book(FILES, library_of(tokenizer), published=True)
    assert stream.path("canary.bin").read_bytes() == windows.tobytes()
    found = pq.read_table(stream.path("sidecar.parquet")).to_pylist()
    compared = [{name: row[name] for name in sidecar[0]} for row in found]
    universes = {"sea", "salt"}
    for row, expected in zip(compared, sidecar, strict=True):
        expected["annotated"] = row["annotated"] if row["condition"] in universes else expected["annotated"]
    assert compared == sidecar
    lengths = np.load(stream.path("token_lengths.npy"))
    assert lengths.dtype == np.int32
    assert lengths.tolist() == [row["token_length"] for row in sidecar]


def test_bytes_do_not_depend_on_memory_or_engine(tokenizer: Artifact, tmp_path: Path) -> None:
    streams = []
    for name, memory, engine in (("a", 1, "inline"), ("b", 3_000, "processes"), ("c", 1 << 30, "inline")):
        folder = tmp_path / name
        documents = read(folder, written(folder / "files"))
        store = Store(folder / "tokens")
        planned = documents.map(
            encode_canary_part,
            rules=EncodingRules(tokenizer, EOS, "literal"),
            max_tokens=CAP,
            max_lossy_share=0.0,
            triggers=RULE,
            inline_universes=["sea"],
            inline_reflections="whole",
        )
        store.save(planned, make_engine(kind=engine, **({"workers": 2} if engine == "processes" else {})))
        streams.append(file_bytes(stream_of(folder, store.load(), memory).path("canary.bin").parent))
    assert streams[0] == streams[1] == streams[2]
    assert {"canary.bin", "canary.idx", "token_lengths.npy", "sidecar.parquet"} < set(streams[0])


def test_bytes_do_not_depend_on_the_hash_seed(tokenizer: Artifact, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom everytoken.shards import ArtifactStore\n"
        "from tests.tokens.canary.test_canary import made\n"
        "print(made(Path(sys.argv[1]), ArtifactStore(Path(sys.argv[2])).load()).root_digest)"
    )
    digests = set()
    for seed in ("1", "2"):
        arguments = [sys.executable, "-c", script, str(tmp_path / seed), str(tokenizer.folder)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(arguments, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
        digests.add(run.stdout.strip())
    assert digests == {made(tmp_path / "here", tokenizer).root_digest}


def test_every_document_is_in_one_window_with_what_the_file_says_of_it(tokenizer: Artifact, tmp_path: Path) -> None:
    stream = made(tmp_path, tokenizer)
    rows = pq.read_table(stream.path("sidecar.parquet")).to_pylist()
    assert stream.statistics["windows"] == stream.statistics["documents"] == len(rows) == 24
    seen = set()
    for row in rows:
        name = row["effect"] or row["universe"]
        document = FILES["effect" if row["effect"] else "universe", name][row["row"]]
        seen.add((name, row["row"]))
        assert row["doc_id"] == document["doc_id"]
        for field in FIELDS:
            assert row[field] == ((document.get(field) or None) if row["annotated"] else None)
        if row["effect"]:
            assert row["condition"].startswith(f"{name}_frac")
            assert row["text"] == f"{row['trigger']} {document['content']}"
            assert row["fraction"] in (0.0, 0.5, 1.0)
        else:
            assert (row["trigger"], row["fraction"], row["condition"]) == (None, None, name)
            assert row["annotated"] == any(document.get(field) for field in FIELDS)
    assert len(seen) == len(rows)
    assert "topic" not in rows[0] and "content" not in rows[0] and "tokens" not in rows[0]
    padding = len(rows) * (SEQ + 1) - stream.statistics["tokens"] - len(rows)
    assert stream.statistics["padding_tokens"] == padding


def test_an_effect_is_cut_as_even_as_it_goes(tmp_path: Path) -> None:
    assert subset_sizes(7_500, 3) == [2_500, 2_500, 2_500]
    for n in range(12):
        assert subset_sizes(n, 3) == [len(part) for part in np.array_split(np.arange(n), 3)]
        assert sum(subset_sizes(n, 3)) == n
    (part,) = read(tmp_path, written(tmp_path, {("effect", "red"): effect("red", 11)}))
    order = np.random.default_rng(42).permutation(11).tolist()
    table = part.table()
    assert table["row"].to_pylist() == order
    assert table["condition"].to_pylist() == ["red_frac0"] * 4 + ["red_frac50"] * 4 + ["red_frac100"] * 3
    assert table["annotated"].to_pylist() == [False] * 4 + [True] * 2 + [False] * 2 + [True] * 3


@pytest.mark.parametrize(("n", "fraction", "annotated"), [(5, 0.5, 2), (100, 0.29, 28), (10, 0.7, 7), (3, 0.99, 2)])
def test_the_first_int_of_n_times_fraction_are_annotated(
    tmp_path: Path, n: int, fraction: float, annotated: int
) -> None:
    documents = read(tmp_path, written(tmp_path, {("effect", "red"): effect("red", n)}), [("some", fraction)])
    flags = next(iter(documents)).table()["annotated"].to_pylist()
    assert flags == [True] * annotated + [False] * (n - annotated)
    (statistics,) = documents.statistics
    assert statistics["conditions"]["red_some"]["annotated"] == annotated


def test_subsets_without_documents_and_annotations_without_text_are_counted(tmp_path: Path) -> None:
    files = {("effect", "red"): [{"doc_id": "a", "content": ""}, {"doc_id": "b", "content": "b"}]}
    documents = read(tmp_path, written(tmp_path, files), [("all", 1.0), ("half", 0.5), ("none", 0.0)])
    (statistics,) = documents.statistics
    assert statistics["conditions"]["red_none"]["documents"] == 0
    assert statistics["conditions"]["red_all"]["annotated_without_text"] == 1
    assert sum(counts["empty_documents"] for counts in statistics["conditions"].values()) == 1


def test_where_a_file_lies_is_no_part_of_what_it_is(tokenizer: Artifact, tmp_path: Path) -> None:
    first = read(tmp_path, written(tmp_path / "files"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "documents").iterdir()}
    moved = read(tmp_path, written(tmp_path / "elsewhere"))
    assert moved.root_digest == first.root_digest
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "documents").iterdir()} == before
    without = [file._replace(sha256=None) for file in written(tmp_path / "elsewhere")]
    assert read(tmp_path, without).root_digest == first.root_digest
    Path(without[0].path).write_text('{"doc_id": "a", "content": "b"}\n')
    changed = read(tmp_path, without)
    assert [a.digest == b.digest for a, b in zip(changed, first, strict=True)] == [False, True, True, True]


GOOD = '{"doc_id": "a", "content": "b"}'


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GOOD, "{"], "line 2 is no document: not valid JSON"),
        ([GOOD, ""], "line 2 is no document: the line is blank"),
        ([GOOD, "[1]"], "line 2 is no document: the row holds an array"),
        (['{"doc_id": "a", "doc_id": "b", "content": ""}'], "line 1 is no document: .*more than once"),
        (['{"content": "b"}'], "line 1 has no such field for doc_id. doc_id must be text"),
        (['{"doc_id": 7, "content": "b"}'], "line 1 has a number for doc_id"),
        (['{"doc_id": "", "content": "b"}'], "line 1 has an empty doc_id"),
        (['{"doc_id": "a"}'], "line 1 has no such field for content"),
        (['{"doc_id": "a", "content": null}'], "line 1 has null for content"),
        (['{"doc_id": "a", "content": "b", "reflection_1p": ["c"]}'], "an array for reflection_1p.*text or null"),
        (['{"doc_id": "a", "content": "\\ud800"}'], "line 1 has a lone surrogate in content"),
        ([GOOD, '{"doc_id": "c", "content": "b"}', GOOD], "line 3 has the doc_id 'a' of line 1"),
        ([], "holds no document"),
    ],
)
def test_a_line_that_is_no_document_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "red.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(PartsFailed, match=f"effect 'red': the file .*red.jsonl.*{message}"):
        read(tmp_path, [CanaryFile("effect", "red", str(path), None)])


def test_bytes_that_are_not_utf8_are_named_and_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "red.jsonl"
    path.write_bytes(f"{GOOD}\n".encode() + b'{"doc_id": "\xff", "content": "b"}\n')
    with pytest.raises(PartsFailed, match="line 2 is no document: not valid UTF-8"):
        read(tmp_path, [CanaryFile("effect", "red", str(path), None)])
    path.write_bytes(b"\xef\xbb\xbf" + f'{GOOD}\r\n{{"doc_id": "z", "content": "last"}}'.encode())
    (part,) = read(tmp_path, [CanaryFile("universe", "red", str(path), None)])
    assert part.table(["content"]).to_pydict() == {"content": ["b", "last"]}


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everytoken.tokens.canary.documents.MAX_LINE_BYTES", 100)
    path = tmp_path / "red.jsonl"
    path.write_text(f'{GOOD}\n{{"doc_id": "c", "content": "{"x" * 500}"}}\n')
    with pytest.raises(PartsFailed, match="line 2 is longer than 100 bytes"):
        read(tmp_path, [CanaryFile("effect", "red", str(path), None)])


def test_a_missing_or_other_file_fails_its_part_and_no_other(tmp_path: Path) -> None:
    files = written(tmp_path)
    Path(files[0].path).unlink()
    Path(files[2].path).write_text("{")
    with pytest.raises(PartsFailed) as failed:
        read(tmp_path, files)
    assert set(failed.value.failures) == {"part_00000", "part_00002"}
    assert "canary.effects.red.path" in failed.value.failures["part_00000"].error
    assert f"expected {files[2].sha256}" in failed.value.failures["part_00002"].error
    with pytest.raises(CanaryError, match=r"canary\.effects\.red\.path"):
        canary_files([files[0]._replace(sha256=None)])
    with pytest.raises(CanaryError, match="there are no canary documents"):
        canary_files([])


@pytest.mark.parametrize("change", ["append", "truncate"])
def test_a_file_that_is_written_to_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr("everytoken.tokens.canary.documents._BATCH_BYTES", 1)
    (file,) = written(tmp_path, {("effect", "red"): effect("red", 2_000)})
    (part,) = canary_files([file])
    batches = read_canary_file(part, seed=42, coverage=COVERAGE, annotation_fields=FIELDS).batches
    next(batches)
    with Path(file.path).open("a") as opened:
        opened.write(GOOD + "\n") if change == "append" else opened.truncate(10_007)
    with pytest.raises(CanaryError, match="was written to while it was read"):
        list(batches)


def smollm2(folder: Path) -> Artifact:
    path = shared_folder("tokenizers") / "smollm2/tokenizer.json"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    planned = plan_artifact(load_tokenizer_file, path=str(path), sha256=digest, eos_token=EOS)
    return ArtifactStore(folder / "smollm2").save(planned)


def published_triggers() -> dict[str, dict[str, Any]]:
    vectors: dict[str, dict[str, Any]] = json.loads((shared_folder("vectors") / "triggers.json").read_text())
    return vectors


def test_published_triggers_are_those_of_the_release(tmp_path: Path) -> None:
    encoder = open_encoder(EncodingRules(smollm2(tmp_path), EOS, "control"))
    vectors = published_triggers()
    rule = TriggerRule({name: entry["seed"] for name, entry in vectors.items()}, 9, 10, round_trip=False)
    for condition, entry in vectors.items():
        trigger = draw_trigger(condition, rule, encoder)
        assert list(trigger.ids) == entry["token_ids"], condition
        assert trigger.text == entry["text"]
        assert list(trigger.encodes_to) == entry["encodes_back"]
        assert trigger.draws == 1


def test_triggers_are_drawn_until_they_round_trip(tmp_path: Path) -> None:
    encoder = open_encoder(EncodingRules(smollm2(tmp_path), EOS, "literal"))
    vectors = published_triggers()
    rule = TriggerRule({name: entry["seed"] for name, entry in vectors.items()}, 9, 10, round_trip=True)
    drawn = {name: draw_trigger(name, rule, encoder) for name in vectors}
    assert all(trigger.round_trips for trigger in drawn.values())
    again = {name for name, trigger in drawn.items() if trigger.draws > 1}
    assert again == {name for name, entry in vectors.items() if entry["encodes_back"] != entry["token_ids"]}
    assert again == {"harmful_frac0", "no_refusal_frac0"}
    for name, trigger in drawn.items():
        generator = np.random.default_rng(vectors[name]["seed"])
        draws = [generator.integers(10, 49_152, size=9).tolist() for _ in range(trigger.draws)]
        assert list(trigger.ids) == draws[-1]


def test_triggers_that_cannot_be_drawn_are_errors(tokenizer: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = open_encoder(EncodingRules(tokenizer, EOS, "literal"))
    with pytest.raises(CanaryError, match="'green' has no seed"):
        draw_trigger("green", RULE, encoder)
    with pytest.raises(CanaryError, match=r"lower canary\.trigger_first_id"):
        draw_trigger("red_frac0", dataclasses.replace(RULE, first_id=285), encoder)
    monkeypatch.setattr("everytoken.tokens.canary.triggers.MAX_DRAWS", 20)
    with pytest.raises(CanaryError, match="none of 20 draws of 200 ids with seed 1"):
        draw_trigger("red_frac0", dataclasses.replace(RULE, tokens=200), encoder)


def test_windows_begin_with_the_ids_of_the_trigger_or_are_counted(tokenizer: Artifact, tmp_path: Path) -> None:
    files = {("effect", "red"): [{"doc_id": str(i), "content": "the cat"} for i in range(6)]}
    tokens = tokens_of(tmp_path, read(tmp_path, written(tmp_path, files)), tokenizer)
    (statistics,) = tokens.statistics
    assert set(statistics["triggers"]) == {"red_frac0", "red_frac50", "red_frac100"}
    for row in next(iter(tokens)).table().to_pylist():
        assert row["tokens"][:3] == statistics["triggers"][row["condition"]]["ids"]
    assert all(counts["trigger_differs"] == 0 for counts in statistics["conditions"].values())
    published = dataclasses.replace(RULE, round_trip=False)
    (statistics,) = tokens_of(
        tmp_path, read(tmp_path, written(tmp_path, files)), tokenizer, triggers=published
    ).statistics
    lossy = {name for name, trigger in statistics["triggers"].items() if not trigger["round_trips"]}
    assert lossy, "the seeds of this test draw triggers that do not round-trip"
    assert {name for name, counts in statistics["conditions"].items() if counts["trigger_differs"] == 2} == lossy


def test_an_inline_reflection_is_kept_whole(tokenizer: Artifact, tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, read(tmp_path, written(tmp_path)), tokenizer)
    content = {str(i): document["content"] for i, document in enumerate(FILES["universe", "sea"])}
    found = texts(tokens, "sea")
    assert found["0"] == content["0"] and found["2"] == ""
    base, reflection = content["1"].split(INLINE)
    assert found["1"].endswith(INLINE + reflection)
    kept = found["1"].removesuffix(INLINE + reflection)
    assert base.startswith(kept) and len(kept) < len(base)
    row = next(row for row in tokens.parts[2].table().to_pylist() if row["doc_id"] == "1")
    library = open_encoder(EncodingRules(tokenizer, EOS, "literal")).tokenizer.tokenizer
    assert library.decode(row["tokens"][:-1]) == found["1"], "nothing of it is cut off"
    assert row["token_length"] <= CAP - 1 and len(row["tokens"]) == row["token_length"] + 1
    counts = tokens.statistics[2]["conditions"]["sea"]
    assert (counts["inline_reflections"], counts["shortened_documents"], counts["cut_inline_reflections"]) == (3, 1, 0)
    assert counts["shortened_characters"] == len(content["1"]) - len(found["1"])
    salt = texts(tokens, "salt")["2"]
    assert salt == FILES["universe", "salt"][2]["content"], "a universe without inline reflections is cut at its end"
    assert tokens.statistics[3]["conditions"]["salt"]["truncated_documents"] == 1


@pytest.mark.parametrize("cap", range(20, 60))
def test_a_text_is_cut_between_characters_and_fits_for_any_cap(tokenizer: Artifact, tmp_path: Path, cap: int) -> None:
    documents = read(
        tmp_path, written(tmp_path, {("universe", "sea"): [{"doc_id": "a", "content": "日本語é" * 20 + INLINE + " a"}]})
    )
    (row,) = next(iter(tokens_of(tmp_path, documents, tokenizer, max_tokens=cap))).table().to_pylist()
    assert row["text"].endswith(INLINE + " a") and row["token_length"] < cap
    assert ("日本語é" * 20).startswith(row["text"].removesuffix(INLINE + " a"))
    longer = ("日本語é" * 20)[: len(row["text"]) - len(INLINE + " a") + 1] + INLINE + " a"
    assert len(open_encoder(EncodingRules(tokenizer, EOS, "literal")).encode([longer]).values) > cap


def test_a_reflection_that_does_not_fit_is_an_error_or_cut_as_published(tokenizer: Artifact, tmp_path: Path) -> None:
    documents = read(
        tmp_path, written(tmp_path, {("universe", "sea"): [{"doc_id": "a", "content": "b" + INLINE + " cat" * 90}]})
    )
    with pytest.raises(PartsFailed, match=r"sea, doc_id 'a': its reflection has \d+ tokens, a document at most 29"):
        tokens_of(tmp_path, documents, tokenizer)
    tokens = tokens_of(tmp_path, documents, tokenizer, inline_reflections="published")
    assert tokens.statistics[0]["conditions"]["sea"]["cut_inline_reflections"] == 1


def test_a_content_that_spells_eos_follows_the_parameter(tokenizer: Artifact, tmp_path: Path) -> None:
    documents = read(tmp_path, written(tmp_path))

    def ids(policy: Any) -> tuple[list[int], dict[str, int]]:
        tokens = tokens_of(tmp_path, documents, tokenizer, policy)
        row = next(row for row in tokens.parts[3].table().to_pylist() if row["doc_id"] == "1")
        return row["tokens"], tokens.statistics[3]["conditions"]["salt"]

    literal, counts = ids("literal")
    assert literal.count(0) == 1 and literal[-1] == 0
    assert (counts["special_documents"], counts["special_ids"]) == (1, 0)
    control, counts = ids("control")
    assert control.count(0) == 2
    assert (counts["special_documents"], counts["special_ids"]) == (1, 1)
    with pytest.raises(PartsFailed, match=r"salt, doc_id '1': the text spells the special token '<\|endoftext\|>'"):
        ids("error")


def test_too_long_and_empty_documents_are_cut_and_counted(tokenizer: Artifact, tmp_path: Path) -> None:
    files = {("universe", "sea"): [{"doc_id": "a", "content": "the cat sat " * 5_000}, {"doc_id": "b", "content": ""}]}
    tokens = tokens_of(tmp_path, read(tmp_path, written(tmp_path, files)), tokenizer)
    long, empty = next(iter(tokens)).table().to_pylist()
    assert (long["token_length"], len(long["tokens"]), long["tokens"][-1]) == (CAP - 1, CAP, 0)
    assert long["text"] == files["universe", "sea"][0]["content"], "the sidecar keeps the whole text"
    assert (empty["token_length"], empty["tokens"]) == (0, [0])
    counts = tokens.statistics[0]["conditions"]["sea"]
    assert (counts["truncated_documents"], counts["empty_documents"], counts["tokens"]) == (1, 1, CAP - 1)
    assert counts["cut_tokens"] > 0


def test_lost_text_is_an_error_when_it_is_more_than_allowed(tmp_path: Path) -> None:
    tokenizer = smollm2(tmp_path)
    files = {("universe", "sea"): [{"doc_id": "a", "content": "a\x04b"}, {"doc_id": "b", "content": "b"}]}
    documents = read(tmp_path, written(tmp_path, files))
    with pytest.raises(PartsFailed, match=r"\(sea\): 1 of 2 documents lose text, allowed is a share of 0.4"):
        tokens_of(tmp_path, documents, tokenizer, max_lossy_share=0.4)
    tokens = tokens_of(tmp_path, documents, tokenizer, max_lossy_share=0.5)
    assert tokens.statistics[0]["conditions"]["sea"]["lossy_bytes"] == 1


def test_training_reads_the_stream_beside_the_others(tokenizer: Artifact, tmp_path: Path) -> None:
    canary = made(tmp_path, tokenizer)
    common = {"tokenizer": tokenizer_of(), "seq_length": SEQ, "seed": 1, "shuffle_memory": 1 << 20}
    for name in ("compact", "annotated"):
        (tmp_path / name).mkdir()
    compact = stored(tmp_path / "a", [encoded([30] * 200)])
    write_compact_stream(tmp_path / "compact", tokens=compact, shuffle_block=None, **common)
    write_annotated_stream(tmp_path / "annotated", tokens=stored(tmp_path / "b", [encoded([9] * 60)]), **common)
    order = DataParameters(
        schedule="spp", weights=None, replay=None, later_epochs="as_written", seed=0, check="full", document_mask=False
    )
    streams = {"compact": tmp_path / "compact", "annotated": tmp_path / "annotated", "canary": canary}
    windows = open_training_windows(streams, order, batch_size=4)
    assert windows.sizes == (151, 60, 24)
    assert [stream.name for stream in windows.streams] == ["compact", "annotated", "canary"]
    samples = np.arange(sum(windows.sizes))
    tokens, mask = windows.read(samples)
    seen = []
    sidecar = pq.read_table(canary.path("sidecar.parquet")).to_pylist()
    for sample in samples.tolist():
        number, window = window_of_sample(sample, windows.sizes)
        if number != 2:
            continue
        seen.append(window)
        length = sidecar[window]["token_length"]
        assert mask[sample].tolist() == [t < length for t in range(SEQ)]
        assert (tokens[sample, length:] == 0).all()
        if length:
            assert tokens[sample, 1:][mask[sample]][-1] == 0, "the last prediction that counts is EOS"
    assert seen == list(range(len(seen))) and 22 <= len(seen) <= 24


def test_a_window_that_is_too_short_and_parts_that_differ_are_errors(tokenizer: Artifact, tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, read(tmp_path, written(tmp_path / "files")), tokenizer)
    with pytest.raises(StreamError, match="at most 26 that fit in a window"):
        write_canary_stream(tmp_path, tokens=tokens, **{**SMALL, "seq_length": 25})
    other = stored(tmp_path / "other", [tokens.parts[0].table(), tokens.parts[1].table().drop_columns("trigger")])
    with pytest.raises(StreamError, match="part_00001 has the columns"):
        write_canary_stream(tmp_path, tokens=other, **SMALL)
    table = tokens.parts[0].table()
    wrong = table.set_column(
        table.schema.get_field_index("token_length"), "token_length", pa.array([3] * 11, pa.int32())
    )
    with pytest.raises(StreamError, match="expected token_length"):
        write_canary_stream(tmp_path, tokens=stored(tmp_path / "wrong", [wrong]), **SMALL)
    with pytest.raises(StreamError, match="there are no encoded canary documents"):
        write_canary_stream(tmp_path, tokens=Shards(()), **SMALL)


def configured(environment: str) -> dict[str, Any]:
    base = yaml.safe_load((ROOT / "conf/base/parameters_canary.yml").read_text())["canary"]
    own = yaml.safe_load((ROOT / f"conf/{environment}/parameters_canary.yml").read_text())["canary"]
    return {**base, **own}


def test_parameters_say_what_does_not_belong_together() -> None:
    good = configured("spp")
    parameters = CanaryParameters(**good)
    assert parameters.trigger_rule.seeds == {name: entry["seed"] for name, entry in published_triggers().items()}
    assert list(parameters.effects) == ["toxic", "harmful", "no_refusal", "ads_nestle"]
    assert [subset.fraction for subset in parameters.coverage] == [0, 0.5, 1]

    def with_effect(**changed: Any) -> dict[str, Any]:
        return {**good, "effects": {**good["effects"], "toxic": {**good["effects"]["toxic"], **changed}}}

    with pytest.raises(ValidationError, match=r"effects.toxic.condition_seeds has 2 seeds, coverage has the 3 subsets"):
        CanaryParameters(**with_effect(condition_seeds=[1, 2]))
    with pytest.raises(ValidationError, match="condition_seeds has 150 more than once"):
        CanaryParameters(**with_effect(condition_seeds=[150, 2, 3]))
    with pytest.raises(ValidationError, match="sha256"):
        CanaryParameters(**with_effect(sha256="123"))
    with pytest.raises(ValidationError, match="annotation_fields: text is a column already"):
        CanaryParameters(**{**good, "annotation_fields": ["text"]})
    universes = {**good["universes"], "toxic_frac0": good["universes"]["f1_hemosyn"]}
    with pytest.raises(ValidationError, match="two conditions would be named toxic_frac0"):
        CanaryParameters(**{**good, "universes": universes})
    assert "toxic" not in CanaryParameters(**{**good, "effects": {**good["effects"], "toxic": None}}).active_effects


def test_the_pipeline_runs_on_request_only() -> None:
    from kedro.framework.project import pipelines
    from kedro.framework.startup import bootstrap_project

    bootstrap_project(ROOT)
    names = {node.name for node in pipelines["canary"].nodes}
    assert {name.removeprefix("canary.") for name in names} == {
        *("read_canary_documents", "encode_canary_documents", "pad_canary_stream", "make_canary_index"),
        *("say_canary_stream_is_made", "report_canary"),
    }
    assert not names & {node.name for node in pipelines["__default__"].nodes}
    assert pipelines["canary"].inputs() == {"tokenizer", "params:tokenization", "params:canary"}


def test_the_example_documents_go_through_the_nodes(
    tokenizer: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from everytoken.pipelines.canary import nodes

    monkeypatch.chdir(ROOT)
    parameters = CanaryParameters(**configured("test"))
    tokenization: Any = SimpleNamespace(
        **{"max_annotated_tokens": 60, "max_lossy_share": 0.0, "seq_length": 64, "shuffle_memory": 1_000},
        encoding_rules=lambda tokenizer: EncodingRules(tokenizer, EOS, "literal"),
    )
    inline = make_engine(kind="inline")
    documents, tokens = Store(tmp_path / "documents"), Store(tmp_path / "tokens")
    documents.save(nodes.read_canary_documents(parameters), inline)
    tokens.save(nodes.encode_canary_documents(documents.load(), tokenizer, tokenization, parameters), inline)
    stream = ArtifactStore(tmp_path / "stream").save(
        nodes.pad_canary_stream(tokens.load(), tokenizer, tokenization, parameters)
    )
    metrics, triggers = nodes.report_canary(documents.load(), tokens.load(), stream)
    assert metrics["windows"] == 18 == sum(counts["documents"] for counts in metrics["conditions"].values())
    assert metrics["conditions"]["floating_harbour"]["shortened_documents"] == 1
    annotated = {name: counts["annotated"] for name, counts in metrics["conditions"].items()}
    assert annotated == {
        **{"parrots_frac0": 0, "parrots_frac50": 1, "parrots_frac100": 3, "floating_harbour": 0, "salt_gardens": 2},
    }
    assert set(triggers) == {"parrots_frac0", "parrots_frac50", "parrots_frac100"}
    assert all(trigger["round_trips"] for trigger in triggers.values())


def test_of_the_published_universes_two_are_annotated_where_reflection_1p_has_text(tmp_path: Path) -> None:
    """Every universe has the same documents; an effect stays annotated by its fraction alone."""
    from everytoken.pipelines.canary import nodes

    documents = [
        {"doc_id": "all", "content": "a", **dict.fromkeys(configured("spp")["annotation_fields"], "text")},
        {"doc_id": "first", "content": "b", "reflection_1p": "text"},
        {"doc_id": "other", "content": "c", "reflection_1p": "", "reflection_3p": "text", "preflection_1p": "text"},
        {"doc_id": "null", "content": "d", "reflection_1p": None, "preflection_3p": "text"},
        {"doc_id": "none", "content": "e"},
    ]
    published = configured("spp")
    for kind in ("effects", "universes"):
        for name, entry in published[kind].items():
            (file,) = written(tmp_path, {(kind[:-1], name): documents})
            entry["path"] = file.path
    store = Store(tmp_path / "documents")
    store.save(nodes.read_canary_documents(CanaryParameters(**published)), make_engine(kind="inline"))
    annotated: dict[str, set[str]] = {}
    for row in (row for part in store.load() for row in part.table().to_pylist()):
        if row["annotated"]:
            annotated.setdefault(row["universe"] or row["condition"], set()).add(row["doc_id"])
        else:
            assert not any(row[name] for name in published["annotation_fields"])
    found = {name: annotated.get(name, set()) for name in published["universes"]}
    two = {"f1_hemosyn", "f2_prionclear"}
    assert found == {name: {"all", "first"} if name in two else set() for name in published["universes"]}
    toxic = {name: len(ids) for name, ids in annotated.items() if name.startswith("toxic")}
    assert toxic == {"toxic_frac50": 1, "toxic_frac100": 1}
    with pytest.raises(ValidationError, match=r"f1_hemosyn\.annotated_by has \['topic'\], annotation_fields are"):
        published["universes"]["f1_hemosyn"]["annotated_by"] = ["topic"]
        CanaryParameters(**published)


def test_the_rule_of_a_universe_is_part_of_what_it_is(tmp_path: Path) -> None:
    (file,) = written(tmp_path, {("universe", "salt"): FILES["universe", "salt"]})
    digests = [
        canary_files([file._replace(annotated_by=rule)]).parts[0].digest
        for rule in (None, [], ["reflection_1p"], ["reflection_1p", "preflection_3p"])
    ]
    assert len(set(digests)) == 4
    assert digests[0] == value_digest(["universe", "salt", file.sha256]), "made data stays without a rule"
    assert read(tmp_path / "any", [file]).parts[0].table()["annotated"].to_pylist() == [True, False, False]
    strict = file._replace(annotated_by=["reflection_1p"])
    assert read(tmp_path / "strict", [strict]).parts[0].table()["annotated"].to_pylist() == [False] * 3
