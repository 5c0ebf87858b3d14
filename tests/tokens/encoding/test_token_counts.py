"""Tokens are counted before the selection as they are encoded after it, in workers and part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everytoken.shards import Artifact, ArtifactStore, Inline, Shards, Store, WorkerProcesses, plan_artifact
from everytoken.tokens import EncodingRules, TokenizerError
from everytoken.tokens.encoding import TOKEN_COUNTS, Recheck, count_part_tokens, encode_part
from everytoken.tokens.engines import certify_engines, installed_engines, reference_version
from tests.tokens.corpora import EOS, documents, file_bytes, small_tokenizer, stored

TEXTS = ["the cat sat on the mat", "naïve café", "日本語 the", "", f"a {EOS} b", "the the the"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_tokenizer(tmp_path_factory.mktemp("small"), TEXTS)


def counting(tokenizer: Artifact, folder: Path, policy: Any = "literal") -> dict[str, Any]:
    rules = EncodingRules(tokenizer, EOS, policy)
    proof = plan_artifact(
        certify_engines,
        rules=rules,
        engines=installed_engines(),
        reference=reference_version(),
        samples=[],
        cases=200,
        documents=5,
        seed=42,
        always=True,
    )
    certificate = ArtifactStore(folder).save(proof)
    return {"rules": rules, "certificate": certificate, "engine": "fastest", "recheck": Recheck(0.5, 42)}


def corpus(folder: Path, batch_rows: int = 4) -> Shards:
    return stored(folder, [documents(TEXTS * (n + 1), n) for n in range(3)], batch_rows)


def kept(root: Path, planned: Shards, engine: Any = None) -> Shards:
    store = Store(root)
    store.save(planned, engine or Inline())
    return store.load()


@pytest.mark.parametrize("policy", ["literal", "control"])
def test_counts_are_the_tokens_that_encoding_gives(tokenizer: Artifact, tmp_path: Path, policy: Any) -> None:
    given = counting(tokenizer, tmp_path / "proof", policy)
    read = corpus(tmp_path / "in")
    counted = kept(tmp_path / "counts", read.map(count_part_tokens, **given))
    encoded = read.map(encode_part, **given, max_tokens=None, max_lossy_share=1.0, columns=("id",))
    for counts, ids, said in zip(counted, kept(tmp_path / "tokens", encoded), counted.statistics, strict=True):
        assert counts.schema == TOKEN_COUNTS
        found = counts.table()["tokens"].to_numpy()
        expected = ids.table()["token_length"].to_numpy() + 1
        assert np.array_equal(found, expected)
        assert (said["documents"], said["tokens"]) == (len(expected), expected.sum())
    assert sum(part["rechecked_documents"] for part in counted.statistics) > 0 or not installed_engines()


def test_same_bytes_for_any_number_of_workers_and_batches(tokenizer: Artifact, tmp_path: Path) -> None:
    given = counting(tokenizer, tmp_path / "proof")
    made = []
    for workers, batch_rows in ((1, 1), (2, 4), (5, 1000)):
        root = tmp_path / f"counts_{workers}"
        planned = corpus(tmp_path / f"in_{workers}", batch_rows).map(count_part_tokens, **given)
        kept(root, planned, Inline() if workers == 1 else WorkerProcesses(workers))
        made.append({name: data for name, data in file_bytes(root).items() if name.endswith(".parquet")})
    assert len(made[0]) == 3
    assert made[0] == made[1] == made[2]


def test_only_a_lost_part_is_counted_again(tokenizer: Artifact, tmp_path: Path) -> None:
    planned = corpus(tmp_path / "in").map(count_part_tokens, **counting(tokenizer, tmp_path / "proof"))
    kept(tmp_path / "counts", planned)
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "counts").glob("*.parquet")}
    (tmp_path / "counts/part_00001.parquet").unlink()
    kept(tmp_path / "counts", planned)
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "counts").glob("*.parquet")}
    assert {name for name in times if times[name] != again[name]} == {"part_00001.parquet"}


def test_a_proof_of_other_rules_counts_nothing(tokenizer: Artifact, tmp_path: Path) -> None:
    given = counting(tokenizer, tmp_path / "proof", "literal")
    other = counting(tokenizer, tmp_path / "other", "control")["certificate"]
    (part, *_) = corpus(tmp_path / "in")
    with pytest.raises(TokenizerError, match="control"):
        count_part_tokens(part, **{**given, "certificate": other})
