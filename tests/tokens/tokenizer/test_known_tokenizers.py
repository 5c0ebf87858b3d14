"""Tokenizers that everybody uses, against the library itself and against the reference run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from everytoken.tokens import DocumentEncoder, Encoded, EncodingRules, open_encoder
from everytoken.tokens.tokenizer.probe import PROBE_TEXT, probe_record
from tests.shared_assets import shared_folder
from tests.tokens.corpora import EOS

# The GPT-NeoX file is OLMo's, whose EOS is its last token; EleutherAI's has it first.
KNOWN = {"smollm2": (0, 49_152, 21), "gpt2": (50_256, 50_257, 0), "gpt-neox": (50_279, 50_280, 13)}
PROBES = {"smollm2": "84fbcccfe800aa03", "gpt2": "df92f4fb8df7c05b", "gpt-neox": "388a39af3188dd0b"}
TEXTS = [
    "",
    "A cafe\u0301 of the 1990s\n\nand        spaces\r\n",
    "日本語 text " * 30,
    "x" * 50,
    " ",
    "\n\n",
    PROBE_TEXT,
]


def opened(name: str, special_tokens_in_text: str = "control") -> DocumentEncoder:
    path = shared_folder("tokenizers") / name / "tokenizer.json"
    return open_encoder(EncodingRules(path, EOS, special_tokens_in_text))  # type: ignore[arg-type]


def split(encoded: Encoded) -> list[list[int]]:
    return [part.tolist() for part in np.split(encoded.values, encoded.offsets[1:-1])]


def library_ids(path: Path, max_tokens: int, literal: bool) -> list[list[int]]:
    """What the library gives by itself: EOS by the post-processor, truncation that makes room for it."""
    library = Tokenizer.from_file(str(path))
    library.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, library.token_to_id(EOS))]
    )
    library.no_padding()
    library.enable_truncation(max_tokens)
    library.encode_special_tokens = literal
    return [encoding.ids for encoding in library.encode_batch(TEXTS)]


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_of_a_published_tokenizer(name: str) -> None:
    eos_id, vocab_size, missing = KNOWN[name]
    tokenizer = opened(name).tokenizer
    assert (tokenizer.eos_id, tokenizer.vocab_size, len(tokenizer.missing_bytes)) == (eos_id, vocab_size, missing)
    assert tokenizer.dtype == np.uint16
    assert tokenizer.special_tokens[EOS] == eos_id


@pytest.mark.parametrize("name", KNOWN)
def test_the_library_that_is_installed_encodes_as_the_one_that_this_project_was_made_with(name: str) -> None:
    assert probe_record(opened(name).tokenizer.tokenizer)["sha256"].startswith(PROBES[name])


@pytest.mark.parametrize("cap", [2, 3, 20, 21, 1_920])
@pytest.mark.parametrize("policy", ["literal", "control"])
@pytest.mark.parametrize("name", KNOWN)
def test_the_cut_is_that_of_the_library_with_eos_by_its_post_processor(name: str, policy: str, cap: int) -> None:
    path = shared_folder("tokenizers") / name / "tokenizer.json"
    encoded = opened(name, policy).encode(TEXTS, cap)
    assert split(encoded) == library_ids(path, cap, policy == "literal")
    assert int(encoded.lengths.max()) <= cap - 1
    assert encoded.normalized.tolist() == [False, name == "gpt-neox", False, False, False, False, name == "gpt-neox"]


@pytest.mark.parametrize("name", KNOWN)
def test_eos_ends_documents_and_nothing_else_when_special_tokens_are_literal(name: str) -> None:
    encoded = opened(name, "literal").encode(TEXTS)
    eos_id = KNOWN[name][0]
    assert int((encoded.values == eos_id).sum()) == len(TEXTS)
    control = opened(name, "control").encode(TEXTS)
    assert int((control.values == eos_id).sum()) == len(TEXTS) + PROBE_TEXT.count(EOS)


def test_two_newlines_are_one_token_of_smollm2() -> None:
    assert split(opened("smollm2").encode(["\n\n", "a\n\n", "a\n\nb"])) == [
        [1116, 0],
        [81, 1116, 0],
        [81, 198, 198, 82, 0],
    ]


def test_smollm2_s_lost_bytes_are_those_that_decoding_misses() -> None:
    encoder = opened("smollm2")
    tokenizer = encoder.tokenizer
    texts = ["bell \x07, end \x04 and \x16\x1d", "plain", "\U00040000 plane 4", "ok \x7f"]
    lost = encoder.encode(texts, 100).lost_bytes
    assert lost.tolist() == [3, 0, 1, 0]
    for text, count in zip(texts, lost.tolist(), strict=True):
        kept = tokenizer.tokenizer.decode(tokenizer.tokenizer.encode(text, add_special_tokens=False).ids)
        assert (count > 0) == (kept != text), text
        assert count == sum(byte in tokenizer.missing_bytes for byte in text.encode())


def test_ids_of_real_text_are_those_of_the_reference_run() -> None:
    vectors = json.loads((shared_folder("vectors") / "placement.json").read_text(encoding="utf-8"))
    encoded = opened("smollm2", "literal").encode([vector["text"] for vector in vectors], 1920)
    assert encoded.lengths.tolist() == [vector["token_length"] for vector in vectors]
    assert int(encoded.lengths.max()) == 1919, "EOS counts: the cap leaves one less to content"
    for vector, ids in zip(vectors, np.split(encoded.values, encoded.offsets[1:-1]), strict=True):
        assert hashlib.sha256(ids.astype("<u2").tobytes()).hexdigest() == vector["ids_sha256"], vector["doc_id"]
