"""A release rebuilds a corpus, and shows none of its text but what a licence allows."""

from __future__ import annotations

import getpass
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kedro.config import OmegaConfigLoader
from kedro.io import DatasetError
from kedro.pipeline import Pipeline
from pydantic import ValidationError

from everytoken.cli.summary import stages_left, summary_lines
from everytoken.parameters import IngestionParameters, ReleaseParameters, SubsamplingParameters, TokenizationParameters
from everytoken.pipelines import annotation, canary, ingestion, packing, release, subsampling, tokenization
from everytoken.pipelines.release.nodes import report_release
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.card import dataset_card, scores_section, size_category, yaml_head
from everytoken.provenance.releases.checksums import window_checksums, write_window_checksums
from everytoken.provenance.releases.manifest import MANIFEST, MOST_ID_CHARACTERS, shows_text
from everytoken.provenance.releases.parameters import Homepage, Licence
from everytoken.provenance.releases.published import published
from everytoken.provenance.releases.release import SPLITS, Release, open_release
from everytoken.provenance.releases.released_texts import find_shared_ids
from everytoken.settings import CONFIG_LOADER_ARGS
from everytoken.shards import Rows, Shards, Store, canonical_json, make_engine, versioned
from everytoken.shards.parts import StoredPart
from everytoken.tokens.streams.megatron import open_indexed
from everytoken.tracking.run import NOTHING, contents
from tests.provenance.small_job import EXCLUDED_ROWS, LONG_TITLE, ROOT, SmallJob, documents, make
from tests.redaction.secret_forms import contents as contents_of
from tests.redaction.secret_forms import found_in

