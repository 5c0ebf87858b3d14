"""Raw shards: every document once, every source in proportion in every shard, read back as one sequence."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.parameters import PackingParameters
from everytoken.seeds import numpy_generator
from everytoken.shards import ArtifactStore, RangeMap
from everytoken.tokens import StreamError, WindowWriter, write_annotated_stream
from everytoken.tokens.checks.integrity import require, verify
from everytoken.tokens.streams import raw_shards as module
from everytoken.tokens.streams.flat_tokens import FlatTokens, open_tokens
from everytoken.tokens.streams.raw_shards import most_tokens_off_share, write_raw_shards
from everytoken.tokens.streams.strands import places
from tests.memory import traced_peak
from tests.shards.folders import content
from tests.tokens.corpora import encoded, stored, tokenizer_of
from tests.tokens.packing_inputs import MIXED, Documents, datasets, pack, table, tables, tokenizer

ROOT = Path(__file__).resolve().parents[3]
SOURCES = st.sampled_from(["web", "code", "a", "é"])
PARTS = st.lists(st.lists(st.tuples(SOURCES, st.integers(0, 9)), max_size=14), min_size=1, max_size=3)


def by_the_book(made: list[list[pa.Table]], seed: int) -> list[tuple[str, int, list[int]]]:
    """The order by its meaning: again and again the strand of which the smallest share is written."""
    strands: dict[tuple[str, int], list[list[int]]] = {}
    for dataset, parts in enumerate(made):
        for index, part in enumerate(parts):
            rows = part.to_pylist()
            for row in numpy_generator(seed, dataset, index).permutation(len(rows)):
                strands.setdefault((rows[row]["source"], dataset), []).append(rows[row]["tokens"])
    total = {strand: sum(map(len, documents)) for strand, documents in strands.items()}
    written = dict.fromkeys(strands, 0)
    ordered = []
    while left := [strand for strand, documents in strands.items() if documents]:
        strand = min(left, key=lambda strand: ((written[strand] << 60) // total[strand], strand))
        document = strands[strand].pop(0)
        written[strand] += len(document)
        ordered.append((*strand, document))
    return ordered


def write(folder: Path, made: list[list[pa.Table]], batch_rows: int = 1000, **changed: Any) -> dict[str, Any]:
    (folder / "out").mkdir()
    given: dict[str, Any] = {"shard_size_tokens": 50, "dtype": "uint32", "seed": 3, "shuffle_memory": 5000, **changed}
    given.setdefault("tokenizer", tokenizer(folder / "tokenizer"))
    built = write_raw_shards(folder / "out", tokens=datasets(folder / "in", made, batch_rows), **given)
    return dict(built.statistics)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(PARTS, min_size=1, max_size=2),
    st.integers(0, 9),
    st.integers(1, 60),
    st.sampled_from(["uint16", "uint32"]),
    st.sampled_from([pa.uint16(), pa.uint32()]),
    st.sampled_from([1, 300, 1 << 30]),
    st.integers(1, 9),
)
def test_shards_are_those_of_the_book_for_any_memory_and_batches(
    parts: list[list[Documents]], seed: int, size: int, dtype: str, kind: pa.DataType, memory: int, batch_rows: int
) -> None:
    made = tables(parts, kind)
    ordered = by_the_book(made, seed)
    expected = [token for _, _, document in ordered for token in document]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        statistics = write(
            folder, made, batch_rows, seed=seed, shard_size_tokens=size, dtype=dtype, shuffle_memory=memory
        )
        manifest = json.loads((folder / "out/manifest.json").read_text())
        count = -(-len(expected) // size)
        names = [f"shard_{i:05d}.bin" for i in range(count)]
        assert sorted(path.name for path in (folder / "out").iterdir()) == ["manifest.json", *names]
        data = [(folder / "out" / name).read_bytes() for name in names]
    assert b"".join(data) == np.array(expected, f"<u{int(dtype[4:]) // 8}").tobytes()
    owner = [source for source, _, document in ordered for _ in document]
    for number, shard in enumerate(manifest["shards"]):
        ids, whose = (row[number * size : (number + 1) * size] for row in (expected, owner))
        assert shard == {
            "name": names[number],
            "tokens": len(ids),
            "bytes": len(data[number]),
            "sha256": hashlib.sha256(data[number]).hexdigest(),
            "eos_tokens": ids.count(0),
            "tokens_by_source": {source: whose.count(source) for source in sorted(set(owner))},
        }
    assert (manifest["tokens"], manifest["documents"]) == (len(expected), len(ordered))
    assert manifest["by_source"] == statistics["by_source"]
    assert statistics["by_source"] == {
        source: {"tokens": owner.count(source), "documents": sum(one == source for one, _, _ in ordered)}
        for source in sorted(set(owner))
    }
    assert statistics["shards"] == count


def test_a_shard_of_no_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="shard_size_tokens is 0; expected at least 1 token"):
        write(tmp_path, [[table([("web", 3)], 0)]], shard_size_tokens=0)


def test_wherever_shards_are_cut_no_source_is_ahead_of_another_by_more_than_a_document(tmp_path: Path) -> None:
    """Sources of very different sizes; what the first shards hold of each is in proportion, at every border."""
    sizes = {"web": 900, "code": 90, "rare": 9}
    documents = [(source, (i * 13) % 30) for source, count in sizes.items() for i in range(count)]
    write(tmp_path, [[table(documents, 0)]], shard_size_tokens=97, tokenizer=tokenizer(tmp_path / "t", 2000))
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    total = {source: held["tokens"] for source, held in manifest["by_source"].items()}
    written = dict.fromkeys(total, 0)
    for shard in manifest["shards"]:
        for source, count in shard["tokens_by_source"].items():
            written[source] += count
        for one in total:
            for other in total:  # the shares of `one` and `other`, times both totals
                assert written[one] * total[other] - written[other] * total[one] <= 30 * total[other]
    assert written == total
    assert len(manifest["shards"]) > 100


def test_the_figure_of_the_largest_deviation_is_that_of_the_shards(tmp_path: Path) -> None:
    made = pack(tmp_path)
    manifest = json.loads(made.path("manifest.json").read_text())
    off = [
        abs(shard["tokens_by_source"][source] - shard["tokens"] * held["tokens"] / manifest["tokens"])
        for shard in manifest["shards"]
        for source, held in manifest["by_source"].items()
    ]
    assert len(manifest["shards"]) > 5
    assert made.statistics["most_tokens_off_share"] == int(max(off)) <= 2 * 23


@given(st.integers(1, (1 << 43) - 1), st.lists(st.floats(0, 1), min_size=1))
def test_places_are_binary_digits_without_a_float(total: int, shares: list[float]) -> None:
    starts = [min(total, int(share * total)) for share in shares]
    assert places(np.array(starts), total).tolist() == [(start << 60) // total for start in starts]


def test_a_second_run_makes_the_same_bytes_and_the_seed_changes_them(tmp_path: Path) -> None:
    first = pack(tmp_path / "a")
    assert pack(tmp_path / "b", shuffle_memory=1 << 28).root_digest == first.root_digest
    assert pack(tmp_path / "c", seed=4).root_digest != first.root_digest


class Watched(RangeMap):
    """Looks at the disk after each range."""

    def __init__(self, folder: Path) -> None:
        object.__setattr__(self, "found", [])
        object.__setattr__(self, "folder", folder)

    found: list[tuple[str, int, int]]
    folder: Path

    def unless_small(self, size: int) -> RangeMap:
        return self

    def __call__(self, function: Any, ranges: Any) -> Any:
        for one in ranges:
            result = function(one)
            sizes = {kind: sum(path.stat().st_size for path in self.folder.rglob(kind)) for kind in ("*.ids", "*.bin")}
            self.found.append((one.name, sizes["*.ids"], sizes["*.bin"]))
            yield result


def test_ids_are_on_disk_once_while_shards_are_written(tmp_path: Path) -> None:
    sources = ("code", "web", "web")
    parts = [[(sources[i % 3], 7 * i % 20) for i in range(60 - 2 * part)] for part in range(9)]
    watched = Watched(tmp_path)
    write(tmp_path, tables([parts, parts[:4]]), shard_size_tokens=300, ranges=watched)
    total = sum(path.stat().st_size for path in tmp_path.rglob("*.bin"))
    shards = [(ids, written) for name, ids, written in watched.found if name.startswith("shard_")]
    assert len(shards) > 20
    assert max(ids + written for ids, written in shards) < 1.2 * total, "and of each strand what is left of a part"
    assert shards[-1][0] < 0.2 * total


def test_parts_behind_the_last_shard_are_not_read(tmp_path: Path) -> None:
    parts = [[("web", 7), ("code", 9)] * 10 for _ in range(8)]
    watched = Watched(tmp_path)
    made = tables([parts, parts[:2]])
    write(tmp_path, made, shard_size_tokens=100, n_shards=3, ranges=watched)
    ordered = [name for name, ids, _ in watched.found[10:] if name.startswith("part_")]
    assert ordered == ["part_00000", "part_00001", "part_00000"], "a sixth of 8 parts, and of 2"
    expected = [token for *_, document in by_the_book(made, 3) for token in document][:300]
    assert open_tokens(tmp_path / "out")[:].tolist() == expected


# ---- errors ----


def test_a_vocabulary_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    made = tables([[[("web", 3)]]], pa.uint32())
    with pytest.raises(StreamError, match="65,537 ids, uint16 holds 65,536"):
        write(tmp_path, made, dtype="uint16", tokenizer=tokenizer(tmp_path / "t", 65_537))
    assert list((tmp_path / "out").iterdir()) == []
    shutil.rmtree(tmp_path / "out")
    write(tmp_path, made, dtype="uint16", tokenizer=tokenizer(tmp_path / "t", 65_536))


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ((3, 0), "a document of 'web' holds id 4, outside the vocabulary of 3"),
        ((4, 0), "a document of 'web' holds id 4, outside the vocabulary of 4"),
        ((700, 5), "a document of 'web' ends in id 0, expected EOS 5"),
    ],
)
def test_documents_of_another_tokenizer_are_refused(tmp_path: Path, vocabulary: tuple[int, int], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        write(tmp_path, tables([[[("web", 6)]]]), tokenizer=tokenizer(tmp_path / "t", *vocabulary))
    assert list((tmp_path / "out").iterdir()) == []


def test_documents_that_are_not_what_they_say_are_named(tmp_path: Path) -> None:
    good = table([("web", 3), ("code", 4)], 0)
    lies = good.set_column(good.column_names.index("token_length"), "token_length", pa.array([3, 5], pa.int32()))
    with pytest.raises(StreamError, match=r"part_00001 row 1: 5 tokens, expected token_length \+ 1 = 6"):
        write(tmp_path, [[good, lies]])
    tokens = pa.array([good["tokens"][0].as_py(), None], good["tokens"].type)
    without = good.set_column(good.column_names.index("tokens"), "tokens", tokens)
    for length in (0, 4):
        said = pa.array([3, length], pa.int32())
        unsaid = without.set_column(good.column_names.index("token_length"), "token_length", said)
        shutil.rmtree(tmp_path / "out")
        message = rf"part_00000 row 1: 0 tokens, expected token_length \+ 1 = {length + 1}"
        with pytest.raises(StreamError, match=message):
            write(tmp_path, [[unsaid]])
    nameless = good.set_column(good.column_names.index("source"), "source", pa.array([None, "code"], pa.string()))
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(StreamError, match="a document has no source"):
        write(tmp_path, [[nameless]])


def test_a_disk_that_does_not_give_back_what_it_got_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[7] ^= 1
        path.write_bytes(data)

    monkeypatch.setattr(module, "_forget", damage)
    with pytest.raises(StreamError, match=r"shard_00000\.bin has SHA-256 \w+ when it is read again"):
        pack(tmp_path)
    assert not ArtifactStore(tmp_path / "raw_shards").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.tokens.packing_inputs import pack

def killed_at_the_second_shard(event, arguments):
    if event == "open" and str(arguments[0]).endswith("shard_00001.bin"):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(killed_at_the_second_shard)
pack(Path(sys.argv[1]), shard_size_tokens=20)
"""


