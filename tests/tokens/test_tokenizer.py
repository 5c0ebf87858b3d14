from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from everytoken.tokens import DocumentTokenizer, TokenizerError, open_tokenizer, token_dtype, tokenizer
from everytoken.tokens.tokenizer import byte_symbols
from tests.shared_assets import shared_folder
from tests.tokens.corpora import EOS, small_tokenizer

TEXTS = [
    "the cat sat on the mat, the cat sat",
    "a man, a plan: 2,000 canals\n\nand\tthe cat",
    "naïve café 日本語 the",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> DocumentTokenizer:
    return open_tokenizer(small_tokenizer(tmp_path_factory.mktemp("small"), TEXTS), EOS)


def library_ids(path: Path | str, eos: str, max_tokens: int, texts: list[str]) -> list[list[int]]:
    """What the library gives by itself: EOS by the post-processor, truncation that makes room for it."""
    library = Tokenizer.from_file(str(path))
    library.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", special_tokens=[(eos, library.token_to_id(eos))]
    )
    library.no_padding()
    library.enable_truncation(max_tokens)
    return [encoding.ids for encoding in library.encode_batch(texts)]


def split(encoded: tokenizer.Encoded) -> list[list[int]]:
    return [part.tolist() for part in np.split(encoded.values, encoded.offsets[1:-1])]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(max_size=60), max_size=8), st.integers(2, 40))
def test_every_text_gives_its_bytes_back_and_counts_agree(
    trained: DocumentTokenizer, texts: list[str], cap: int
) -> None:
    encoded = trained.encode(texts, cap)
    whole = split(trained.encode(texts, 1 << 20)) if texts else []
    assert not trained.missing_bytes and not encoded.lost_bytes.any()
    for i, (text, ids) in enumerate(zip(texts, whole, strict=True)):
        assert trained.tokenizer.decode(ids[:-1], skip_special_tokens=False) == text
        assert split(encoded)[i] == [*ids[:-1][: cap - 1], trained.eos_id]
        assert encoded.lengths[i] == min(len(ids) - 1, cap - 1)
        assert encoded.full_lengths[i] == len(ids) - 1
        assert encoded.text_bytes[i] == len(text.encode())


@settings(deadline=None, max_examples=20)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=12), st.integers(1, 40))
def test_ids_do_not_depend_on_how_texts_are_batched(
    trained: DocumentTokenizer, texts: list[str], characters: int
) -> None:
    expected = trained.encode(texts, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "_ENCODE_CHARACTERS", characters)
        found = trained.encode(texts, 8)
    for name, value in vars(expected).items():
        assert np.array_equal(value, vars(found)[name]), name


def test_the_file_s_own_truncation_padding_and_post_processor_change_nothing(
    trained: DocumentTokenizer, tmp_path: Path
) -> None:
    loaded = Tokenizer.from_str(trained.tokenizer.to_str())
    loaded.enable_truncation(3)
    loaded.enable_padding(length=50, pad_id=7)
    loaded.post_processor = processors.TemplateProcessing(single=f"{EOS} $A", special_tokens=[(EOS, 0)])
    loaded.save(str(tmp_path / "tokenizer.json"))
    other = open_tokenizer(tmp_path / "tokenizer.json", EOS)
    assert split(other.encode(TEXTS, 9)) == split(trained.encode(TEXTS, 9))


@pytest.mark.parametrize("cap", [2, 3, 7, 1000])
def test_the_cut_is_the_library_s(trained: DocumentTokenizer, tmp_path: Path, cap: int) -> None:
    trained.tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = ["", *TEXTS]
    assert split(trained.encode(texts, cap)) == library_ids(tmp_path / "tokenizer.json", EOS, cap, texts)


def test_eos_spelled_in_a_text_is_counted(trained: DocumentTokenizer) -> None:
    encoded = trained.encode([f"the {EOS} cat{EOS}", "the"], 100)
    assert encoded.eos_in_text.tolist() == [2, 0]
    assert not encoded.lost_bytes.any()


def test_lost_bytes_are_counted_exactly(tmp_path: Path) -> None:
    vocabulary = {symbol: i for i, symbol in enumerate(s for b, s in byte_symbols().items() if b not in (1, 0xF0))}
    library = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_special_tokens([EOS])
    library.save(str(tmp_path / "tokenizer.json"))
    opened = open_tokenizer(tmp_path / "tokenizer.json", EOS)
    assert opened.missing_bytes == (1, 0xF0)
    encoded = opened.encode(["plain é", "a\x01b\x01", "😀", "\x01"], 3)
    assert encoded.lost_bytes.tolist() == [0, 2, 1, 1]
    assert encoded.lengths.tolist() == [2, 2, 2, 0], "the count is over the whole text, the ids are cut"