GRAM = 50


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> SmallJob:
    """A small corpus with streams of every kind, released; nobody writes into it."""
    return make(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def released(job: SmallJob) -> Release:
    return open_release(job.release)


def split_rows(job: SmallJob, split: str) -> list[dict[str, Any]]:
    return [
        row for part in Store(job.data / f"04_feature/{split}_documents").load() for row in part.table().to_pylist()
    ]


def listed_rows(released: Release, split: str) -> list[dict[str, Any]]:
    return [row for part in released.manifest(split) for row in part.table().to_pylist()]


# text


def grams(text: str) -> set[str]:
    return {text[at : at + GRAM] for at in range(len(text) - GRAM + 1)}


def shown_in(path: Path) -> Iterator[str]:
    """Yield every text in a file: values of parquet, raw JSON and its strings, and bytes of everything else."""

    def strings(value: Any) -> Iterator[str]:
        if isinstance(value, str | bytes):
            yield value if isinstance(value, str) else value.decode("latin-1")
        elif isinstance(value, dict):
            yield from strings([*value, *value.values()])
        elif isinstance(value, list):
            for item in value:
                yield from strings(item)

    if path.suffix == ".parquet":
        yield from strings(pq.read_table(path).to_pylist())
        yield str(pq.read_metadata(path).metadata)
    else:
        content = path.read_bytes()
        yield content.decode("utf-8", "replace")
        if path.suffix == ".json":
            yield from strings(json.loads(content))


def test_no_50_characters_of_a_document_are_anywhere_but_in_the_rescued_texts(job: SmallJob) -> None:
    texts = [row["text"] for rows in documents().values() for row in rows]
    assert sum(len(grams(text)) > 0 for text in texts) > 150
    of_documents = set().union(*map(grams, texts))
    files = [path for path in job.release.rglob("*") if path.is_file()]
    assert len(files) > 30
    for path in files:
        found = of_documents & set().union(*map(grams, shown_in(path)))
        if "text_rescue" in path.parts:
            assert found, "the search finds text where it is"
        else:
            assert not found, f"{path} shows {next(iter(found))!r}"


def test_a_title_that_stands_in_its_text_is_withheld_wherever_it_is_an_id(job: SmallJob, released: Release) -> None:
    named = [row for split in SPLITS for row in split_rows(job, split) if row["id"] == LONG_TITLE]
    assert len(named) == 2, "one text that shows it, and another of the same id"
    by_address = {(row["source"], row["row"]): row for split in SPLITS for row in listed_rows(released, split)}
    for row in named:
        listed = by_address[row["source"], row["row"]]
        assert (listed["id"], listed["id_type"]) == (None, "withheld")
    long = [row["id"] for row in by_address.values() if row["id"] and len(row["id"]) > GRAM]
    assert long == [documents()["articles"][6]["id"]], "a long id that is no text stays"
    scores = [
        row["id"] for path in job.release.glob("classifications/c*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    assert LONG_TITLE not in scores and long[0] in scores


def test_the_id_of_a_document_that_was_taken_down_is_nowhere(job: SmallJob, released: Release) -> None:
    taken_down = [
        row for split in SPLITS for row in split_rows(job, split) if (row["source"], row["row"]) in EXCLUDED_ROWS
    ]
    ids = {row["id"] for row in taken_down} - {None}
    assert ids, "the case is there"
    listed = [row for split in SPLITS for row in listed_rows(released, split)]
    assert not ids & {row["id"] for row in listed}
    assert all(row["id"] is None for row in listed if row["is_excluded"])
    scores = [
        row["id"] for path in job.release.glob("classifications/c*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    assert scores and not ids & set(scores)
    assert released_statistics(job)["classifications"]["withheld"] == 1 + len(ids), "and the title"


def released_statistics(job: SmallJob) -> dict[str, Any]:
    return dict(json.loads((job.release / "ledger.json").read_text())["statistics"])


@given(st.text("ab ", max_size=150), st.text("ab ", max_size=200), st.integers(0, 90), st.integers(0, 100))
def test_whether_an_id_shows_text_is_what_a_search_of_every_offset_says(
    identifier: str, text: str, cut: int, length: int
) -> None:
    text += identifier[cut : cut + length]
    whole = text != "" and text in identifier
    assert shows_text(identifier, text) == (whole or bool(grams(identifier) & grams(text)))
    assert MOST_ID_CHARACTERS == GRAM


def test_texts_are_given_only_where_the_licence_allows_it_and_an_id_does_not(job: SmallJob, released: Release) -> None:
    notes = {5, 11, 17, 21, 40, 41}  # without id, or with one that three texts share
    for split in SPLITS:
        rows = split_rows(job, split)
        wanted = {
            number: row["text"]
            for number, row in enumerate(rows)
            if (row["source"] == "open" or (row["source"] == "notes" and row["row"] in notes))
            and (row["source"], row["row"]) not in EXCLUDED_ROWS
        }
        paths = released.text_rescue(split)
        given_texts = [row for path in paths for row in pq.read_table(path).to_pylist()]
        assert {row["global_row"]: row["text"] for row in given_texts} == wanted
        assert [row["global_row"] for row in given_texts] == sorted(wanted)
        assert all(pq.read_metadata(path).num_rows for path in paths)
    assert released_statistics(job)["rescued"]["unannotated"]["notes"] > 0


@versioned("_ids", 1)
def _ids(part: Any) -> Rows:
    schema = pa.schema(
        [("source", pa.string()), ("id_type", pa.string()), ("id", pa.large_string()), ("text_sha256", pa.binary())]
    )

    def batches() -> Any:
        for start in range(0, len(part.value), 7):
            columns = zip(*part.value[start : start + 7], strict=True)
            arrays = [pa.array([*column], kind) for column, kind in zip(columns, schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        return {}

    return Rows(schema, batches())


def test_shared_ids_are_those_of_different_texts_in_one_source_whatever_the_memory(tmp_path: Path) -> None:
    rows = [
        ("ab"[i % 2], "string", None if i % 11 == 0 else f"{i % 37}", bytes([i % 3 if i % 37 < 9 else 0]))
        for i in range(600)
    ]
    values = [[[*row[:3], row[3].decode("latin-1")] for row in rows[start : start + 200]] for start in (0, 200, 400)]
    store = Store(tmp_path / "ids")
    store.save(Shards.from_values(values, ["a", "b", "c"]).map(_ids), make_engine("inline"))
    texts: dict[tuple[str, str], set[bytes]] = {}
    for source, _, identifier, text in rows:
        if identifier is not None:
            texts.setdefault((source, identifier), set()).add(text)
    expected = {
        hashlib.sha256(f"{source}\0string\0{identifier}\0".encode()).digest()[:16]
        for (source, identifier), of_id in texts.items()
        if len(of_id) > 1
    }
    assert 0 < len(expected) < len(texts)
    for memory in (1, 1 << 24):
        assert find_shared_ids(store.load(), memory, tmp_path) == expected


# what a release says


def test_a_manifest_has_the_rows_of_its_split_in_their_parts_and_order(job: SmallJob, released: Release) -> None:
    for split in SPLITS:
        stored = Store(job.data / f"04_feature/{split}_documents").load()
        assert [(part.name, part.rows) for part in released.manifest(split)] == [
            (part.name, part.rows) for part in stored
        ]
        lengths: dict[Any, int] = {}
        if split != "held_out":
            for part in Store(job.data / f"05_model_input/{split}_tokens").load():
                table = part.table(["source", "row", "token_length"]).to_pylist()
                lengths |= {(row["source"], row["row"]): row["token_length"] for row in table}
        for row, listed in zip(split_rows(job, split), listed_rows(released, split), strict=True):
            address = (row["source"], row["row"])
            same = ("source", "shard_index", "row", "safety_score", "is_bad", "has_annotation")
            assert {name: listed[name] for name in same} == {name: row[name] for name in same}
            assert listed["text_hash"] == int.from_bytes(hashlib.sha256(row["text"].encode()).digest()[:8], "big")
            assert listed["token_length"] == lengths.get(address)
            assert listed["is_excluded"] == (address in EXCLUDED_ROWS)
            assert listed["id"] == row["id"] or listed["id_type"] == "withheld"
        assert all(part.schema == MANIFEST for part in released.manifest(split))
    excluded = [row for split in SPLITS for row in listed_rows(released, split) if row["is_excluded"]]
    assert {(row["source"], row["row"]) for row in excluded} == EXCLUDED_ROWS


def test_boundaries_number_the_documents_of_a_split(released: Release) -> None:
    for split in SPLITS:
        first_row = 0
        for part, said in zip(released.manifest(split), released.boundaries[split]["parts"], strict=True):
            assert isinstance(part, StoredPart)
            part.verify()
            assert (said["first_row"], said["bytes"]) == (first_row, part.path.stat().st_size)
            first_row += part.rows
        assert released.boundaries[split]["rows"] == first_row


def test_the_recipe_gives_the_parameters_and_digests_back(job: SmallJob, released: Release) -> None:
    recipe = released.recipe
    assert (job.release / "recipe.json").read_text() == canonical_json(recipe) + "\n"
    for name, model in (
        ("ingestion", IngestionParameters),
        ("subsampling", SubsamplingParameters),
        ("tokenization", TokenizationParameters),
    ):
        made_with = job.catalog.load(f"params:{name}").model_dump(mode="json")
        assert model.model_validate(released.parameters(name)).model_dump(mode="json") == published(made_with)
    assert set(recipe["parameters"]) == {"ingestion", "annotation", "subsampling", "tokenization", "canary", "packing"}
    for name in (
        "documents",
        "annotated_documents",
        "unannotated_tokens",
        "compact_stream",
        "canary_stream",
        "raw_shards",
    ):
        assert recipe["datasets"][name]["root_digest"] == job.catalog.load(name).root_digest
    assert recipe["functions"]["write_compact_stream"] == 2
    assert recipe["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert recipe["tokenizer"]["sha256"] == released.sha256sums["tokenizer/tokenizer.json"]
    with pytest.raises(ProvenanceError, match="no parameters 'training'"):
        released.parameters("training")


def test_the_upstream_has_pins_files_and_plan(job: SmallJob, released: Release) -> None:
    assert released.upstream["plan"] == job.catalog.load("shard_plan")
    content = (job.folder / "upstream/notes.jsonl").read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    notes = released.upstream["sources"]["notes"]
    assert notes["files"] == [{"shard_index": 0, "path": "notes.jsonl", "digest": digest}]
    assert notes["upstream"]["pattern"] == "notes.jsonl"
    assert notes["licence"]["text"] == "rescue"


def test_streams_of_every_kind_can_be_verified(job: SmallJob, released: Release) -> None:
    assert list(released.streams) == ["annotated", "canary", "compact", "raw_shards"]
    for name in ("annotated", "canary", "compact"):
        stream = job.data / f"05_model_input/{name}_stream"
        folder = job.release / "verification" / name
        windows = open_indexed(stream / name).windows()
        expected = [zlib.crc32(window.tobytes()) for window in windows]
        checksums = np.load(folder / "window_crc32.npy")
        assert checksums.dtype == np.uint32 and checksums.tolist() == expected
        kept = {"compact": [f"{name}.idx"]}.get(name, [f"{name}.idx", "token_lengths.npy"])
        assert all((folder / file).read_bytes() == (stream / file).read_bytes() for file in kept)
        said = released.streams[name]["files"][f"{name}.bin"]
        assert said["sha256"] == hashlib.sha256((stream / f"{name}.bin").read_bytes()).hexdigest()
        assert not list(folder.glob("*.bin")) and not list(folder.glob("*.parquet"))
    assert (job.release / "verification/raw_shards/manifest.json").exists()


def test_checksums_are_written_piece_by_piece_and_refuse_half_a_window(tmp_path: Path) -> None:
    content = np.arange(3_000_000, dtype="<u4").tobytes()
    (tmp_path / "x.bin").write_bytes(content)
    size = 12_000
    pieces = list(window_checksums(tmp_path / "x.bin", size))
    assert len(pieces) > 1
    write_window_checksums(tmp_path / "x.bin", size, tmp_path / "x.npy")
    expected = [zlib.crc32(content[at : at + size]) for at in range(0, len(content), size)]
    assert np.load(tmp_path / "x.npy").tolist() == np.concatenate(pieces).tolist() == expected
    with pytest.raises(ProvenanceError, match="not whole windows"):
        list(window_checksums(tmp_path / "x.bin", 12_001))


def test_sha256sum_checks_every_file(job: SmallJob, released: Release) -> None:
    subprocess.run(["sha256sum", "-c", "--quiet", "--strict", "SHA256SUMS"], cwd=job.release, check=True)
    files = {path.relative_to(job.release).as_posix() for path in job.release.rglob("*") if path.is_file()}
    assert set(released.sha256sums) == files - {"SHA256SUMS", "ledger.json"}
    assert list(released.sha256sums) == sorted(released.sha256sums)


def test_report_run_summary_and_release_say_one_digest(job: SmallJob, released: Release) -> None:
    assert job.catalog.load("release_report")["digest"] == released.digest
    held = contents(job.catalog["release"])
    rows = sum(counts["rows"] for counts in released.boundaries.values())
    assert held is not None and (held.digest, held.rows) == (released.digest, rows)
    pipelines = _pipelines()
    (line,) = [
        line for line in summary_lines(stages_left(job.catalog, pipelines), " --env x") if line.startswith("release ")
    ]
    assert line.split() == ["release", f"{rows}", "documents", f"{held.bytes:,}", "bytes", released.digest[:16]]


def _pipelines() -> dict[str, Pipeline]:
    made = (ingestion, annotation, subsampling, tokenization, canary, packing)
    default = sum((package.create_pipeline() for package in made), Pipeline([]))
    return {"__default__": default, "release": release.create_pipeline()}


def test_the_summary_says_when_the_corpus_is_no_longer_that_of_the_release(job: SmallJob) -> None:
    shutil.copytree(job.data, job.folder / "redrawn", copy_function=os.link)
    redrawn = SmallJob(job.folder, "redrawn", changes={"subsampling.seed": 43})
    redrawn.run(subsampling)
    lines = [*summary_lines(stages_left(redrawn.catalog, _pipelines()), " --env x")]
    (line,) = [line for line in lines if line.startswith("release ")]
    assert line.endswith("made from another annotated_documents")
    assert "  kedro run --pipelines release --env x" in [re.sub(r"^  \S*kedro", "  kedro", line) for line in lines]


def test_the_metrics_count_what_the_release_holds(job: SmallJob, released: Release) -> None:
    metrics = job.catalog.load("release_metrics")
    rows = {split: listed_rows(released, split) for split in SPLITS}
    files = [path for path in job.release.rglob("*") if path.is_file() and path.name != "ledger.json"]
    assert metrics == {
        "bytes": sum(path.stat().st_size for path in files),
        "documents": {"total": sum(map(len, rows.values())), **{split: len(rows[split]) for split in SPLITS}},
        "texts_given": {
            split: sum(pq.read_metadata(path).num_rows for path in released.text_rescue(split)) for split in SPLITS
        },
        "withheld": {
            "ids": sum(row["id_type"] == "withheld" for split in SPLITS for row in rows[split]),
            "classifications": released_statistics(job)["classifications"]["withheld"],
        },
        "excluded": len(EXCLUDED_ROWS),
    }
    assert all(metrics["texts_given"][split] for split in ("annotated", "unannotated"))


def test_the_run_ends_with_what_was_made_and_how_to_rebuild_it(
    job: SmallJob, released: Release, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job.folder)
    logging.disable(logging.NOTSET)
    with caplog.at_level(logging.INFO):
        report_release(*map(job.catalog.load, ("release", "released_job", "params:release")))
    size, folder = job.catalog.load("release_report")["bytes"] / 1e6, "data/08_reporting/release"
    assert caplog.messages[-1] == (
        f"release: {sum(len(listed_rows(released, split)) for split in SPLITS)} documents, {size:.1f} MB, digest "
        f"{released.digest}, in {folder}; rebuild it with kedro run --env replay --params replay.release={folder}"
    )


def test_the_card_names_every_source_its_licence_and_how_to_rebuild(job: SmallJob) -> None:
    card = (job.release / "README.md").read_text(encoding="utf-8")
    for source in documents():
        assert f"| {source} | [MIT](https://spdx.org/licenses/MIT.html) | By those who wrote {source}. |" in card
    assert "kedro run --env replay --params replay.release=" in card and "sha256sum -c SHA256SUMS" in card
    assert "everytoken verify" in card and "| `text_hash` | uint64 |" in card
    assert "Excluded documents: 3." in card and "Withheld ids in the manifest: 4;" in card
    assert "3 sources without a public address (articles, notes, open)" in card
    assert "`articles` has no public address: see [its page](https://articles.example/all)." in card
    assert "`notes` has no public address: it is not public." in card


def card_head(job: SmallJob) -> dict[str, Any]:
    _, head, _ = (job.release / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return dict(yaml.safe_load(head))


def test_the_head_of_the_card_is_what_the_hub_documents(job: SmallJob) -> None:
    head = card_head(job)
    documented = huggingface_hub.DatasetCardData.__doc__ or ""
    for key in set(head) - {"tags", "configs"}:
        assert re.search(rf"^ +{key} \(", documented, re.MULTILINE), key
    assert {key: head[key] for key in ("language", "license", "size_categories", "task_categories", "tags")} == {
        "language": ["en"],
        "license": "mit",
        "size_categories": ["n<1K"],
        "task_categories": ["text-generation"],
        "tags": ["everytoken", "pretraining", "token-provenance"],
    }
    sizes = [*(10**power - 1 for power in range(3, 14)), 10**12]
    buckets = [size_category(size) for size in sizes]
    assert len(set(buckets)) == 11 and all(f"'{bucket}'" in documented for bucket in buckets)
    assert size_category(1000) == "1K<n<10K" and size_category(10**12) == "n>1T"
    own = Licence(name="Ours", spdx="LicenseRef-Ours", url="https://x.org/licence", attribution="", text="none")
    head = yaml.safe_load(yaml_head("x", [], {"a": own}, 1, []).strip("-\n"))
    named = {"license": "other", "license_name": "ours", "license_link": "https://x.org/licence"}
    assert named.items() <= head.items() and "language" not in head


def test_the_card_says_what_made_the_scores_and_the_windows(job: SmallJob, released: Release) -> None:
    card = (job.release / "README.md").read_text(encoding="utf-8")
    length = released.parameters("tokenization")["seq_length"]
    budget = released.parameters("tokenization")["reflection_budget"]
    assert (
        "published tables (scorer `published`): pattern `scores.parquet`, root" in card
        and "`is_bad` is a score of 3 and more" in card
    )
    assert f"a window has {length + 1} tokens" in card and f"cut at {length - budget} tokens with its EOS" in card
    assert "with, everytoken 0." in card and "a [Kedro](https://kedro.org) project" in card
    assert "the streams in `data/replay/05_model_input`" in card


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        ({"kind": "embedded", "version": "1.9.1", "max_chars": 100000}, "alt-profanity-check 1.9.1"),
        (
            {
                "kind": "transformers",
                "model": {"kind": "hub", "repository": "org/safety", "revision": "a" * 40},
                "dtype": "float32",
                "max_tokens": 512,
            },
            f"org/safety at `{'a' * 40}`, root digest of its files `f00d`",
        ),
        (
            {
                "kind": "transformers",
                "model": {"kind": "folder", "path": "/home/me"},
                "dtype": "float32",
                "max_tokens": 512,
            },
            "from a folder, root digest of its files `f00d`",
        ),
    ],
)
def test_the_card_names_the_scorer_and_its_version(scorer: dict[str, Any], said: str) -> None:
    parameters = {"annotation": {"scorer": scorer}, "subsampling": {"annotation_threshold": 3}}
    text = scores_section({"parameters": parameters, "datasets": {"scorer": {"root_digest": "f00d"}}})
    assert said in text and f"`{scorer['kind']}`" in text and "/home/me" not in text


def test_hugging_face_datasets_loads_every_table(
    job: SmallJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    import datasets

    datasets.disable_progress_bars()
    folder, cache = str(job.release), str(tmp_path / "cache")
    rows = released_statistics(job)["by_split"]
    loaded = datasets.load_dataset(folder, "corpus-manifest", cache_dir=cache)
    assert {split: len(table) for split, table in loaded.items()} == {split: rows[split]["rows"] for split in SPLITS}
    assert loaded["annotated"].column_names == MANIFEST.names
    texts = datasets.load_dataset(folder, "text_rescue", cache_dir=cache)
    given_texts = released_statistics(job)["rescued"]
    assert {split: len(table) for split, table in texts.items()} == {s: sum(n.values()) for s, n in given_texts.items()}
    tables = datasets.get_dataset_config_names(folder)
    assert tables == ["corpus-manifest", "classifications", "classifications_by_address", "text_rescue"]
    for name, table in zip(tables[1:3], ("classifications", "by_address"), strict=True):
        scores = datasets.load_dataset(folder, name, split="train", cache_dir=cache)
        assert len(scores) == released_statistics(job)["classifications"][table]


# how it is made


def _copy(job: SmallJob, name: str) -> Path:
    """Copy the data of the job without its release."""
    made = ("release", "annotated_manifest", "unannotated_manifest", "released_job.json", ".release.lock")
    target = job.folder / name
    shutil.copytree(job.data, target, ignore=shutil.ignore_patterns(*made), copy_function=os.link)
    return target


def test_the_same_release_with_more_workers_and_another_hash_seed(job: SmallJob) -> None:
    _copy(job, "again")
    engine = json.dumps({"kind": "processes", "workers": 2})
    subprocess.run(
        [sys.executable, "-m", "tests.provenance.small_job", str(job.folder), "again", engine],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "5"},
        check=True,
        capture_output=True,
    )
    for name in ("SHA256SUMS", "ledger.json"):
        assert (job.folder / "again/08_reporting/release" / name).read_bytes() == (job.release / name).read_bytes()


@pytest.mark.parametrize(
    ("licence", "message"),
    [
        (None, "source 'notes' has no licence: release.licences.notes is not set"),
        ({"name": "???"}, r"licence of source 'notes' is not known: release.licences.notes has name '\?\?\?'"),
    ],
)
def test_a_source_without_a_known_licence_stops_the_release(
    job: SmallJob, licence: dict[str, str] | None, message: str
) -> None:
    known = job.parameters["release"]["licences"]["notes"]
    changes = {"release.licences.notes": None if licence is None else {**known, **licence}}
    with pytest.raises(ProvenanceError, match=message):
        SmallJob(job.folder, changes=changes).run(release)


def test_nothing_of_the_machine_is_in_a_release(job: SmallJob) -> None:
    """Neither folder nor host nor user: not in the bytes of any file, and not in what parquet has compressed."""
    places = {str(job.folder), str(job.folder.parent), str(ROOT), f"{Path.home()}/"}
    host = {f"//{platform.node()}", platform.node()} if len(platform.node()) > 5 else {f"//{platform.node()}"}
    wanted = {*places, *host, f"/{getpass.getuser()}/"}
    assert not found_in([one.encode() for one in wanted], contents_of(job.release))
    for name, source in open_release(job.release).upstream["sources"].items():
        assert source["upstream"]["root"] == "(not published)"
        assert (source.get("homepage"), source.get("public")) == (
            ("https://articles.example/all", None) if name == "articles" else (None, False)
        )


def test_the_same_release_wherever_the_files_lie(job: SmallJob, tmp_path: Path) -> None:
    elsewhere = tmp_path / "of somebody else"
    shutil.copytree(job.folder / "upstream", elsewhere / "upstream")
    made = ("withheld_ids", "annotated_manifest", "unannotated_manifest", "held_out_manifest", "release")
    shutil.copytree(job.data, elsewhere / "data", ignore=shutil.ignore_patterns(*made), copy_function=os.link)
    other = SmallJob(elsewhere)
    other.run(release)
    assert (other.release / "SHA256SUMS").read_bytes() == (job.release / "SHA256SUMS").read_bytes()


def test_a_source_without_a_public_address_stops_the_release_unless_it_is_said_to_be_one(job: SmallJob) -> None:
    with pytest.raises(ProvenanceError) as caught:
        SmallJob(job.folder, changes={"release.sources.open": None, "release.sources.notes": None}).run(release)
    message = str(caught.value)
    assert message.startswith("source 'notes' has no public address") and "(and so for open)" in message
    assert "release.sources.notes.homepage" in message and "release.sources.notes.public to false" in message


@pytest.mark.parametrize(
    ("key", "place", "is_kept"),
    [
        *(
            ("root", place, False)
            for place in ("/a/b", "a/b", "~/x", "file:///x", "http://10.0.0.1/x", "sftp://me@h/x")
        ),
        *(("root", place, True) for place in ("https://a.example/x", "s3://bucket/x")),
        *(("path", place, False) for place in ("/a", "../a", "a/../../b", "C:\\Users\\me", "\\\\host\\share", "~me/x")),
        *(("fetched", place, True) for place in ("data/01_raw", "a..b/c")),
        ("text_column", "/text", True),
        ("anything", f"{Path.home()}/x", False),
    ],
)
def test_a_place_of_the_machine_is_not_published(key: str, place: str, is_kept: bool) -> None:
    value = {"a": [{"kind": "path", key: place}]}
    assert published(value) == (value if is_kept else {"a": [{"kind": "path", key: "(not published)"}]})


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", "data:text/html,x", "https://a.b/<x>", "file:///etc/passwd", "https://t0ken@a.b/x", ""],
)
def test_a_licence_and_a_homepage_are_links_to_the_web_without_a_secret(url: str) -> None:
    licence = {"name": "MIT", "spdx": "MIT", "url": url, "attribution": "By x.", "text": "none"}
    with pytest.raises(ValidationError):
        Licence.model_validate(licence)
    with pytest.raises(ValidationError):
        Homepage.model_validate({"homepage": url})


def test_the_card_has_no_link_and_no_tag_but_to_the_web(job: SmallJob) -> None:
    said = "[a](javascript:alert(1)) <script>x</script> [b](https://b.example) [c]: data:text/html,x"
    given = Licence(name="M](javascript:x)", spdx="MIT", url="https://a.b/x)", attribution=said, text="none")
    card = dataset_card(
        pretty_name="<img src=x onerror=y>",
        languages=["en"],
        homepage=None,
        licences={"notes": given},
        recipe=open_release(job.release).recipe,
        upstream=open_release(job.release).upstream,
        by_split={
            split: {**dict.fromkeys(("rows", "tokens", "without_id", "withheld", "excluded"), 0), "by_source": {}}
            for split in SPLITS
        },
        rescued={split: {} for split in SPLITS},
        classifications={"classifications": 0, "by_address": 0, "by_use": 0, "withheld": 0},
        streams={},
    ).split("---\n", 2)[2]
    assert "<script" not in card and "<img" not in card and "[b](https://b.example)" in card
    assert "\\[a](javascript:" in card and "\\[c]: data:" in card and "https://a.b/x%29)" in card
    assert "[M](javascript" not in card


@pytest.mark.parametrize(
    ("environment", "unknown"),
    [
        ("base", set()),
        ("spp", set()),
        ("mamba", {"arxiv", "the-stack-v2-jupyter"}),
        ("mamba_universal", {"arxiv", "the-stack-python"}),
        ("mythos", set()),
    ],
)
def test_every_source_has_its_licence_in_the_configuration(environment: str, unknown: set[str]) -> None:
    parameters = OmegaConfigLoader(str(ROOT / "conf"), env=environment, **CONFIG_LOADER_ARGS)["parameters"]
    licences = ReleaseParameters.model_validate(parameters["release"]).licences
    sources = {name for name, source in parameters["ingestion"]["sources"].items() if source is not None}
    assert sources <= set(licences)
    assert {source for source in sources if not licences[source].is_known} == unknown
    assert all(licences[source].text == "none" for source in unknown)


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("ingestion.plan.seed", 43, "shard_plan was not made as the parameters say now: seed was 42, is 43"),
        ("ingestion.min_chars", 3, "upstream_documents .* min_chars was 32, is 3"),
        ("subsampling.seed", 43, "annotated_documents .*seed was 42, is 43"),
        ("tokenization.seed", 43, "_stream was not made as the parameters say now: seed was 42, is 43"),
    ],
)
def test_a_recipe_that_did_not_make_the_data_is_not_written(
    job: SmallJob, parameter: str, value: int, message: str
) -> None:
    before = (job.release / "recipe.json").read_bytes()
    with pytest.raises(ProvenanceError, match=message):
        SmallJob(job.folder, changes={parameter: value}).run(release)
    assert (job.release / "recipe.json").read_bytes() == before


def test_streams_that_others_parameters_made_or_nobody_are_left_out(job: SmallJob) -> None:
    shutil.rmtree(_copy(job, "fewer") / "05_model_input/raw_shards")
    fewer = SmallJob(job.folder, "fewer", changes={"canary.seed": 43})
    fewer.run(release)
    opened, report = open_release(fewer.release), fewer.catalog.load("release_report")
    assert list(opened.streams) == ["annotated", "compact"]
    assert set(opened.recipe["parameters"]) == {"ingestion", "annotation", "subsampling", "tokenization"}
    assert report["streams_left_out"]["raw_shards"] == "raw_shards has not been made"
    assert "was 42, is 43" in report["streams_left_out"]["canary_stream"]
    assert contents(fewer.catalog["raw_shards_when_made"]) is NOTHING
    with pytest.raises(DatasetError, match="saved under its own name"):
        fewer.catalog["raw_shards_when_made"].save(0)


# reading


def test_what_is_no_release_is_refused(job: SmallJob, tmp_path: Path) -> None:
    with pytest.raises(ProvenanceError, match=r"is no folder. A release is the folder that `kedro run"):
        open_release(tmp_path / "nothing")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ProvenanceError, match=r"has no recipe.json, only \['a.txt'\]: it is no release"):
        open_release(tmp_path)
    for name, content, message in [
        ("recipe.json", '{"format":"everytoken-release/9"}', "has format 'everytoken-release/9', this version reads"),
        ("upstream.json", "{", "upstream.json cannot be read"),
        ("file_boundaries.json", "[]", "holds a list, expected an object"),
        ("SHA256SUMS", "abc  x\n", "SHA256SUMS line 1 is 'abc  x', expected a SHA-256"),
        ("SHA256SUMS", None, "SHA256SUMS cannot be read"),
    ]:
        folder = tmp_path / f"{name}-{content is None}"
        shutil.copytree(job.release, folder, copy_function=shutil.copy)
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_text(content)
        with pytest.raises(ProvenanceError, match=message):
            open_release(folder)
    with pytest.raises(ProvenanceError, match="no split 'test'"):
        open_release(job.release).manifest("test")