@pytest.mark.sensitive
def test_killed_while_packing_leaves_nothing_and_the_next_run_makes_the_same_bytes(tmp_path: Path) -> None:
    undisturbed = pack(tmp_path / "calm", shard_size_tokens=20)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(tmp_path.glob(".raw_shards.*.tmp/shard_00000.bin")), "it was killed in the middle"
    assert not (tmp_path / "raw_shards").exists()
    assert pack(tmp_path, shard_size_tokens=20).root_digest == undisturbed.root_digest
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
    assert content(tmp_path / "raw_shards") == content(tmp_path / "calm/raw_shards")


# ---- reading ----


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(0, 12), max_size=5),
    st.integers(-40, 40) | st.none(),
    st.integers(-40, 40) | st.none(),
    st.sampled_from([None, 1, 2, 5, -1, -3]),
)
def test_slices_are_those_of_the_concatenation(
    sizes: list[int], start: int | None, stop: int | None, step: int | None
) -> None:
    everything = np.arange(sum(sizes), dtype="<u4") + 7
    tokens = FlatTokens(np.split(everything, np.cumsum(sizes))[: len(sizes)])
    assert len(tokens) == len(everything)
    found = tokens[start:stop:step]
    assert found.dtype == everything.dtype
    assert np.array_equal(found, everything[start:stop:step])
    for i in range(-len(everything), len(everything)):
        assert tokens[i] == everything[i]
    for i in (len(everything), -len(everything) - 1):
        with pytest.raises(IndexError):
            tokens[i]


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 12), max_size=5), st.integers(1, 14), st.lists(st.integers(0, 60)))
def test_windows_are_those_of_the_concatenation(sizes: list[int], seq_length: int, asked: list[int]) -> None:
    everything = np.arange(sum(sizes), dtype="<u2")
    windows = FlatTokens(np.split(everything, np.cumsum(sizes))[: len(sizes)]).windows(seq_length)
    expected = []
    for start in range(0, len(everything), seq_length):
        window = everything[start : start + seq_length + 1].tolist()
        if len(window) == seq_length + 1:
            expected.append(window)
    assert [window.tolist() for window in windows] == expected
    used = {token for window in expected for token in window}
    assert windows.remainder == len(everything) - len(used), "what is in no window is counted"
    numbers = [i % len(expected) for i in asked] if expected else []
    read = windows.read(np.array(numbers, np.int64))
    assert read.shape == (len(numbers), seq_length + 1)
    assert read.tolist() == [expected[i] for i in numbers]
    for bad in (-1, len(expected)):
        with pytest.raises(IndexError):
            windows.read(np.array([bad]))


