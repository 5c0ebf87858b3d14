from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from everytoken.tokens import TokenizerError
from everytoken.tokens.engines.registry import (
    _FAST,
    REFERENCE,
    EngineName,
    installed_engines,
    open_engine,
    reference_version,
)
from tests.tokens.corpora import EOS, small_tokenizer

TEXTS = ["the cat sat on the mat", "", f"the {EOS} cat{EOS}", "naïve café\r\n\r\n日本語 1234", "\x00 \x7f\u2028"]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return small_tokenizer(tmp_path_factory.mktemp("small"), TEXTS).path("tokenizer.json").read_bytes()


@pytest.mark.parametrize("name", ["splintr-rs", "fastokens", "snaptokens"])
@pytest.mark.parametrize("policy", ["literal", "control"])
def test_fast_engines_give_the_ids_of_the_reference(content: bytes, name: str, policy: str) -> None:
    if name not in installed_engines():
        pytest.skip(f"{name} is not installed (extra 'fast')")
    engine, reference = open_engine(name, content, policy), open_engine(REFERENCE, content, policy)
    assert (engine.name, engine.version) == (name, installed_engines()[name])
    ids, offsets = engine.encode(TEXTS)
    expected, expected_offsets = reference.encode(TEXTS)
    assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
    assert ids.tolist() == expected.tolist()
    assert offsets.tolist() == expected_offsets.tolist()
    assert [array.tolist() for array in engine.encode([])] == [[], [0]]


def test_the_reference_is_the_library_s(content: bytes) -> None:
    from tokenizers import Tokenizer

    library = Tokenizer.from_buffer(content)
    assert open_engine(REFERENCE, content, "control").version == reference_version()
    for policy, literal in [("control", False), ("literal", True), ("error", True)]:
        library.encode_special_tokens = literal
        ids, offsets = open_engine(REFERENCE, content, policy).encode(TEXTS)
        found = [ids[start:end].tolist() for start, end in pairwise(offsets.tolist())]
        assert found == [library.encode(text, add_special_tokens=False).ids for text in TEXTS]


def test_what_a_file_adds_or_cuts_is_not_the_engine_s(content: bytes, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    library = Tokenizer.from_buffer(content)
    library.enable_truncation(2)
    library.enable_padding(length=9)
    library.post_processor = processors.TemplateProcessing(single=f"{EOS} $A", special_tokens=[(EOS, 0)])
    changed = library.to_str().encode()
    assert json.loads(changed)["truncation"] is not None
    for name in [REFERENCE, *installed_engines()]:
        found = open_engine(name, changed, "control").encode(TEXTS)
        assert found[0].tolist() == open_engine(REFERENCE, content, "control").encode(TEXTS)[0].tolist(), name


def test_engines_that_are_unknown_or_cannot_load_are_named(content: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"no engine 'fast'.*splintr-rs"):
        open_engine("fast", content, "literal")
    for name in installed_engines():
        with pytest.raises(TokenizerError, match=f"the engine {name} cannot load"):
            open_engine(name, b'{"added_tokens": [], "model": {"type": "BPE"}}', "literal")


def test_parameters_can_name_every_engine_and_nothing_else() -> None:
    """A name that does not exist is wrong also when all tokens are made and no engine is asked for."""
    assert set(get_args(EngineName)) == {"fastest", REFERENCE, *_FAST}
