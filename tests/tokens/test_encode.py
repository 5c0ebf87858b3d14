from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from everytoken.shards import Artifact, Inline, Processes, Store
from everytoken.tokens import TokenizerError, encode_part, open_tokenizer
from everytoken.tokens.tokenizer import byte_symbols
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
    library.save(str(tmp_path / "tokenizer.json"))
    return Artifact(folder=tmp_path, ledger={"files": {"tokenizer.json": {}}, "root_digest": "lossy"})


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_every_column_stays_and_tokens_are_added(tokenizer: Artifact, tmp_path: Path, batch_rows: int) -> None:
    table = documents(TEXTS)
    (part,) = stored(tmp_path, [table], batch_rows)
    made, statistics = run(encode_part(part, tokenizer=tokenizer, eos_token=EOS, max_tokens=8, max_lossy_share=0.0))
    assert made.select(table.column_names).equals(table)
    assert made.schema.field("token_length").type == pa.int32()
    assert made.schema.field("tokens").type == pa.list_(pa.uint16())
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
    assert list(statistics["by_source"]) == ["code", "web"]
    for name in set(statistics) - {"by_source"}:
        assert statistics[name] == sum(counts[name] for counts in statistics["by_source"].values())


def test_workers_and_batches_do_not_change_the_rows(tokenizer: Artifact, tmp_path: Path) -> None:
    tables = [documents(TEXTS * 40, 0), documents(TEXTS[::-1] * 40, 1), documents([], 2)]
    parameters = {"tokenizer": tokenizer, "eos_token": EOS, "max_tokens": 8, "max_lossy_share": 0.0}
    digests = []
    for name, engine, batch_rows in [("a", Inline(), 7), ("b", Processes(2), 1000)]:
        planned = stored(tmp_path / "in" / name, tables, batch_rows).map(encode_part, **parameters)
        store = Store(tmp_path / name)
        store.save(planned, engine)
        loaded = store.load()
        digests.append((loaded.root_digest, loaded.statistics))
    assert digests[0] == digests[1]


def test_lossy_documents_are_counted_and_fail_the_part_beyond_the_share(lossy: Artifact, tmp_path: Path) -> None:
    (part,) = stored(tmp_path / "in", [documents(["plain", "café é", "plain", "é"])])
    _, statistics = run(encode_part(part, tokenizer=lossy, eos_token=EOS, max_tokens=8, max_lossy_share=0.5))
    assert (statistics["lossy_documents"], statistics["lossy_bytes"]) == (2, 6)
    assert statistics["by_source"]["web"]["lossy_documents"] == 0
    with pytest.raises(
        TokenizerError, match=r"part_00000: 2 of 4 documents lose text .*first is row 1.*\[195, 169\]|169"
    ):
        run(encode_part(part, tokenizer=lossy, eos_token=EOS, max_tokens=8, max_lossy_share=0.49))


def test_wrong_columns_and_nulls_are_named(tokenizer: Artifact, tmp_path: Path) -> None:
    parameters = {"tokenizer": tokenizer, "eos_token": EOS, "max_tokens": 8, "max_lossy_share": 0.0}
    table = documents(["a", "b"])
    (part,) = stored(tmp_path / "a", [table.drop_columns(["source"])])
    with pytest.raises(TokenizerError, match="expected text and source"):
        encode_part(part, **parameters)
    (part,) = stored(tmp_path / "b", [table.set_column(1, "text", pa.array(["a", None], pa.large_string()))])
    with pytest.raises(TokenizerError, match="part_00000 row 1: text is null"):
        run(encode_part(part, **parameters))