def test_packed_shards_are_read_as_one_sequence(tmp_path: Path) -> None:
    made = pack(tmp_path)
    expected = [token for *_, document in by_the_book(tables(MIXED), 3) for token in document]
    for path in (made, tmp_path / "raw_shards", str(tmp_path / "raw_shards")):
        assert open_tokens(path)[:].tolist() == expected
    assert open_tokens(tmp_path / "raw_shards/shard_00001.bin")[:].tolist() == expected[500:1000]
    inputs = open_tokens(made).windows(64)[3]
    assert inputs[1:].tolist() == expected[3 * 64 + 1 : 4 * 64 + 1], "targets are the inputs, shifted by one"


def test_a_slice_inside_a_shard_is_a_view_and_nothing_is_read_to_open(tmp_path: Path) -> None:
    with (tmp_path / "raw.bin").open("wb") as file:
        file.truncate(4 << 40)  # a sparse file of 4 TiB: over 2**31 tokens and bytes
        file.seek((4 << 40) - 400)
        file.write(np.arange(100, dtype="<u4").tobytes())

    def look() -> tuple[bool, list[list[int]]]:
        tokens = open_tokens(tmp_path / "raw.bin", dtype="uint32")
        assert len(tokens) == 1 << 40
        last = tokens.windows(100)
        ends = [
            tokens[-3:],
            last.read(np.array([len(last) - 1]))[0, -3:],
            tokens[len(last) * 100 - 2 : len(last) * 100 + 1],
        ]
        return np.shares_memory(tokens[100:200], tokens.segments[0]), [end.tolist() for end in ends]

    (is_view, (end, last_window, last_tokens)), peak = traced_peak(look)
    assert is_view and end == [97, 98, 99] and last_window == last_tokens
    assert peak < 1 << 20


