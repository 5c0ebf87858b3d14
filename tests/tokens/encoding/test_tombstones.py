"""A document that is taken down leaves a tombstone: no token of it stays, and every other token stays in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everytoken.seeds import numpy_generator
from everytoken.shards import (
    Artifact,
    ArtifactStore,
    Engine,
    Inline,
    Shards,
    Store,
    WorkerProcesses,
    plan_artifact,
    value_digest,
)
from everytoken.tokens import DataParameters, EncodingRules, StreamError, TokenizerError, encode_part, open_indexed
from everytoken.tokens import open_training_windows as open_windows
from everytoken.tokens.chat.windows import write_chat_windows
from everytoken.tokens.checks.integrity import verify
from everytoken.tokens.encoding.recheck import Recheck
from everytoken.tokens.encoding.report import tokenization_summary
from everytoken.tokens.encoding.tombstones import tombstones_of
from everytoken.tokens.engines.certificate import certify_engines
from everytoken.tokens.engines.registry import REFERENCE, reference_version
from everytoken.tokens.streams.loss_mask import LOSS_MASK_FILE, check_masks, open_loss_mask, pack_mask, unpack_mask
from everytoken.tokens.streams.packed import SIDECAR, write_annotated_stream, write_compact_stream
from everytoken.tokens.streams.raw_shards import write_raw_shards
from tests.tokens.chat.test_chat_windows import parameters as chats
from tests.tokens.corpora import EOS, documents, file_bytes, run, small_tokenizer, stored

SEQ, CAP, BLOCK, SEED = 16, 12, 7, 5
WINDOW = SEQ + 1
TEXTS = [[f"part {part} document {i} {'says more ' * (i % 6)}" for i in range(30)] for part in range(3)]
NOTHING: dict[int, list[list[Any]]] = {}
# part -> addresses: single documents; and nearly all of a part, so that windows hold nothing else
SOME = {1: [["web", 1, row, "asked"] for row in (4, 10, 16, 22)]}
MANY = SOME | {2: [["web" if row % 2 == 0 else "code", 2, row, "asked"] for row in range(27)]}


class Made(NamedTuple):
    folder: Path
    tokens: dict[str, Shards]
    compact: Artifact
    annotated: Artifact

    def windows(self, stream: str) -> np.ndarray:
        return np.array(open_indexed(self.folder / stream / stream).windows())


def exclusions_of(excluded: dict[int, list[list[Any]]]) -> Shards:
    values = [{"addresses": excluded.get(part, [])} for part in range(len(TEXTS))]
    return Shards.from_values(values, [value_digest(value) for value in values])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_tokenizer(tmp_path_factory.mktemp("small"), [text for part in TEXTS for text in part])


@pytest.fixture(scope="module")
def proven(tokenizer: Artifact, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    planned = plan_artifact(
        certify_engines,
        rules=EncodingRules(tokenizer, EOS, "literal"),
        engines={},
        reference=reference_version(),
        samples=[],
        cases=1,
        documents=0,
        seed=42,
    )
    certificate = ArtifactStore(tmp_path_factory.mktemp("proof") / "certificate").save(planned)
    return {
        "rules": EncodingRules(tokenizer, EOS, "literal"),
        "certificate": certificate,
        "max_lossy_share": 0.0,
        "engine": REFERENCE,
        "recheck": Recheck(0.5, 42),
    }


def encoded(
    folder: Path,
    proven: dict[str, Any],
    excluded: dict[int, list[list[Any]]],
    *,
    split: str,
    texts: Sequence[Sequence[str]] = TEXTS,
    engine: Engine = Inline(),  # noqa: B008  # has no state
    batch_rows: int = 1000,
) -> Shards:
    """Encode the documents as those of a split, with what is excluded."""
    given = stored(folder / "in", [documents(part, number) for number, part in enumerate(texts)], batch_rows)
    columns = ["id" if name == "doc_id" else name for name in SIDECAR.names if name != "token_length"]
    planned = given.zip(exclusions_of(excluded)).map(
        encode_part,
        **proven,
        max_tokens=CAP if split == "annotated" else SEQ,
        columns=columns if split == "annotated" else ["id", "source", "shard_index", "row"],
        keep_lengths=split == "unannotated",
    )
    store = Store(folder / "tokens" / split)
    store.save(planned, engine)
    return store.load()


def make(
    folder: Path, proven: dict[str, Any], excluded: dict[int, list[list[Any]]], memory: int = 1 << 20, **given: Any
) -> Made:
    """Encode the documents as both splits, and write both streams."""
    tokens = {split: encoded(folder, proven, excluded, split=split, **given) for split in ("unannotated", "annotated")}
    common = {"tokenizer": proven["rules"].tokenizer, "seq_length": SEQ, "seed": SEED, "shuffle_memory": memory}
    compact = plan_artifact(
        write_compact_stream,
        tokens=tokens["unannotated"],
        shuffle_block=BLOCK,
        tombstones=tombstones_of(tokens["unannotated"]),
        **common,
    )
    annotated = plan_artifact(write_annotated_stream, tokens=tokens["annotated"], **common)
    save: Callable[[str, Artifact], Artifact] = lambda name, planned: ArtifactStore(folder / name).save(planned)  # noqa: E731
    return Made(folder, tokens, save("compact", compact), save("annotated", annotated))


@pytest.fixture(scope="module")
def before(proven: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("before"), proven, NOTHING)


@pytest.fixture(scope="module", params=[SOME, MANY], ids=["some", "many"])
def excluded(request: pytest.FixtureRequest) -> dict[int, list[list[Any]]]:
    found: dict[int, list[list[Any]]] = request.param
    return found


@pytest.fixture(scope="module")
def after(proven: dict[str, Any], excluded: Any, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("after"), proven, excluded)


def is_gone(made: Made, excluded: dict[int, list[list[Any]]]) -> np.ndarray:
    """Return which tokens of the compact stream are of excluded documents, bool (windows, window): drawn again."""
    flags = []
    for part in made.tokens["unannotated"]:
        table = part.table(["row", "token_length"])
        gone = np.isin(table["row"].to_numpy(), [row for _, _, row, _ in excluded.get(part.index, [])])
        order = numpy_generator(SEED, part.index).permutation(part.rows)
        flags.append(np.repeat(gone[order], table["token_length"].to_numpy()[order] + 1))
    flat = np.concatenate(flags)
    cut = flat[: len(flat) // WINDOW * WINDOW].reshape(-1, WINDOW)
    generator, shuffled = numpy_generator(SEED), []
    for start in range(0, len(cut), BLOCK):
        block = cut[start : start + BLOCK]
        shuffled.append(block[generator.permutation(len(block))])
    return np.concatenate(shuffled)


def test_every_other_token_of_the_compact_stream_stays_where_it_is(before: Made, after: Made, excluded: Any) -> None:
    old, new, gone = before.windows("compact"), after.windows("compact"), is_gone(before, excluded)
    eos = before.compact.statistics["tokenizer"]["eos_id"]
    assert gone.any(axis=1).sum() > len(SOME[1]), "one lies in two windows"
    assert gone.all(axis=1).any() == (excluded is MANY), "windows that hold nothing else"
    assert (new[gone] == eos).all()
    assert (new[~gone] == old[~gone]).all()
    assert (old[gone] != eos).any()
    kept = set(before.compact.statistics) & set(after.compact.statistics)
    assert {name: after.compact.statistics[name] for name in kept} == dict(before.compact.statistics)
    of_documents = sum(map(len, excluded.values()))
    assert after.compact.statistics["tombstones"]["documents"] == of_documents


def test_no_prediction_counts_whose_target_is_of_an_excluded_document(before: Made, after: Made, excluded: Any) -> None:
    gone = is_gone(before, excluded)
    data = DataParameters(
        schedule="integer",
        weights=None,
        replay=None,
        later_epochs="as_written",
        seed=0,
        check="full",
        document_mask=False,
    )
    streams = {"compact": after.folder / "compact", "annotated": after.folder / "annotated"}
    windows = open_windows(streams, data, batch_size=4)
    compact, annotated = windows.streams
    mask = np.ones((len(compact), SEQ), bool)
    compact.clear(mask, np.arange(len(compact)), np.arange(len(compact)))
    assert (mask == ~gone[:, 1:]).all()
    assert after.compact.statistics["loss_tokens"] == np.count_nonzero(mask)
    assert not (before.folder / "compact" / LOSS_MASK_FILE).exists()
    assert annotated.token_lengths is not None
    tokens, read = windows.read(np.arange(sum(windows.sizes)))
    assert np.count_nonzero(read) == np.count_nonzero(mask) + annotated.token_lengths.sum()
    assert len(tokens) == len(read)


def test_an_annotated_window_becomes_eos_and_its_sidecar_row_keeps_its_address(
    before: Made, after: Made, excluded: Any
) -> None:
    rows = {
        name: pq.read_table(made.folder / "annotated" / "sidecar.parquet").to_pylist()
        for name, made in (("old", before), ("new", after))
    }
    lengths = np.load(after.folder / "annotated" / "token_lengths.npy")
    addresses = {tuple(address[:3]) for part in excluded.values() for address in part}
    old, new = before.windows("annotated"), after.windows("annotated")
    eos, found = before.annotated.statistics["tokenizer"]["eos_id"], 0
    for window, (was, now) in enumerate(zip(rows["old"], rows["new"], strict=True)):
        if tuple(was[name] for name in ("source", "shard_index", "row")) not in addresses:
            assert (was, old[window].tolist()) == (now, new[window].tolist())
            continue
        found += 1
        assert now == was | {"doc_id": None, "text": "", "token_length": 0}
        assert lengths[window] == 0
        assert set(new[window].tolist()) == {eos}
    assert found == len(addresses)


def test_no_text_and_no_id_of_an_excluded_document_is_left(after: Made, excluded: Any) -> None:
    gone = {TEXTS[part][row] for part, entries in excluded.items() for _, _, row, _ in entries}
    ids = {f"{part}-{row}" for part, entries in excluded.items() for _, _, row, _ in entries}
    tables = [part.table() for shards in after.tokens.values() for part in shards]
    tables.append(pq.read_table(after.folder / "annotated" / "sidecar.parquet"))
    for table in tables:
        for name in table.column_names:
            if pa.types.is_large_string(table.schema.field(name).type):
                assert not (gone | ids) & set(table[name].to_pylist()), name


def test_verify_understands_both_streams(after: Made) -> None:
    for name in ("compact", "annotated"):
        for level in ("sampled", "full"):
            faults = [check for check in verify(after.folder / name, level) if not check.ok]
            assert not faults
            bare = after.folder / f"bare_{name}_{level}"
            bare.mkdir(exist_ok=True)
            for file in (after.folder / name).iterdir():
                if file.name != "ledger.json":
                    (bare / file.name).write_bytes(file.read_bytes())
            assert all(check.ok for check in verify(bare, level)), "without what its ledger says"


def test_content_that_is_cleared_and_content_in_a_tombstone_are_found(before: Made, after: Made, excluded: Any) -> None:
    windows, gone = after.windows("compact"), is_gone(before, excluded)
    eos = after.compact.statistics["tokenizer"]["eos_id"]
    rows = np.array(open_loss_mask(after.folder / "compact" / LOSS_MASK_FILE, len(windows), SEQ))
    numbers = np.arange(len(windows))
    check = lambda tokens, masks: check_masks(Path("s"), numbers, tokens, masks, eos, clears_eos_alone=True)  # noqa: E731
    assert check(windows, rows) == after.compact.statistics["loss_tokens"]
    mask = unpack_mask(rows, SEQ)
    row = int(np.flatnonzero(mask.all(axis=1))[0])
    cleared = mask.copy()
    cleared[row, 2] = False
    position = 3 if windows[row, 3] != eos else None
    assert position
    with pytest.raises(StreamError, match=rf"window {row} position 3, whose prediction does not count: expected EOS"):
        check(windows, pack_mask(cleared))
    row, at = (int(one[0]) for one in np.nonzero(gone[:, 1:]))
    edited = windows.copy()
    edited[row, at + 1] = eos + 1
    with pytest.raises(StreamError, match=rf"window {row} position {at + 1}"):
        check(edited, rows)


def test_same_bytes_for_any_memory_and_any_batches(
    after: Made, excluded: Any, proven: dict[str, Any], tmp_path: Path
) -> None:
    again = make(tmp_path, proven, excluded, batch_rows=4, memory=100)
    for name in ("compact", "annotated"):
        assert file_bytes(tmp_path / name) == file_bytes(after.folder / name)
    for split, shards in again.tokens.items():
        assert [part.digest for part in shards] == [part.digest for part in after.tokens[split]]


@pytest.mark.parametrize("workers", [2, 5])
def test_same_documents_for_any_number_of_workers(proven: dict[str, Any], tmp_path: Path, workers: int) -> None:
    digests = [
        encoded(tmp_path / f"by_{count}", proven, MANY, split="unannotated", engine=engine).root_digest
        for count, engine in ((1, Inline()), (workers, WorkerProcesses(workers)))
    ]
    assert digests[0] == digests[1]


def test_only_the_parts_of_excluded_documents_are_made_again(proven: dict[str, Any], tmp_path: Path) -> None:
    files = {}
    for excluded in (NOTHING, SOME, NOTHING):
        make(tmp_path, proven, excluded)
        found = {
            path: path.stat()
            for split in ("annotated", "unannotated")
            for path in (tmp_path / "tokens" / split).glob("*.parquet")
        }
        if files:
            again = {path.name for path, stat in found.items() if stat.st_ino != files[path].st_ino}
            assert again == {"part_00001.parquet"}
        files = found


def test_a_length_from_elsewhere_does_what_the_text_does(
    after: Made, excluded: Any, proven: dict[str, Any], tmp_path: Path
) -> None:
    """Where the text is not any more (a replay), the entry has the length and the text is empty."""
    texts = [
        [
            text if [*_address(part, row), "asked"] not in excluded.get(part, []) else ""
            for row, text in enumerate(of_part)
        ]
        for part, of_part in enumerate(TEXTS)
    ]
    known = {}
    for part, entries in excluded.items():
        table = after.tokens["unannotated"].parts[part].table(["row", "token_length"])
        lengths = dict(zip(table["row"].to_pylist(), table["token_length"].to_pylist(), strict=True))
        known[part] = [[*entry, lengths[entry[2]]] for entry in entries]
    again = make(tmp_path, proven, known, texts=texts)
    assert again.compact.root_digest == after.compact.root_digest
    assert again.annotated.root_digest == after.annotated.root_digest
    for split, shards in again.tokens.items():
        assert shards.root_digest == after.tokens[split].root_digest


def _address(part: int, row: int) -> list[Any]:
    return ["web" if row % 2 == 0 else "code", part, row]


def test_a_length_that_no_document_has_is_an_error(proven: dict[str, Any], tmp_path: Path) -> None:
    (part,) = stored(tmp_path, [documents(TEXTS[0])])
    (exclusions,) = Shards.from_values([{"addresses": [["web", 0, 4, "x", SEQ]]}], ["d"])
    made = encode_part(part, exclusions, **proven, max_tokens=SEQ, columns=["row"], keep_lengths=True)
    with pytest.raises(TokenizerError, match="document web/0/4 is said to have 16 tokens; expected 0 to 15"):
        run(made)


def test_counts_say_of_a_tombstone_that_it_is_a_document_of_eos(before: Made, after: Made, excluded: Any) -> None:
    def summary(made: Made) -> dict[str, Any]:
        return tokenization_summary(
            made.tokens,
            compact_stream=made.compact.statistics,
            annotated_stream=made.annotated.statistics,
            chars_per_token=4.0,
            estimated_tokens={"annotated": 1.0, "unannotated": 1.0},
        )

    old, new = summary(before)["unannotated"], summary(after)["unannotated"]
    assert new["documents"] == old["documents"]
    assert new["tokens"] + new["eos"] == old["tokens"] + old["eos"]
    gone = [TEXTS[part][row] for part, entries in excluded.items() for _, _, row, _ in entries]
    assert old["characters"] - new["characters"] == sum(map(len, gone))


def test_raw_shards_have_eos_in_the_place_of_an_excluded_document(after: Made, excluded: Any, tmp_path: Path) -> None:
    statistics = after.compact.statistics
    shards = plan_artifact(
        write_raw_shards,
        tokens=[after.tokens["unannotated"]],
        tokenizer=Artifact(
            folder=tmp_path, ledger={"statistics": statistics["tokenizer"], "files": {}, "root_digest": "t"}
        ),
        shard_size_tokens=200,
        dtype="uint16",
        seed=1,
        shuffle_memory=1 << 20,
    )
    made = ArtifactStore(tmp_path / "raw").save(shards)
    assert all(check.ok for check in verify(tmp_path / "raw", "full"))
    ids = np.concatenate([np.fromfile(file, "<u2") for file in sorted((tmp_path / "raw").glob("*.bin"))])
    sums = [part["eos"] for part in after.tokens["unannotated"].statistics]
    assert np.count_nonzero(ids == made.statistics["eos_id"]) == sum(sums)


def test_chats_leave_an_excluded_document_out_and_say_so(tokenizer: Artifact, tmp_path: Path) -> None:
    texts = [f"B: question {i}\nA: answer {i}" for i in range(4)]
    table = documents(texts, sources=("web",)).set_column(6, "is_bad", pa.array([False] * 4))
    exclusions = Shards.from_values([{"addresses": [["web", 0, 2, "asked"]]}], ["d"])
    made = {}
    for name, given in (("all", None), ("none", Shards.from_values([{"addresses": []}], ["e"])), ("less", exclusions)):
        planned = plan_artifact(
            write_chat_windows,
            documents=[stored(tmp_path / "in", [table])],
            tokenizer=tokenizer,
            eos_token=EOS,
            chats=chats(),
            seq_length=100,
            max_lossy_share=0.0,
            shuffle_memory=1 << 20,
            exclusions=given,
        )
        made[name] = ArtifactStore(tmp_path / name).save(planned)
    assert made["all"].root_digest == made["none"].root_digest
    assert made["less"].statistics["set_aside"] == {"excluded": 1, "is_bad": 0, "no_answer": 0}
    assert (made["less"].statistics["chats"], made["less"].statistics["used"]) == (4, 3)
    assert len(open_indexed(tmp_path / "less/chats")) == len(open_indexed(tmp_path / "all/chats")) - 1