def test_a_token_that_swallows_spaces_is_seen_as_loss(trained: DocumentTokenizer, tmp_path: Path) -> None:
    description = json.loads(trained.tokenizer.to_str())
    description["added_tokens"][0]["lstrip"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    opened = open_tokenizer(tmp_path / "tokenizer.json", EOS)
    assert opened.encode([f"the  {EOS}", "the"], 100).lost_bytes.tolist() == [2, 0]


def test_a_missing_eos_token_is_named(trained: DocumentTokenizer, tmp_path: Path) -> None:
    trained.tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=r"no token '<\|end\|>'.*<\|endoftext\|>"):
        open_tokenizer(tmp_path / "tokenizer.json", "<|end|>")


def test_tokenizers_that_lose_or_invent_text_or_draw_at_random_are_refused(
    trained: DocumentTokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    for change, message in [
        ({"pre_tokenizer": {"type": "Whitespace"}}, "Whitespace"),
        ({"pre_tokenizer": None}, "BPE with the pre-tokenizers"),
        ({"dropout": 0.1}, "drawn at random"),
        ({"add_prefix_space": True}, "adds a space"),
    ]:
        description = json.loads(trained.tokenizer.to_str())
        for key, value in change.items():
            target = {"dropout": "model", "add_prefix_space": "pre_tokenizer"}.get(key)
            (description[target] if target else description)[key] = value
        path.write_text(json.dumps(description))
        with pytest.raises(TokenizerError, match=message):
            open_tokenizer(path, EOS)
    path.write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is not"):
        open_tokenizer(path, EOS)
    with pytest.raises(TokenizerError, match="cannot read"):
        open_tokenizer(tmp_path / "absent.json", EOS)


def test_a_cap_without_room_for_content_is_refused(trained: DocumentTokenizer) -> None:
    with pytest.raises(TokenizerError, match="EOS counts"):
        trained.encode(["the"], 1)


@pytest.mark.parametrize(("size", "kind"), [(2, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_ids_are_uint16_exactly_when_they_fit(size: int, kind: str) -> None:
    assert token_dtype(size) == kind


@pytest.mark.parametrize(
    ("name", "eos_id", "vocab_size", "missing"),
    [("smollm2", 0, 49_152, 21), ("gpt2", 50_256, 50_257, 0), ("gpt-neox", 50_279, 50_280, 13)],
)
def test_published_tokenizers(name: str, eos_id: int, vocab_size: int, missing: int) -> None:
    path = shared_folder("tokenizers") / name / "tokenizer.json"
    opened = open_tokenizer(path, EOS)
    assert (opened.eos_id, opened.vocab_size, len(opened.missing_bytes)) == (eos_id, vocab_size, missing)
    assert opened.dtype == np.uint16
    texts = ["", "A cafe\u0301 of the 1990s\n\nand        spaces\r\n", "日本語 text " * 30, "x" * 50]
    encoded = opened.encode(texts, 20)
    assert split(encoded) == library_ids(path, EOS, 20, texts)
    assert not encoded.lost_bytes.any()
    assert encoded.normalized.tolist() == [False, name == "gpt-neox", False, False]


def test_smollm2_s_lost_bytes_are_those_that_decoding_misses() -> None:
    opened = open_tokenizer(shared_folder("tokenizers") / "smollm2" / "tokenizer.json", EOS)
    texts = ["bell \x07 and \x00", "plain", "\U000f0000 plane 15", "ok \x7f"]
    lost = opened.encode(texts, 100).lost_bytes
    for text, count in zip(texts, lost.tolist(), strict=True):
        kept = opened.tokenizer.decode(opened.tokenizer.encode(text, add_special_tokens=False).ids)
        assert (count > 0) == (kept != text), text
        assert count == sum(byte in opened.missing_bytes for byte in text.encode())


def test_ids_of_real_text_are_those_of_the_reference_run() -> None:
    vectors = json.loads((shared_folder("vectors") / "placement.json").read_text(encoding="utf-8"))
    opened = open_tokenizer(shared_folder("tokenizers") / "smollm2" / "tokenizer.json", EOS)
    encoded = opened.encode([vector["text"] for vector in vectors], 1920)
    assert encoded.lengths.tolist() == [vector["token_length"] for vector in vectors]
    for vector, ids in zip(vectors, np.split(encoded.values, encoded.offsets[1:-1]), strict=True):
        assert hashlib.sha256(ids.astype("<u2").tobytes()).hexdigest() == vector["ids_sha256"], vector["doc_id"]