def test_megatron_streams_and_torch_tensors_are_told_by_content(tmp_path: Path) -> None:
    ids = np.arange(3 * 5, dtype=np.uint16).reshape(3, 5)
    with WindowWriter(tmp_path / "compact", 5, np.uint16) as writer:
        writer.write(ids)
    for name in ("", "compact", "compact.bin", "compact.idx"):
        tokens = open_tokens(tmp_path / name)
        assert (tokens.dtype, tokens[:].tolist()) == (np.uint16, ids.reshape(-1).tolist())
    (tmp_path / "torch").mkdir()
    for number, dtype in enumerate([torch.int64, torch.int64]):
        torch.save(torch.arange(6, dtype=dtype) + 6 * number, tmp_path / f"torch/shard_{number:05d}.bin")
    assert open_tokens(tmp_path / "torch")[:].tolist() == list(range(12)), "the layout that seed 000's trainer reads"
    one = open_tokens(tmp_path / "torch/shard_00001.bin")
    assert (one.dtype, one[:].tolist()) == (np.int64, list(range(6, 12)))
    assert open_tokens(tmp_path / "torch").windows(4).read(np.array([0, 1])).tolist() == [
        [0, 1, 2, 3, 4],
        [4, 5, 6, 7, 8],
    ]


def test_a_saved_tensor_is_mapped_and_not_loaded(tmp_path: Path) -> None:
    torch.save(torch.zeros(20_000_000, dtype=torch.int64), tmp_path / "tokens.pt")
    script = (
        f"import resource; from everytoken.tokens.streams.flat_tokens import open_tokens; import torch\n"
        f"before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"assert open_tokens({str(tmp_path / 'tokens.pt')!r}).windows(2048)[5].sum() == 0\n"
        f"print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 40_000, "kB: the tensor has 160 MB"


def test_shards_that_are_packed_again_leave_open_ones_as_they_were(tmp_path: Path) -> None:
    tokens = open_tokens(pack(tmp_path))
    before = tokens[:].copy()
    again = open_tokens(pack(tmp_path, seed=9))
    assert np.array_equal(tokens[:], before)
    assert not np.array_equal(again[:], before)


class Arbitrary:
    """Something that only unpickling code could make."""


def test_nothing_is_made_up(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match=r"there are no tokens at .*pretrain_data\.bin: no folder, no file"):
        open_tokens(tmp_path / "pretrain_data.bin")
    np.arange(9, dtype="<u4").tofile(tmp_path / "raw.bin")
    with pytest.raises(StreamError, match=r"no manifest.json beside it.*dtype='uint32'"):
        open_tokens(tmp_path / "raw.bin")
    assert open_tokens(tmp_path / "raw.bin", dtype="uint32")[:].tolist() == list(range(9))
    (tmp_path / "odd.bin").write_bytes(b"abc")
    with pytest.raises(StreamError, match="no whole number of uint16 ids"):
        open_tokens(tmp_path / "odd.bin", dtype="uint16")
    with pytest.raises(StreamError, match="raw ids are uint16 or uint32"):
        open_tokens(tmp_path / "raw.bin", dtype="int64")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StreamError, match=r"holds no tokens; expected manifest\.json and shard_00000\.bin"):
        open_tokens(tmp_path / "empty")
    for name, value, message in (
        ("floats.pt", torch.zeros(3), "expected 1-D integers"),
        ("square.pt", torch.zeros((2, 2), dtype=torch.int64), r"torch.int64 \(2, 2\), expected 1-D"),
        ("list.pt", [torch.zeros(3)], "holds a list"),
        ("object.pt", Arbitrary(), "cannot be loaded as a tensor"),
    ):
        torch.save(value, tmp_path / name)
        with pytest.raises(StreamError, match=message):
            open_tokens(tmp_path / name)
    with pytest.raises(StreamError, match="seq_length is 0"):
        open_tokens(tmp_path / "raw.bin", dtype="uint32").windows(0)


