from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from everytoken.tokens import DocumentEncoder, Encoded, EncodingRules, TokenizerError, open_encoder
from everytoken.tokens.encoding import encoder
from everytoken.tokens.encoding.encoder import SpelledSpecialToken
from everytoken.tokens.tokenizer import document_tokenizer
from everytoken.tokens.tokenizer.document_tokenizer import byte_symbols
from tests.tokens.corpora import EOS, small_tokenizer

TEXTS = [
    "the cat sat on the mat, the cat sat",
    "a man, a plan: 2,000 canals\n\nand\tthe cat",
    "naïve café 日本語 the",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> DocumentEncoder:
    return opened(small_tokenizer(tmp_path_factory.mktemp("small"), TEXTS).path("tokenizer.json"))


def opened(path: Path, special_tokens_in_text: str = "control") -> DocumentEncoder:
    return open_encoder(EncodingRules(path, EOS, special_tokens_in_text))


def library_ids(path: Path | str, eos: str, max_tokens: int, texts: list[str]) -> list[list[int]]:
    """What the library gives by itself: EOS by the post-processor, truncation that makes room for it."""
    library = Tokenizer.from_file(str(path))
    library.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", special_tokens=[(eos, library.token_to_id(eos))]
    )
    library.no_padding()
    library.enable_truncation(max_tokens)
    return [encoding.ids for encoding in library.encode_batch(texts)]


def split(encoded: Encoded) -> list[list[int]]:
    return [part.tolist() for part in np.split(encoded.values, encoded.offsets[1:-1])]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(max_size=60), max_size=8), st.integers(2, 40))
def test_every_text_gives_its_bytes_back_and_counts_agree(trained: DocumentEncoder, texts: list[str], cap: int) -> None:
    encoded = trained.encode(texts, cap)
    whole = split(trained.encode(texts, 1 << 20)) if texts else []
    assert not trained.tokenizer.missing_bytes and not encoded.lost_bytes.any()
    for i, (text, ids) in enumerate(zip(texts, whole, strict=True)):
        assert trained.tokenizer.tokenizer.decode(ids[:-1], skip_special_tokens=False) == text
        assert split(encoded)[i] == [*ids[:-1][: cap - 1], trained.tokenizer.eos_id]
        assert encoded.lengths[i] == min(len(ids) - 1, cap - 1)
        assert encoded.full_lengths[i] == len(ids) - 1
        assert encoded.text_bytes[i] == len(text.encode())


@settings(deadline=None, max_examples=20)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=12), st.integers(1, 40))
def test_ids_do_not_depend_on_how_texts_are_batched(
    trained: DocumentEncoder, texts: list[str], characters: int
) -> None:
    expected = trained.encode(texts, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "_ENCODE_CHARACTERS", characters)
        found = trained.encode(texts, 8)
    for name, value in vars(expected).items():
        assert np.array_equal(value, vars(found)[name]), name


def test_the_file_s_own_truncation_padding_and_post_processor_change_nothing(
    trained: DocumentEncoder, tmp_path: Path
) -> None:
    loaded = Tokenizer.from_str(trained.tokenizer.tokenizer.to_str())
    loaded.enable_truncation(3)
    loaded.enable_padding(length=50, pad_id=7)
    loaded.post_processor = processors.TemplateProcessing(single=f"{EOS} $A", special_tokens=[(EOS, 0)])
    loaded.save(str(tmp_path / "tokenizer.json"))
    other = opened(tmp_path / "tokenizer.json")
    assert split(other.encode(TEXTS, 9)) == split(trained.encode(TEXTS, 9))


@pytest.mark.parametrize("cap", [2, 3, 7, 1000])
def test_the_cut_is_the_library_s(trained: DocumentEncoder, tmp_path: Path, cap: int) -> None:
    trained.tokenizer.tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = ["", *TEXTS]
    assert split(trained.encode(texts, cap)) == library_ids(tmp_path / "tokenizer.json", EOS, cap, texts)


def test_eos_spelled_in_a_text_is_counted(trained: DocumentEncoder) -> None:
    encoded = trained.encode([f"the {EOS} cat{EOS}", "the"], 100)
    assert encoded.special_ids.tolist() == [2, 0]
    assert not encoded.lost_bytes.any()


def test_lost_bytes_are_counted_exactly(tmp_path: Path) -> None:
    vocabulary = {symbol: i for i, symbol in enumerate(s for b, s in byte_symbols().items() if b not in (1, 0xF0))}
    library = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_special_tokens([EOS])
    library.save(str(tmp_path / "tokenizer.json"))
    encoder = opened(tmp_path / "tokenizer.json")
    assert encoder.tokenizer.missing_bytes == (1, 0xF0)
    encoded = encoder.encode(["plain é", "a\x01b\x01", "😀", "\x01"], 3)
    assert encoded.lost_bytes.tolist() == [0, 2, 1, 1]
    assert encoded.lengths.tolist() == [2, 2, 2, 0], "the count is over the whole text, the ids are cut"


