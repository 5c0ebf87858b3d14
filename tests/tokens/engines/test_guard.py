from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from everytoken.tokens import TokenizerError
from everytoken.tokens.engines import registry
from everytoken.tokens.engines.guard import open_guarded
from everytoken.tokens.engines.registry import REFERENCE, installed_engines
from everytoken.tokens.tokenizer.document_tokenizer import DocumentTokenizer, byte_symbols, open_tokenizer
from tests.tokens.corpora import EOS

LOSSY = ["plain", ".\x1d.", "", "plain .. text", "\x1d", "a\x1d", "é"]
FORMS = ["café", "cafe\u0301", "", "plain", "\U00010d27\U00010f46", "e\u0301", f"a{EOS}\u0338"]


def made(folder: Path, missing: Sequence[int] = (), form: str | None = None) -> DocumentTokenizer:
    """A tokenizer with the merge ``..``, without symbols for some bytes, and maybe with a normal form."""
    symbols = [symbol for byte, symbol in byte_symbols().items() if byte not in missing]
    library = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate([*symbols, ".."])}, merges=[(".", ".")]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if form is not None:
        library.normalizer = getattr(normalizers, form)()
    library.add_special_tokens([EOS])
    library.save(str(folder / "tokenizer.json"))
    return open_tokenizer(folder / "tokenizer.json", EOS)


def ids(engine: registry.TokenizerEngine, texts: Sequence[str]) -> list[list[int]]:
    flat, offsets = engine.encode(texts)
    return [flat[start:end].tolist() for start, end in pairwise(offsets.tolist())]


@pytest.mark.parametrize(
    ("name", "missing", "form"),
    [
        ("splintr-rs", [0x1D], None),
        ("splintr-rs", [0x1D, 0xC3], "NFKC"),
        *((name, [], form) for name in ("splintr-rs", "fastokens", "snaptokens") for form in ("NFC", "NFD")),
    ],
)
@pytest.mark.parametrize("policy", ["literal", "control"])
def test_a_guarded_engine_gives_the_ids_of_the_reference(
    tmp_path: Path, name: str, missing: list[int], form: str | None, policy: registry.SpecialTokens
) -> None:
    if name not in installed_engines():
        pytest.skip(f"{name} is not installed (extra 'fast')")
    tokenizer = made(tmp_path, missing, form)
    reference, guarded = (open_guarded(engine, tokenizer, policy) for engine in (REFERENCE, name))
    for texts in (LOSSY, FORMS, LOSSY[::-1] + FORMS, ["plain"], [""], []):
        assert ids(guarded, texts) == ids(reference, texts)
    assert (guarded.name, guarded.version) == (name, installed_engines()[name])


class Recorder:
    """The reference without a merge over a gap and without a normalizer; remembers what it was given."""

    name, version = "recorder", "1"

    def __init__(self, content: bytes) -> None:
        self.native = Tokenizer.from_buffer(content)
        self.given: list[str] = []

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        self.given += texts
        parts = [[i for piece in text.split("\x1d") for i in self.native.encode(piece).ids] for text in texts]
        return np.array([i for part in parts for i in part], np.uint32), np.cumsum([0, *map(len, parts)])


def test_texts_that_lose_bytes_and_only_these_go_to_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = made(tmp_path, [0x1D])
    opened, given = registry.open_engine, []

    class Reference:
        def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
            given.extend(texts)
            return opened(REFERENCE, tokenizer.content, "literal").encode(texts)

    recorder = Recorder(tokenizer.content)
    monkeypatch.setattr(registry, "open_engine", lambda name, *_: Reference() if name == REFERENCE else recorder)
    expected = ids(opened(REFERENCE, tokenizer.content, "literal"), LOSSY)
    assert ids(recorder, LOSSY) != expected, "this engine needs the guard"
    assert ids(open_guarded("recorder", tokenizer, "literal"), LOSSY) == expected
    assert given == [text for text in LOSSY if "\x1d" in text]


def test_engines_see_only_normal_texts_and_no_normalizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = made(tmp_path, form="NFC")
    opened, seen = registry.open_engine, []

    def open_engine(name: str, content: bytes, policy: registry.SpecialTokens) -> registry.TokenizerEngine:
        if name == REFERENCE:
            return opened(name, content, policy)
        seen.append(Recorder(content))
        return seen[-1]

    monkeypatch.setattr(registry, "open_engine", open_engine)
    assert ids(open_guarded("recorder", tokenizer, "literal"), FORMS) == ids(
        opened(REFERENCE, tokenizer.content, "literal"), FORMS
    )
    assert seen[0].native.normalizer is None
    assert "café" in seen[0].given and "cafe\u0301" not in seen[0].given


def test_ids_that_are_none_and_offsets_that_do_not_fit_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = made(tmp_path)
    opened = registry.open_engine
    for flat, message in (
        (([1, 2, 999], [0, 3]), "id 999; the vocabulary ends at 257"),
        (([1, 2], [0, 1]), "do not cut"),
        (([1, 2], [0]), "do not cut"),
        (([1, 2], [1, 2]), "do not cut"),
        (([1, 2], [0, 2, 2]), "do not cut"),
    ):
        engine = Recorder(tokenizer.content)
        arrays = np.array(flat[0], np.uint32), np.array(flat[1])
        monkeypatch.setattr(engine, "encode", lambda texts, arrays=arrays: arrays)
        monkeypatch.setattr(
            registry, "open_engine", lambda name, *rest, e=engine: opened(name, *rest) if name == REFERENCE else e
        )
        with pytest.raises(TokenizerError, match=message):
            open_guarded("recorder", tokenizer, "literal").encode(["ab"])


@pytest.mark.parametrize("name", ["splintr-rs", "fastokens"])
def test_added_tokens_that_only_the_reference_finds_refuse_the_engine(tmp_path: Path, name: str) -> None:
    """The reference looks for a normalized added token in normal form, an engine without normalizer as written."""
    if name not in installed_engines():
        pytest.skip(f"{name} is not installed (extra 'fast')")
    library = Tokenizer.from_buffer(made(tmp_path, form="NFC").content)
    library.add_tokens([AddedToken("cafe\u0301", normalized=True)])
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=r"the added token 'cafe\u0301' is not in NFC"):
        open_guarded(name, open_tokenizer(tmp_path / "tokenizer.json", EOS), "control")
    library = Tokenizer.from_buffer(made(tmp_path).content)
    library.normalizer = normalizers.Sequence([normalizers.NFC()])
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="with the normalizer Sequence"):
        open_guarded(name, open_tokenizer(tmp_path / "tokenizer.json", EOS), "control")