def test_padding_is_never_read_as_content_unless_asked_for(tmp_path: Path) -> None:
    tokens = stored(tmp_path / "in", [encoded([3, 1])])
    (tmp_path / "out").mkdir()
    common = {"tokenizer": tokenizer_of(), "seq_length": 4, "seed": 0, "shuffle_memory": 1 << 20}
    write_annotated_stream(tmp_path / "out", tokens=tokens, **common)
    with pytest.raises(StreamError, match="its padding would be content"):
        open_tokens(tmp_path / "out")
    assert len(open_tokens(tmp_path / "out", allow_padding=True)) == 10


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "shard_00001.bin").unlink(), r"shard_00001\.bin is missing"),
        (lambda folder: os.truncate(folder / "shard_00001.bin", 100), r"shard_00001\.bin is truncated: 100 bytes"),
        (lambda folder: shutil.copy(folder / "shard_00000.bin", folder / "shard_00099.bin"), "says nothing"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "is no manifest of raw shards"),
        (lambda folder: (folder / "manifest.json").write_text('{"format": "x/2"}'), "format 'x/2'"),
    ],
)
def test_damaged_shards_are_refused_and_named(tmp_path: Path, damage: Any, message: str) -> None:
    pack(tmp_path)
    damage(tmp_path / "raw_shards")
    with pytest.raises(StreamError, match=message):
        open_tokens(tmp_path / "raw_shards")