def test_a_token_that_swallows_spaces_is_seen_as_loss(trained: DocumentEncoder, tmp_path: Path) -> None:
    description = json.loads(trained.tokenizer.tokenizer.to_str())
    description["added_tokens"][0]["lstrip"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    encoder = opened(tmp_path / "tokenizer.json")
    assert encoder.encode([f"the  {EOS}", "the"], 100).lost_bytes.tolist() == [2, 0]


def test_a_cap_without_room_for_content_is_refused(trained: DocumentEncoder) -> None:
    with pytest.raises(TokenizerError, match="EOS counts"):
        trained.encode(["the"], 1)


@pytest.mark.parametrize("policy", ["literal", "control", "error"])
def test_special_tokens_in_a_text_follow_the_policy(trained: DocumentEncoder, tmp_path: Path, policy: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(trained.tokenizer.content)
    encoder = opened(path, policy)
    texts = ["the cat", f"{EOS}the {EOS} cat{EOS}", "<|endoftext the", EOS]
    if policy == "error":
        with pytest.raises(SpelledSpecialToken, match=r"'<\|endoftext\|>' at character 0.*'literal'") as caught:
            encoder.encode(texts)
        assert caught.value.number == 1
        assert encoder.encode([texts[0], texts[2]]).spells_special.tolist() == [False, False]
        return
    encoded = encoder.encode(texts)
    assert encoded.spells_special.tolist() == [False, True, False, True]
    assert not encoded.lost_bytes.any()
    special = [0, 3, 0, 1] if policy == "control" else [0, 0, 0, 0]
    assert encoded.special_ids.tolist() == special
    assert (encoded.values == encoder.tokenizer.eos_id).sum() == len(texts) + sum(special)
    decoded = [encoder.tokenizer.tokenizer.decode(ids[:-1], skip_special_tokens=False) for ids in split(encoded)]
    assert decoded == texts


def test_special_ids_beyond_the_cut_do_not_count(trained: DocumentEncoder) -> None:
    encoded = trained.encode([f"{EOS}{EOS}{EOS}"], 3)
    assert (encoded.special_ids.tolist(), encoded.lengths.tolist(), encoded.full_lengths.tolist()) == ([2], [2], [3])


def test_an_eos_that_is_no_special_token_needs_control(trained: DocumentEncoder, tmp_path: Path) -> None:
    description = json.loads(trained.tokenizer.content)
    description["added_tokens"][0]["special"] = False
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(description))
    with pytest.raises(TokenizerError, match="no special token"):
        opened(path, "literal")
    assert opened(path, "control").encode(["the"]).lengths.tolist() == [len(trained.encode(["the"]).values) - 1]


class Wrong:
    """An engine that gives what it is told."""

    name, version = "wrong", "1"

    def __init__(self, ids: list[int], offsets: list[int]) -> None:
        self.result = np.array(ids, np.uint32), np.array(offsets, np.int64)

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        return self.result


@pytest.mark.parametrize(
    ("ids", "offsets", "message"),
    [
        ([1, 2], [0, 1], "do not cut"),
        ([1, 2], [0, 3, 2], "do not cut"),
        ([1, 2], [0, 1, 3], "do not cut"),
        ([1, 285], [0, 1, 2], "the id 285; the vocabulary ends at 284"),
        ([1, 0], [0, 1, 2], "special token 0 for plain text"),
    ],
)
def test_an_engine_that_gives_nonsense_is_stopped(
    trained: DocumentEncoder, ids: list[int], offsets: list[int], message: str
) -> None:
    encoder = DocumentEncoder(trained.tokenizer, Wrong(ids, offsets), "literal")
    with pytest.raises(TokenizerError, match=message):
        encoder.encode(["a", "b"])


def test_long_texts_are_encoded_in_pieces_with_the_same_ids(trained: DocumentEncoder) -> None:
    texts = ["the cat sat on the mat. " * 40, "thecatsat" * 30, "", f"a man {EOS} a plan 12 34 " * 30]
    expected = trained.encode(texts, 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "PIECE_CHARACTERS", 20)
        patch.setattr(document_tokenizer, "_MEASURED_IDS", 7)
        patch.setattr("everytoken.tokens.tokenizer.text_pieces.cut_text.__defaults__", (20,))
        found = trained.encode(texts, 1000)
    for name, value in vars(expected).items():
        assert np.array_equal(value, vars(found)[name]), name


def test_a_text_that_is_normal_already_is_not_counted_as_normalized(trained: DocumentEncoder, tmp_path: Path) -> None:
    trained.tokenizer.tokenizer.save(str(tmp_path / "nfc.json"))
    data = json.loads((tmp_path / "nfc.json").read_text())
    (tmp_path / "nfc.json").write_text(json.dumps({**data, "normalizer": {"type": "NFC"}}))
    encoded = opened(tmp_path / "nfc.json").encode(["cafe", "caf\u00e9", "cafe\u0301", "日本語"])
    assert encoded.normalized.tolist() == [False, False, True, False]
    assert encoded.text_bytes.tolist() == [4, 5, 6, 9]
    assert encoded.lost_bytes.tolist() == [0, 0, 0, 0]
    assert encoded.characters.tolist() == [4, 4, 5, 3]


def test_what_a_normalizer_of_ascii_changes_is_counted(trained: DocumentEncoder, tmp_path: Path) -> None:
    trained.tokenizer.tokenizer.save(str(tmp_path / "lower.json"))
    data = json.loads((tmp_path / "lower.json").read_text())
    (tmp_path / "lower.json").write_text(json.dumps({**data, "normalizer": {"type": "Lowercase"}}))
    encoded = opened(tmp_path / "lower.json").encode(["Cafe", "cafe", "CAF\u00c9"])
    assert encoded.normalized.tolist() == [True, False, True]
