"""Where tokens are in their texts: those of the library, for whole texts and for pieces of long ones."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer

from everytoken.tokens import EncodingRules, open_encoder
from everytoken.tokens.encoding import TokenSpan, open_spans
from tests.shared_assets import shared_folder
from tests.tokens.corpora import EOS, small_tokenizer

TEXT = "The ferry left at noon — 北京 🙂.\n\n  It carried forty people.\n"


def covered(spans: list[TokenSpan]) -> set[int]:
    return {character for start, end in spans for character in range(start, end)}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> EncodingRules:
    return EncodingRules(small_tokenizer(tmp_path_factory.mktemp("tokenizer"), [TEXT]), EOS, "literal")


def test_spans_cover_the_text_and_are_as_many_as_the_tokens(rules: EncodingRules) -> None:
    spans, encoder = open_spans(rules), open_encoder(rules)
    for text in (TEXT, TEXT * 2000, f"it spells {EOS} here", "", "🙂"):
        found = spans.first(text, 1 << 30)
        assert len(found) == spans.count(text) == int(encoder.encode([text]).full_lengths[0])
        assert [start for start, _ in found] == sorted(start for start, _ in found)
        assert covered(found) == set(range(len(text)))
        for tokens in (0, 1, 7):
            assert spans.first(text, tokens) == found[:tokens]


def test_pieces_of_a_long_text_have_the_spans_of_the_whole(rules: EncodingRules) -> None:
    spans = open_spans(rules)
    assert spans.may_be_cut
    text = TEXT * 2000
    assert spans.first(text, 1 << 30) == spans.tokenizer.encode(text, add_special_tokens=False).offsets


def test_special_tokens_in_text_are_read_as_the_rules_say(rules: EncodingRules) -> None:
    control = EncodingRules(rules.tokenizer, EOS, "control")
    text = f"a{EOS}b"
    assert open_spans(control).first(text, 9) == [(0, 1), (1, 1 + len(EOS)), (1 + len(EOS), 2 + len(EOS))]
    assert open_spans(rules).count(text) > 3 == open_spans(control).count(text)


@pytest.mark.parametrize("name", ["smollm2", "gpt2", "gpt-neox"])
def test_no_space_is_between_the_spans_of_a_known_tokenizer(name: str) -> None:
    path = shared_folder("tokenizers") / name / "tokenizer.json"
    spans = open_spans(EncodingRules(path, EOS, "control"))
    found = spans.first(TEXT, 1 << 30)
    assert covered(found) == set(range(len(TEXT)))
    assert len(found) == len(Tokenizer.from_file(str(path)).encode(TEXT, add_special_tokens=False).ids)


def test_spans_are_those_of_the_reference_run() -> None:
    path = shared_folder("tokenizers") / "smollm2/tokenizer.json"
    spans = open_spans(EncodingRules(path, EOS, "literal"))
    vectors = json.loads((shared_folder("vectors") / "placement.json").read_text(encoding="utf-8"))
    for vector in vectors:
        found = spans.first(vector["text"], vector["token_length"])
        assert len(found) == vector["reflection_end_token_index"]
        assert found[-1][1] == vector["reflection_end_position"]
        assert found[vector["reflection_token_index"]][0] == vector["reflection_position"], vector["doc_id"]