def test_the_manifest_names_the_datasets_by_the_numbers_of_the_order(tmp_path: Path) -> None:
    made = pack(tmp_path, names=["first", "second"])
    manifest = json.loads(made.path("manifest.json").read_text())
    stores = datasets(tmp_path / "again", tables(MIXED), 17)
    assert [(one["dataset"], one["name"], one["digest"]) for one in manifest["datasets"]] == [
        (number, name, stores[number].root_digest) for number, name in enumerate(("first", "second"))
    ]
    assert [one["documents"] for one in manifest["datasets"]] == [shards.rows for shards in stores]
    assert sum(one["tokens"] for one in manifest["datasets"]) == manifest["tokens"]
    require(verify(tmp_path / "raw_shards", "full"))
    manifest["datasets"][0]["tokens"] += 1
    made.path("manifest.json").write_text(json.dumps(manifest))
    (fault,) = [check.fault for check in verify(tmp_path / "raw_shards", "sizes") if check.name == "manifest"]
    assert "tokens of all datasets" in fault


def test_a_name_too_few_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match=r"\['one'\] are 1 names, and 2 datasets are given"):
        pack(tmp_path, names=["one"])


def test_the_pipeline_names_both_splits_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Document addresses of raw shards have the numbers: the index and the manifest must mean the same by them."""
    from everytoken.pipelines.packing.nodes import make_raw_shards_index, pack_raw_shards

    first, second = datasets(tmp_path / "in", tables(MIXED))
    parameters = PackingParameters(shard_size_tokens=500, dtype="uint32", seed=3, shuffle_memory=5000)
    planned = pack_raw_shards(first, second, tokenizer(tmp_path / "tokenizer"), parameters)
    made = ArtifactStore(tmp_path / "raw").save(planned)
    assert planned.recipe is not None
    names = planned.recipe.parameters["names"]
    index = make_raw_shards_index(first, second, made, parameters)
    assert index.recipe is not None and list(names) == list(index.recipe.parameters["order"])


def test_nothing_is_off_where_there_is_nothing() -> None:
    assert most_tokens_off_share({"tokens": 0, "shards": [], "by_source": {}}) == 0
