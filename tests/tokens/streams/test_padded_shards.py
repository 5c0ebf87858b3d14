"""Raw shards that end at documents, and shards of a given number: every byte, what is counted, what is refused."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.parameters import PackingParameters
from everytoken.shards import ArtifactStore, Inline, WorkerProcesses, plan_artifact
from everytoken.tokens import StreamError
from everytoken.tokens.checks import verify
from everytoken.tokens.order import DataParameters, open_training_windows
from everytoken.tokens.streams import open_tokens, path_of, write_raw_shards
from tests.shards.folders import content
from tests.tokens.packing_inputs import MIXED, Documents, datasets, pack, tables, tokenizer
from tests.tokens.streams.test_raw_shards import PARTS, by_the_book, write


def filled(
    documents: list[list[int]], size: int, whole: bool, n_shards: int | None
) -> tuple[list[list[int]], int, int]:
    """Shards by the rule, one document after the other; padding of all, and documents in them."""
    shards: list[list[int]] = []
    current: list[int] = []
    padding = held = 0
    for document in documents:
        if n_shards is not None and len(shards) == n_shards:
            break
        if whole and len(current) + len(document) > size:
            padding += size - len(current)
            shards.append(current + [0] * (size - len(current)))
            current = []
        if n_shards is not None and len(shards) == n_shards:
            break
        held += 1
        current = current + document
        while len(current) >= size and (n_shards is None or len(shards) < n_shards):
            shards.append(current[:size])
            current = current[size:]
    if n_shards is None and current:
        shards.append(current)
    return shards, padding, held


@settings(deadline=None, max_examples=40)
@given(
    st.lists(PARTS, min_size=1, max_size=2),
    st.integers(10, 40),
    st.booleans(),
    st.none() | st.integers(1, 5),
    st.integers(1, 9),
)
def test_shards_hold_whole_documents_and_what_is_said(
    parts: list[list[Documents]], size: int, whole: bool, n_shards: int | None, batch_rows: int
) -> None:
    made = tables(parts)
    documents = [document for _, _, document in by_the_book(made, 3)]
    expected, padding, held = filled(documents, size, whole, n_shards)
    changed = {"shard_size_tokens": size, "cross_document_boundary": not whole, "n_shards": n_shards}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if n_shards is not None and len(expected) < n_shards:
            with pytest.raises(StreamError, match=rf"packing.n_shards is {n_shards:,}, of {size:,} tokens each"):
                write(folder, made, batch_rows, **changed)
            assert not (folder / "out/manifest.json").exists()
            return
        statistics = write(folder, made, batch_rows, **changed)
        manifest = json.loads((folder / "out/manifest.json").read_text())
        shards = [np.fromfile(path, "<u4").tolist() for path in sorted((folder / "out").glob("*.bin"))]
        checks = verify(folder / "out", "full")
        assert [check.fault for check in checks if not check.ok] == []
    assert shards == expected
    tokens = sum(map(len, expected))
    assert (manifest["tokens"], manifest["documents"]) == (statistics["tokens"], statistics["documents"])
    assert (manifest["tokens"], manifest["documents"]) == (tokens, held)
    assert manifest.get("padding_tokens", 0) == statistics.get("padding_tokens", 0) == padding
    assert sum(shard.get("padding_tokens", 0) for shard in manifest["shards"]) == padding
    assert sum(source["tokens"] for source in manifest["by_source"].values()) == tokens - padding
    assert sum(source["documents"] for source in manifest["by_source"].values()) == held
    if n_shards is not None:
        left = manifest["left_out"]
        assert left == statistics["left_out"]
        assert left["documents"] == len(documents) - held
        assert left["tokens"] == sum(map(len, documents)) - (tokens - padding)
        assert left["cut_documents"] == (sum(map(len, documents[:held])) > tokens - padding)


def test_true_and_null_are_recorded_nowhere(tmp_path: Path) -> None:
    given = {"seed": 1, "shard_size_tokens": 5, "shuffle_memory": 1}
    assert PackingParameters(**given, cross_document_boundary=True).cutting == {}
    assert PackingParameters(**given).cutting == {"cross_document_boundary": False}
    assert PackingParameters(**given, n_shards=2).cutting == {"cross_document_boundary": False, "n_shards": 2}
    manifest = json.loads((path_of(pack(tmp_path)) / "manifest.json").read_text())
    assert not {"padding_tokens", "left_out", "cross_document_boundary"} & set(manifest)


def test_a_document_longer_than_a_shard_is_named_before_a_byte_is_written(tmp_path: Path) -> None:
    made = tables([[[("web", 3), ("web", 60), ("web", 70)]]])
    with pytest.raises(StreamError) as error:
        write(tmp_path, made, cross_document_boundary=False, shard_size_tokens=60)
    assert str(error.value) == (
        "part_00000 row 1 (id '0-1', source 'web', shard_index 0, row 1) has 61 tokens with EOS, and a shard 60 "
        "(packing.shard_size_tokens): no shard holds it whole. Raise packing.shard_size_tokens, or set "
        "packing.cross_document_boundary to true"
    )
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("whole", "full", "begun", "padding"), [(False, 1, 8, 0), (True, 1, 12, 4)], ids=["crossing", "padded"]
)
def test_too_few_tokens_say_how_many_are_missing(
    tmp_path: Path, whole: bool, full: int, begun: int, padding: int
) -> None:
    made = tables([[[("web", 7), ("web", 7), ("web", 7), ("web", 3)]]])  # 28 tokens with EOS
    with pytest.raises(StreamError) as error:
        write(tmp_path, made, shard_size_tokens=20, n_shards=3, seed=1, cross_document_boundary=not whole)
    assert str(error.value) == (
        f"packing.n_shards is 3, of 20 tokens each, and the documents fill {full} and {begun} tokens of the next, "
        f"{padding} of padding among them: {60 - 20 * full - begun} tokens are missing. Give more documents "
        "(ingestion.mixture.target_total_tokens, or more files), or lower packing.n_shards or packing.shard_size_tokens"
    )
    assert not list((tmp_path / "out").glob("*.json"))


def packed(folder: Path, **changed: Any) -> Any:
    return pack(folder, shard_size_tokens=60, cross_document_boundary=False, **changed)


def test_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    made = []
    for workers in (1, 2, 5):
        folder = tmp_path / str(workers)
        planned = plan_artifact(
            write_raw_shards,
            tokens=datasets(folder / "in", tables(MIXED), 17),
            tokenizer=tokenizer(folder / "tokenizer"),
            shard_size_tokens=60,
            dtype="uint32",
            seed=3,
            shuffle_memory=5000,
            cross_document_boundary=False,
            n_shards=7,
        )
        engine = Inline() if workers == 1 else WorkerProcesses(workers)
        ArtifactStore(folder / "out").save(planned, engine)
        made.append(content(folder / "out"))
    assert made[0] == made[1] == made[2]


def test_padding_counts_in_no_loss_and_everything_else_does(tmp_path: Path) -> None:
    made = packed(tmp_path)
    folder = path_of(made)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["padding_tokens"] > 50
    is_padding = np.concatenate(
        [np.arange(shard["tokens"]) >= shard["tokens"] - shard["padding_tokens"] for shard in manifest["shards"]]
    )
    data = DataParameters(first_epoch="as_written", later_epochs="as_written", seed=1)
    windows = open_training_windows({"raw_shards": made}, data, 4, seq_length=16)
    count = (len(is_padding) - 1) // 16
    tokens, mask = windows.read(np.arange(count))
    flat = open_tokens(folder)[:]
    for number in range(count):
        targets = slice(number * 16 + 1, number * 16 + 17)
        assert np.array_equal(tokens[number, 1:], flat[targets])
        assert np.array_equal(mask[number], ~is_padding[targets])
    assert (tokens[:, 1:][~mask] == manifest["eos_id"]).all() and not mask.all() and mask.any()
    one = open_training_windows({"shard": folder / "shard_00001.bin"}, data, 1, seq_length=59)
    padding = manifest["shards"][1]["padding_tokens"]
    assert one.read(np.array([0]))[1][0].tolist() == [True] * (59 - padding) + [False] * padding


def test_shards_without_padding_have_a_mask_of_ones(tmp_path: Path) -> None:
    data = DataParameters(first_epoch="as_written", later_epochs="as_written", seed=1)
    windows = open_training_windows({"raw_shards": pack(tmp_path)}, data, 4, seq_length=16)
    assert windows.read(np.arange(20))[1].all()


@pytest.mark.parametrize("place", ["padding", "before"])
def test_a_changed_token_of_padding_is_named(tmp_path: Path, place: str) -> None:
    folder = path_of(packed(tmp_path))
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    number = next(i for i, shard in enumerate(manifest["shards"]) if shard["padding_tokens"] > 1)
    shard = manifest["shards"][number]
    position = shard["tokens"] - (1 if place == "padding" else shard["padding_tokens"] + 1)
    file = folder / shard["name"]
    ids = np.fromfile(file, "<u4")
    ids[position] = 5
    ids.tofile(file)
    faults = [check.fault for check in verify(folder, "full") if not check.ok]
    assert any(file.name in fault for fault in faults)
    shard["sha256"], shard["eos_tokens"] = hashlib.sha256(file.read_bytes()).hexdigest(), shard["eos_tokens"] - 1
    path.write_text(json.dumps(manifest))
    (folder / "ledger.json").unlink()
    fault = next(check.fault for check in verify(folder, "full") if not check.ok)
    assert f"{file.name} position {position:,}" in fault and fault.endswith("found 5")
    assert ("padding 0" if place == "padding" else "EOS 0 of the last document") in fault


def test_a_count_of_padding_that_was_edited_is_named(tmp_path: Path) -> None:
    path = path_of(packed(tmp_path)) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["padding_tokens"] += 1
    path.write_text(json.dumps(manifest))
    faults = [check.fault for check in verify(path.parent, "sizes") if not check.ok]
    assert any("tokens of padding of all shards are" in fault for fault in faults), faults


def test_exactly_so_many_shards(tmp_path: Path) -> None:
    made = packed(tmp_path, n_shards=7)
    sizes = [path.stat().st_size for path in sorted(path_of(made).glob("*.bin"))]
    assert sizes == [240] * 7
    assert made.statistics["left_out"]["documents"] > 0
    assert sum(len(part) for dataset in MIXED for part in dataset) == (
        made.statistics["documents"] + made.statistics["left_out"]["documents"]
    )
