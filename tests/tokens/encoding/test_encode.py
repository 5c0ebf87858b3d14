from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from everytoken.shards import (
    Artifact,
    ArtifactStore,
    Inline,
    Shards,
    Store,
    WorkerProcesses,
    file_sha256,
    plan_artifact,
)
from everytoken.tokens import (
    EncodingRules,
    TokenizerError,
    encode_part,
    installed_engines,
    load_tokenizer_file,
    open_tokenizer,
)
from everytoken.tokens.encoding.recheck import Recheck
from everytoken.tokens.engines.certificate import certify_engines
from everytoken.tokens.engines.registry import reference_version
from everytoken.tokens.tokenizer.document_tokenizer import byte_symbols
from tests.tokens.corpora import EOS, documents, run, small_tokenizer, stored

TEXTS = [
    "the cat sat on the mat",
    "naïve café",
    "日本語 the",
    "",
    "a man, a plan, a canal: the cat",
    "the the the",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_tokenizer(tmp_path_factory.mktemp("small"), TEXTS)


@pytest.fixture
def lossy(tmp_path: Path) -> Artifact:
    """A tokenizer whose vocabulary lacks the bytes of é (0xC3 0xA9)."""
    symbols = [symbol for byte, symbol in byte_symbols().items() if byte not in (0xC3, 0xA9)]
    library = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_special_tokens([EOS])
    path = tmp_path / "lossy.json"
    library.save(str(path))
    given = plan_artifact(load_tokenizer_file, path=str(path), sha256=file_sha256(path), eos_token=EOS)
    return ArtifactStore(tmp_path / "lossy").save(given)


def certificate_of(
    tokenizer: Artifact, folder: Path, policy: Any = "control", fast: bool = False, samples: Sequence[Shards] = ()
) -> dict[str, Any]:
    planned = plan_artifact(
        certify_engines,
        rules=EncodingRules(tokenizer, EOS, policy),
        engines=installed_engines() if fast else {},
        reference=reference_version(),
        samples=samples,
        cases=200,
        documents=5,
        seed=42,
        always=True,
    )
    certificate = ArtifactStore(folder).save(planned)
    return {"certificate": certificate}


@pytest.fixture
def parameters(tokenizer: Artifact, tmp_path: Path) -> dict[str, Any]:
    return {
        "rules": EncodingRules(tokenizer, EOS, "control"),
        **certificate_of(tokenizer, tmp_path / "certificate"),
        "max_tokens": 8,
        "max_lossy_share": 0.0,
        "columns": documents([]).column_names,
        "engine": "fastest",
        "recheck": Recheck(0.5, 42),
    }


def test_a_document_more_and_a_fast_engine_make_no_other_part_again(
    parameters: dict[str, Any], tokenizer: Artifact, tmp_path: Path
) -> None:
    """Nor does an engine that is installed later: the certificate says other things then, and tokens stay."""
    if not installed_engines():
        pytest.skip("no fast engine is installed (extra 'fast')")
    tables = [documents(TEXTS * 5, part) for part in range(2)]
    certificates, times = [], []
    for name in ("before", "after"):
        corpus = stored(tmp_path / name, tables)
        proven = certificate_of(tokenizer, tmp_path / f"{name}_proven", fast=name == "after", samples=[corpus])
        certificates.append(proven["certificate"].root_digest)
        store = Store(tmp_path / "tokens")
        store.save(corpus.map(encode_part, **{**parameters, **proven}), Inline())
        times.append([part.stat().st_mtime_ns for part in sorted((tmp_path / "tokens").glob("*.parquet"))])
        tables = [tables[0], documents([*TEXTS * 5, "one more"], 1)]
    assert certificates[0] != certificates[1]
    assert [before == after for before, after in zip(*times, strict=True)] == [True, False]


def test_another_recheck_makes_no_part_again(parameters: dict[str, Any], tmp_path: Path) -> None:
    corpus, store, stamps = stored(tmp_path / "in", [documents(TEXTS)]), Store(tmp_path / "tokens"), []
    for recheck in (Recheck(0.5, 42), Recheck.capped(0.1, 7, 3, 5)):
        store.save(corpus.map(encode_part, **{**parameters, "recheck": recheck}), Inline())
        stamps.append([path.stat().st_mtime_ns for path in (tmp_path / "tokens").glob("*.parquet")])
    assert stamps[0] == stamps[1]


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_the_columns_asked_for_stay_and_tokens_are_added(
    parameters: dict[str, Any], tokenizer: Artifact, tmp_path: Path, batch_rows: int
) -> None:
    table = documents(TEXTS)
    (part,) = stored(tmp_path, [table], batch_rows)
    made, statistics = run(encode_part(part, **parameters))
    assert made.select(table.column_names).equals(table)
    assert made.schema.field("token_length").type == pa.int32()
    assert made.schema.field("tokens").type == pa.list_(pa.field("element", pa.uint16(), nullable=False))
    library = open_tokenizer(tokenizer, EOS)
    whole = [library.tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert made["tokens"].to_pylist() == [[*ids[:7], library.eos_id] for ids in whole]
    assert made["token_length"].to_pylist() == [min(7, len(ids)) for ids in whole]
    assert statistics["documents"] == statistics["eos"] == len(TEXTS)
    assert statistics["tokens"] == sum(min(7, len(ids)) for ids in whole)
    assert statistics["truncated_documents"] == sum(len(ids) > 7 for ids in whole)
    assert statistics["cut_tokens"] == sum(max(0, len(ids) - 7) for ids in whole)
    assert statistics["empty_documents"] == 1
    assert statistics["utf8_bytes"] == sum(len(text.encode()) for text in TEXTS)
    assert statistics["full_tokens"] == statistics["tokens"] + statistics["cut_tokens"]
    assert statistics["characters"] == sum(map(len, TEXTS))
    assert list(statistics["by_source"]) == ["code", "web"]
    assert list(statistics["by_band"]) == ["mostly_latin", "nearly_ascii", "two_byte_scripts"]
    for name in statistics["by_source"]["web"]:
        for by in ("by_source", "by_band"):
            assert statistics[name] == sum(counts[name] for counts in statistics[by].values())
    histogram = {k: count for k, count in enumerate(statistics["length_histogram"]) if count}
    assert histogram == dict(sorted(Counter(len(ids).bit_length() - 1 for ids in whole if ids).items()))
    only, _ = run(encode_part(part, **{**parameters, "columns": ["row", "id"]}))
    assert only.equals(made.select(["row", "id", "token_length", "tokens"]))


def test_workers_and_batches_do_not_change_the_rows(parameters: dict[str, Any], tmp_path: Path) -> None:
    tables = [documents(TEXTS * 40, 0), documents(TEXTS[::-1] * 40, 1), documents([], 2)]
    digests = []
    for name, engine, batch_rows in [("a", Inline(), 7), ("b", WorkerProcesses(2), 1000)]:
        planned = stored(tmp_path / "in" / name, tables, batch_rows).map(encode_part, **parameters)
        store = Store(tmp_path / name)
        store.save(planned, engine)
        loaded = store.load()
        digests.append((loaded.root_digest, loaded.statistics))
    assert digests[0] == digests[1]


def test_lossy_documents_are_counted_and_fail_the_part_beyond_the_share(
    parameters: dict[str, Any], lossy: Artifact, tmp_path: Path
) -> None:
    parameters |= {"rules": EncodingRules(lossy, EOS, "control"), **certificate_of(lossy, tmp_path / "for_lossy")}
    (part,) = stored(tmp_path / "in", [documents(["plain", "café é", "plain", "é"])])
    _, statistics = run(encode_part(part, **{**parameters, "max_lossy_share": 0.5}))
    assert (statistics["lossy_documents"], statistics["lossy_bytes"]) == (2, 6)
    assert statistics["by_source"]["web"]["lossy_documents"] == 0
    with pytest.raises(
        TokenizerError, match=r"part_00000: 2 of 4 documents lose text .*first is row 1.*\[195, 169\]|169"
    ):
        run(encode_part(part, **{**parameters, "max_lossy_share": 0.49}))


def test_wrong_columns_and_nulls_are_named(parameters: dict[str, Any], tmp_path: Path) -> None:
    table = documents(["a", "b"])
    (part,) = stored(tmp_path / "a", [table.drop_columns(["source"])])
    with pytest.raises(TokenizerError, match=r"part_00000 has the columns.*expected .*'source'"):
        encode_part(part, **parameters)
    (part,) = stored(tmp_path / "b", [table.set_column(1, "text", pa.array(["a", None], pa.large_string()))])
    with pytest.raises(TokenizerError, match="part_00000 row 1: text is null"):
        run(encode_part(part, **parameters))


@pytest.mark.parametrize("engine", ["splintr-rs", "fastokens", "snaptokens"])
@pytest.mark.parametrize("policy", ["literal", "control"])
def test_engines_make_the_same_bytes(
    parameters: dict[str, Any], tokenizer: Artifact, tmp_path: Path, engine: str, policy: str
) -> None:
    if engine not in installed_engines():
        pytest.skip(f"{engine} is not installed (extra 'fast')")
    tables = [documents([*TEXTS, f"the {EOS} cat"] * 10, part) for part in range(2)]
    documents_in = stored(tmp_path / "in", tables)
    proven = certificate_of(tokenizer, tmp_path / "proven", policy, fast=True)
    digests = set()
    for name in (engine, "tokenizers"):
        changed = {**proven, "engine": name, "rules": EncodingRules(tokenizer, EOS, policy)}
        store = Store(tmp_path / name)
        store.save(documents_in.map(encode_part, **{**parameters, **changed}), Inline())
        loaded = store.load()
        assert sum(counts["special_documents"] for counts in loaded.statistics) == 20
        rechecked = sum(counts["rechecked_documents"] for counts in loaded.statistics)
        assert 0 < rechecked < loaded.rows if name == engine else rechecked == 0
        digests.add(loaded.root_digest)
    assert len(digests) == 1


def test_with_literal_there_is_one_eos_a_document(
    parameters: dict[str, Any], tokenizer: Artifact, tmp_path: Path
) -> None:
    table = documents([EOS, f"a{EOS}b", *TEXTS])
    (part,) = stored(tmp_path / "in", [table])
    for policy, spelled in [("literal", 0), ("control", 2)]:
        certificate = certificate_of(tokenizer, tmp_path / policy, policy)
        changed = {**certificate, "rules": EncodingRules(tokenizer, EOS, policy), "max_tokens": 100}
        made, statistics = run(encode_part(part, **{**parameters, **changed}))
        eos = sum(ids.count(0) for ids in made["tokens"].to_pylist())
        assert eos == table.num_rows + spelled
        assert (statistics["special_documents"], statistics["special_ids"]) == (2, spelled)


def test_a_spelled_special_token_is_an_error_where_it_shall_be(
    parameters: dict[str, Any], tokenizer: Artifact, tmp_path: Path
) -> None:
    (part,) = stored(tmp_path / "in", [documents(["the", "cat", f"a {EOS}"])], batch_rows=2)
    certificate = certificate_of(tokenizer, tmp_path / "error", "error")
    parameters |= {**certificate, "rules": EncodingRules(tokenizer, EOS, "error")}
    where = r"part_00000 row 2 \(id '0-2', source 'web', shard_index 0, row 2\): the text spells .*at character 2"
    with pytest.raises(TokenizerError, match=where):
        run(encode_part(part, **parameters))


def test_an_engine_that_differs_in_the_run_stops_it_and_names_the_document(
    parameters: dict[str, Any], tokenizer: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(installed_engines()), None)
    if name is None:
        pytest.skip("no fast engine is installed (extra 'fast')")
    proven = certificate_of(tokenizer, tmp_path / "proven", fast=True)
    parameters |= {**proven, "engine": name, "recheck": Recheck(1.0, 42)}
    texts = [*TEXTS, "mat the", "the cat"]
    (part,) = stored(tmp_path / "in", [documents(texts)], batch_rows=3)
    from everytoken.tokens.engines import registry

    honest = registry._Fast.encode

    def swapped(self: Any, texts: list[str]) -> Any:
        return honest(self, [{"mat the": "the mat"}.get(text, text) for text in texts])

    run(encode_part(part, **parameters))
    monkeypatch.setattr(registry._Fast, "encode", swapped)
    with pytest.raises(TokenizerError, match=rf"part_00000 row 6 \(id '0-6'.*{name}.*from token \d+ on, expected"):
        run(encode_part(part, **parameters))
