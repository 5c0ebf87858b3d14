"""Which documents the reference encodes again: a seeded draw that no batch decides, and a cap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from everytoken.tokens.encoding.encoder import DocumentEncoder, open_encoder
from everytoken.tokens.encoding.recheck import EngineDiffers, Recheck, Rechecker
from everytoken.tokens.engines.registry import TokenizerEngine
from everytoken.tokens.tokenizer import EncodingRules
from tests.text_to_stream.files import EOS, texts, write_tokenizer

DOCUMENTS = texts(60)


@dataclass(frozen=True)
class _Other:
    """An engine that encodes one document otherwise."""

    library: TokenizerEngine
    wrong: str | None
    name: str = "other"
    version: str = "1"

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return self.library.encode([f"{text}!" if text == self.wrong else text for text in texts])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> DocumentEncoder:
    path = write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    return open_encoder(EncodingRules(path, EOS, "literal"))


def rechecker(
    reference: DocumentEncoder, recheck: Recheck, part: int, step: int = 7, wrong: str | None = None
) -> Rechecker:
    """Return a rechecker that has seen the documents in batches of ``step``."""
    engine = _Other(reference.engine, wrong)
    encoder = DocumentEncoder(reference.tokenizer, engine, reference.special_tokens_in_text)
    found = Rechecker(encoder, recheck, part, len(DOCUMENTS))
    for start in range(0, len(DOCUMENTS), step):
        batch = DOCUMENTS[start : start + step]
        found.add(batch, encoder.encode(batch), None, start.__add__)
    found.check()
    return found


def drawn(reference: DocumentEncoder, recheck: Recheck, part: int = 0, step: int = 7) -> list[int]:
    """Return the rows that are drawn: those at which a wrong engine is found out."""
    rows = []
    for row, text in enumerate(DOCUMENTS):
        try:
            rechecker(reference, recheck, part, step, wrong=text)
        except EngineDiffers as error:
            assert error.place == row
            rows.append(row)
    return rows


CAPPED = Recheck.capped(1.0, 3, 12, len(DOCUMENTS))


def test_the_draw_is_the_same_for_any_batches(reference: DocumentEncoder) -> None:
    rows = drawn(reference, CAPPED)
    assert len(rows) in (12, 13), "rounded at random"
    assert rows == drawn(reference, CAPPED, step=1) == drawn(reference, CAPPED, step=60)
    assert rows != drawn(reference, CAPPED, part=1)
    assert rows != drawn(reference, Recheck(1.0, 4, CAPPED.density))


def test_a_smaller_cap_draws_some_of_the_same_documents(reference: DocumentEncoder) -> None:
    few = drawn(reference, Recheck.capped(1.0, 3, 4, len(DOCUMENTS)))
    assert 4 <= len(few) <= 5
    assert set(few) < set(drawn(reference, CAPPED))


def test_without_a_cap_the_share_decides(reference: DocumentEncoder) -> None:
    assert drawn(reference, Recheck(1.0, 3)) == list(range(60))
    some = drawn(reference, Recheck(0.5, 3))
    assert 15 < len(some) < 45
    assert drawn(reference, Recheck(0.0, 3)) == drawn(reference, Recheck.capped(1.0, 3, 0, 60)) == []
    assert drawn(reference, Recheck(0.1, 3, CAPPED.density)) == drawn(reference, Recheck(0.1, 3))


@pytest.mark.slow
def test_all_documents_are_equally_likely(reference: DocumentEncoder) -> None:
    recheck = Recheck.capped(1.0, 0, 6, len(DOCUMENTS))
    counts = np.zeros(60, np.int64)
    for part in range(40):
        counts[drawn(reference, recheck, part)] += 1
    halves = counts[:30].sum(), counts[30:].sum()
    assert 230 <= counts.sum() <= 250
    assert min(halves) > 95, "neither the first nor the last rows are favoured"


def test_many_small_parts_together_keep_the_cap(reference: DocumentEncoder) -> None:
    recheck = Recheck.capped(1.0, 0, 30, 100 * len(DOCUMENTS))
    counts = [rechecker(reference, recheck, part).documents for part in range(100)]
    assert set(counts) == {0, 1}
    assert 20 <= sum(counts) <= 40


def test_what_is_held_is_bounded(reference: DocumentEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everytoken.tokens.encoding.recheck._HELD_CHARACTERS", 1)
    engine = _Other(reference.engine, None)
    encoder = DocumentEncoder(reference.tokenizer, engine, reference.special_tokens_in_text)
    found = Rechecker(encoder, CAPPED, 0, len(DOCUMENTS))
    for row, text in enumerate(DOCUMENTS):
        found.add([text], encoder.encode([text]), None, row.__add__)
        assert not found._held
    assert found.documents >= 12


def test_the_reference_is_not_checked(reference: DocumentEncoder) -> None:
    found = Rechecker(reference, Recheck(1.0, 0), 0, 60)
    found.add(DOCUMENTS, reference.encode(DOCUMENTS), None, int)
    found.check()
    assert found.documents == 0


def test_ids_beyond_the_cut_are_seen(reference: DocumentEncoder, tmp_path: Path) -> None:
    text = DOCUMENTS[22]
    engine = _Other(reference.engine, text)
    encoder = DocumentEncoder(reference.tokenizer, engine, reference.special_tokens_in_text)
    found = Rechecker(encoder, Recheck(1.0, 0), 0, 1)
    found.add([text], encoder.encode([text], 4), 4, int)
    with pytest.raises(EngineDiffers, match="gives other ids than tokenizers"):
        found.check()
