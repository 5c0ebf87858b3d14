from __future__ import annotations

import json
from pathlib import Path

import pytest

from everytoken.tokens import DocumentTokenizer, TokenizerError, open_tokenizer, token_dtype
from tests.tokens.corpora import EOS, small_tokenizer

TEXTS = [
    "the cat sat on the mat, the cat sat",
    "a man, a plan: 2,000 canals\n\nand\tthe cat",
    "naïve café 日本語 the",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> DocumentTokenizer:
    return open_tokenizer(small_tokenizer(tmp_path_factory.mktemp("small"), TEXTS), EOS)


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


@pytest.mark.parametrize(("size", "kind"), [(2, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_ids_are_uint16_exactly_when_they_fit(size: int, kind: str) -> None:
    assert token_dtype(size) == kind


def test_an_unknown_token_that_is_added_is_refused_when_bytes_can_be_lost(
    trained: DocumentTokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    description = json.loads(trained.tokenizer.to_str())
    description["model"]["unk_token"] = EOS
    path.write_text(json.dumps(description))
    assert open_tokenizer(path, EOS).missing_bytes == (), "no byte is ever unknown"
    description["model"]["vocab"].pop("Ā")
    path.write_text(json.dumps(description))
    with pytest.raises(TokenizerError, match=r"its unknown token .* is an added token"):
        open_tokenizer(path, EOS)


def test_two_byte_levels_are_refused(trained: DocumentTokenizer, tmp_path: Path) -> None:
    description = json.loads(trained.tokenizer.to_str())
    description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [description["pre_tokenizer"]] * 2}
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(TokenizerError, match="more than one ByteLevel"):
        open_tokenizer(tmp_path / "tokenizer.json", EOS)
