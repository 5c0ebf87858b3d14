"""Verdicts on engines that a user's runs keep for each other."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everytoken.tokens.engines import comparison, registry
from everytoken.tokens.engines.comparison import compare_engines
from everytoken.tokens.engines.kept_verdicts import (
    ComparedOn,
    KeptVerdicts,
    certificates_folder,
    corpus_bytes_of_proof,
    fastest_of,
)
from everytoken.tokens.tokenizer.document_tokenizer import DocumentTokenizer, open_tokenizer
from tests.text_to_stream.files import EOS, write_tokenizer

EQUAL: Any = {"version": "1.0", "equal": True, "difference": None}
ON = ComparedOn("ab" * 32, EOS, "literal", "0.23", 100, 1)


def test_the_folder_is_where_users_expect_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "everytoken-cache-" in str(certificates_folder()), "tests have their own"
    monkeypatch.setenv("EVERYTOKEN_CACHE", str(tmp_path))
    assert certificates_folder() == tmp_path / "certificates"
    monkeypatch.delenv("EVERYTOKEN_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert certificates_folder() == Path("/var/cache/me/everytoken/certificates")
    for unset in ("", "relative/is/ignored"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert certificates_folder() == Path("/home/someone/.cache/everytoken/certificates")


def test_a_verdict_is_found_by_all_that_it_depends_on(tmp_path: Path) -> None:
    kept = KeptVerdicts(tmp_path, ON)
    with kept.being_completed():
        kept.keep("one", EQUAL, 12.5)
    assert kept.find({"one": "1.0", "two": "1.0"}) == {"one": (EQUAL, 12.5)}
    assert kept.find({"one": "1.1"}) == {}
    changes: dict[str, Any] = {
        "tokenizer_sha256": "cd" * 32,
        "eos_token": "</s>",
        "special_tokens_in_text": "control",
        "reference": "0.24",
        "cases": 101,
        "seed": 2,
    }
    for name, value in changes.items():
        assert KeptVerdicts(tmp_path, replace(ON, **{name: value})).find({"one": "1.0"}) == {}, name


@pytest.mark.parametrize("damage", [b"", b"edited"])
def test_a_damaged_verdict_is_not_used_and_made_again(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    kept = KeptVerdicts(tmp_path, ON)
    kept.keep("one", EQUAL, 12.5)
    (ledger,) = tmp_path.glob("*/ledger.json")
    ledger.write_bytes(ledger.read_bytes().replace(b"1.0", b"1.1") if damage == b"edited" else damage)
    assert kept.find({"one": "1.0"}) == {}
    assert str(ledger) in caplog.text and "the engine is compared again" in caplog.text
    kept.keep("one", EQUAL, 12.5)
    assert kept.find({"one": "1.0"}) == {"one": (EQUAL, 12.5)}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_folder_that_cannot_be_made_is_a_warning_with_a_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with KeptVerdicts(tmp_path / "file" / "below", ON).being_completed() as can_keep:
        assert not can_keep
    (warning,) = warnings(caplog)
    assert re.search(r"cannot be kept in .*file/below \(Not a directory\).*Set EVERYTOKEN_CACHE", warning)


def test_a_verdict_that_cannot_be_written_or_read_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "file"
    folder.touch()
    kept = KeptVerdicts(folder, ON)
    kept.keep("one", EQUAL, 12.5)
    kept.keep("two", EQUAL, 12.5)
    assert len(warnings(caplog)) == 1 and f"{folder} (" in warnings(caplog)[0]
    unreadable = tmp_path / "unreadable"
    KeptVerdicts(unreadable, ON).keep("one", EQUAL, 12.5)
    (ledger,) = unreadable.glob("*/ledger.json")
    ledger.unlink()
    ledger.mkdir()
    assert KeptVerdicts(unreadable, ON).find({"one": "1.0"}) == {}
    assert len(warnings(caplog)) == 2 and f"{unreadable} (Is a directory)" in warnings(caplog)[1]


def test_the_fastest_is_one_that_is_equal() -> None:
    differs = {"version": "1.0", "equal": False, "difference": "case 1"}
    verdicts: Any = {"one": (EQUAL, 2.0), "two": (EQUAL, 3.0), "three": (differs, 9.0)}
    assert fastest_of(verdicts, "reference") == "two"
    assert fastest_of({"three": verdicts["three"]}, "reference") == fastest_of({}, "reference") == "reference"


def test_the_cost_of_a_proof_grows_with_cases_and_engines() -> None:
    assert corpus_bytes_of_proof(100_000, 2) == 2 * corpus_bytes_of_proof(100_000, 1) == 20_000_000
    assert corpus_bytes_of_proof(50, 0) == 0


class _Counting:
    """The reference under another name, which counts the texts that it encodes."""

    name, version = "counting", "1.0"

    def __init__(self, library: registry.TokenizerEngine) -> None:
        self._library, self.texts = library, 0

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        self.texts += len(texts)
        return self._library.encode(texts)


@pytest.fixture
def tokenizer(tmp_path: Path) -> DocumentTokenizer:
    return open_tokenizer(write_tokenizer(tmp_path / "tokenizer.json"), EOS)


@pytest.fixture
def counting(tokenizer: DocumentTokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Counting]:
    engine = _Counting(registry.open_engine("tokenizers", tokenizer.content, "literal"))
    opened = comparison.open_guarded
    monkeypatch.setattr(
        comparison, "open_guarded", lambda name, *rest: engine if name == "counting" else opened(name, *rest)
    )
    yield engine


def compared(tokenizer: DocumentTokenizer, folder: Path | None, documents: Sequence[str] = ()) -> Any:
    return compare_engines(
        tokenizer,
        engines={"counting": "1.0"},
        special_tokens_in_text="literal",
        documents=[(f"row {row}", text) for row, text in enumerate(documents)],
        cases=400,
        seed=1,
        kept_in=folder,
    )


def test_generated_texts_are_compared_once_and_documents_always(
    tokenizer: DocumentTokenizer, counting: _Counting, tmp_path: Path
) -> None:
    two = ["a document", "another"]
    first, speeds = compared(tokenizer, tmp_path / "kept", two)
    assert counting.texts > 400
    assert first == compared(tokenizer, tmp_path / "kept", two)[0] == compared(tokenizer, None, two)[0]
    counting.texts = 0
    other, _ = compared(tokenizer, tmp_path / "kept", ["a third"])
    assert 1 <= counting.texts < 20
    assert (other["cases"], other["documents"]) == (400, 1)
    counting.texts = 0
    none, kept_speeds = compared(tokenizer, tmp_path / "kept")
    assert counting.texts == 0
    assert none["engines"]["counting"]["equal"] and kept_speeds["fastest"] == "counting"
    assert kept_speeds["megabytes_per_second"]["counting"] == speeds["megabytes_per_second"]["counting"]


def test_a_proof_that_cannot_be_kept_is_made_and_used(
    tokenizer: DocumentTokenizer, counting: _Counting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    proof, _ = compared(tokenizer, tmp_path / "file", ["a document"])
    assert proof == compared(tokenizer, tmp_path / "kept", ["a document"])[0]
    assert proof["engines"]["counting"]["equal"]
    assert [str(tmp_path / "file") in message for message in warnings(caplog)] == [True]


_BOTH = """
import sys
from pathlib import Path
from everytoken.tokens.engines import compare_engines, installed_engines
from everytoken.tokens.tokenizer import open_tokenizer
opened = open_tokenizer(Path(sys.argv[1]), "<|endoftext|>")
proof, _ = compare_engines(opened, engines=installed_engines(), special_tokens_in_text="literal", documents=[],
    cases=300, seed=1, kept_in=Path(sys.argv[2]))
print(sorted((name, verdict["equal"]) for name, verdict in proof["engines"].items()))
"""


def test_two_runs_at_once_agree(tokenizer: DocumentTokenizer, tmp_path: Path) -> None:
    installed = registry.installed_engines()
    if not installed:
        pytest.skip("no fast engine is installed")
    command = [sys.executable, "-c", _BOTH, str(tmp_path / "tokenizer.json"), str(tmp_path / "kept")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert said[0][0] == said[1][0]
    sha256 = hashlib.sha256(tokenizer.content).hexdigest()
    on = ComparedOn(sha256, EOS, "literal", registry.reference_version(), 300, 1)
    assert set(KeptVerdicts(tmp_path / "kept", on).find(installed)) == set(installed)
