from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.tokens.engines.registry import REFERENCE, TokenizerEngine, open_engine
from everytoken.tokens.tokenizer.document_tokenizer import open_tokenizer
from everytoken.tokens.tokenizer.text_pieces import cut_text, may_be_cut
from tests.shared_assets import shared_folder
from tests.tokens.corpora import EOS, small_tokenizer

SPACES = ("\n", "\r\n", "\t", " ", "  ", "   ", "")
WORDS = st.sampled_from([*SPACES, "ab", "the", "e's", "'ll", "12", "_", ".", EOS, "é", "e\u0301", "日本", "١٢", "🙂"])
TEXT = st.lists(st.one_of(WORDS, st.text(max_size=3)), max_size=40).map(" ".join)


@lru_cache
def reference(content: bytes) -> TokenizerEngine:
    return open_engine(REFERENCE, content, "control")


def same_in_pieces(content: bytes, text: str, characters: int) -> None:
    cut = list(cut_text(text, characters))
    assert "".join(cut) == text
    engine = reference(content)
    assert engine.encode(cut)[0].tolist() == engine.encode([text])[0].tolist(), cut


@settings(deadline=None, max_examples=300)
@given(TEXT, st.integers(1, 30))
def test_pieces_have_the_ids_of_the_whole(trained: bytes, text: str, characters: int) -> None:
    same_in_pieces(trained, text, characters)


@pytest.mark.parametrize("name", ["smollm2", "gpt2", "gpt-neox"])
def test_pieces_have_the_ids_of_the_whole_with_published_tokenizers(name: str) -> None:
    path = shared_folder("tokenizers") / name / "tokenizer.json"
    assert open_tokenizer(path, EOS).may_be_cut

    @settings(deadline=None, max_examples=150)
    @given(TEXT, st.integers(1, 30))
    def check(text: str, characters: int) -> None:
        same_in_pieces(path.read_bytes(), text, characters)

    check()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = small_tokenizer(
        tmp_path_factory.mktemp("small"), ["the cat sat on the mat, a man, a plan: ab cd naïve café canals"]
    )
    return folder.path("tokenizer.json").read_bytes()


def test_pieces_end_at_the_first_place_after_the_size() -> None:
    assert list(cut_text("ab cd ef gh", 2)) == ["ab", " cd", " ef", " gh"]
    assert list(cut_text("ab cd ef gh", 3)) == ["ab cd", " ef", " gh"]
    assert list(cut_text("x" * 50, 3)) == ["x" * 50], "no place to cut: the text stays whole"
    assert list(cut_text("", 3)) == [""]
    assert list(cut_text("ab  cd. ef é gh", 2)) == ["ab  cd. ef é gh"], "only single spaces between ASCII letters"


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s"}, "behavior": "Isolated"}},
        {"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}},
        {"normalizer": {"type": "Lowercase"}},
        {"added_tokens": [{"content": "a b", "rstrip": False}]},
        {"added_tokens": [{"content": "<x>", "rstrip": True}]},
    ],
)
def test_what_might_see_across_a_cut_is_not_cut(trained: bytes, change: dict[str, object]) -> None:
    description = json.loads(trained)
    assert may_be_cut(description, [description["pre_tokenizer"]])
    description.update(change)
    assert not may_be_cut(description, [description["pre_tokenizer"]])


MEMORY = """
import sys
from pathlib import Path
from everytoken.tokens import EncodingRules, open_encoder
encoder = open_encoder(EncodingRules(Path(sys.argv[1]), "<|endoftext|>", "literal"))
encoder.encode(["warm up"])
text = " the cat sat on the mat" * 600_000
before = peak = None
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
before = peak()
encoded = encoder.encode([text], 2048)
print(int(encoded.full_lengths[0]), int(encoded.lost_bytes[0]), peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc: peak memory cannot be read")
def test_a_long_document_is_encoded_in_bounded_memory(trained: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(trained)
    code = [sys.executable, "-c", MEMORY, str(tmp_path / "tokenizer.json")]
    tokens, lost, mebibytes = map(
        float, subprocess.run(code, capture_output=True, text=True, check=True).stdout.split()
    )
    assert (tokens, lost) == (600_000 * reference(trained).encode([" the cat sat on the mat"])[1][-1], 0)
    assert mebibytes < 350, (
        "14 MB of text; the ids and sums take 12 bytes a token, the library 100 bytes a token a piece"
    )
