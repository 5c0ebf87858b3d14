from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everytoken.shards import Artifact, ArtifactStore, Shards, plan_artifact
from everytoken.tokens import EncodingRules, TokenizerError
from everytoken.tokens.engines import comparison, registry
from everytoken.tokens.engines.adversarial import adversarial_cases, family_sizes
from everytoken.tokens.engines.certificate import certify_engines, chosen_engine, compare_engines, sample_documents
from everytoken.tokens.engines.guard import open_guarded
from everytoken.tokens.engines.kept_verdicts import FASTEST, corpus_bytes_of_proof
from everytoken.tokens.engines.registry import REFERENCE, installed_engines, reference_version
from everytoken.tokens.tokenizer.document_tokenizer import DocumentTokenizer, open_tokenizer
from tests.shared_assets import shared_folder
from tests.tokens.corpora import EOS, documents, small_tokenizer, stored

TEXTS = ["the cat sat on the mat, the cat sat", "a man, a plan: 2,000 canals\n\nand\tthe cat", "naïve café 日本語 the"]
FAST = ["splintr-rs", "fastokens", "snaptokens"]
WRONG, WRONG_VERSION = "wrong", "1.0"
CASES = 600

Flat = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_tokenizer(tmp_path_factory.mktemp("small"), TEXTS)


@pytest.fixture(scope="module")
def cases(trained: Artifact) -> list[tuple[str, str]]:
    return list(adversarial_cases(trained.path("tokenizer.json").read_bytes(), [EOS], CASES, 42))


def installed(name: str) -> dict[str, str]:
    if name not in installed_engines():
        pytest.skip(f"{name} is not installed (extra 'fast')")
    return {name: installed_engines()[name]}


def parameters(tokenizer: Artifact, **changes: Any) -> dict[str, Any]:
    return {
        "rules": EncodingRules(tokenizer, EOS, "literal"),
        "engines": {},
        "reference": reference_version(),
        "samples": [],
        "cases": CASES,
        "documents": 0,
        "seed": 42,
        "always": True,
        **changes,
    }


def certified(folder: Path, tokenizer: Artifact, **changes: Any) -> Artifact:
    return ArtifactStore(folder).save(plan_artifact(certify_engines, **parameters(tokenizer, **changes)))


def shared_tokenizer(name: str) -> DocumentTokenizer:
    return open_tokenizer(shared_folder("tokenizers") / name / "tokenizer.json", EOS)


class Panic(BaseException):
    """What a Rust library raises when it panics is no Exception either."""


class Wrong:
    """The reference, whose answer a function may change."""

    name, version = WRONG, WRONG_VERSION

    def __init__(self, reference: registry.TokenizerEngine, change: Callable[[Sequence[str], Flat], Flat]) -> None:
        self._reference, self._change = reference, change

    def encode(self, texts: Sequence[str]) -> Flat:
        return self._change(texts, self._reference.encode(texts))


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Sequence[str], Flat], Flat]], dict[str, str]]:
    """Install the engine `Wrong` with a change; returns its name and version."""

    def do(change: Callable[[Sequence[str], Flat], Flat]) -> dict[str, str]:
        opened, found = registry.open_engine, registry.installed_engines()

        def open_engine(
            name: str, content: bytes, special_tokens_in_text: registry.SpecialTokens
        ) -> registry.TokenizerEngine:
            if name != WRONG:
                return opened(name, content, special_tokens_in_text)
            return Wrong(opened(REFERENCE, content, special_tokens_in_text), change)

        monkeypatch.setattr(registry, "open_engine", open_engine)
        monkeypatch.setattr(registry, "installed_engines", lambda: {**found, WRONG: WRONG_VERSION})
        return {WRONG: WRONG_VERSION}

    return do


def same(texts: Sequence[str], flat: Flat) -> Flat:
    return flat


def changed_in(number: int, flat: Flat) -> Flat:
    """Change the last id of a text."""
    ids, offsets = flat[0].copy(), flat[1]
    ids[offsets[number + 1] - 1] ^= 1
    return ids, offsets


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("policy", ["literal", "control"])
def test_fast_engines_are_certified_for_a_trained_tokenizer(
    trained: Artifact, tmp_path: Path, name: str, policy: str
) -> None:
    sample = stored(tmp_path / "in", [documents([*TEXTS, f"a{EOS}"] * 5)])
    wanted = {
        "engines": installed(name),
        "rules": EncodingRules(trained, EOS, policy),
        "samples": [sample],
        "documents": 9,
    }
    proof = certified(tmp_path / "certificate", trained, **wanted)
    content = trained.path("tokenizer.json").read_bytes()
    assert proof.statistics == {
        "tokenizer_sha256": hashlib.sha256(content).hexdigest(),
        "special_tokens_in_text": policy,
        "seed": 42,
        "cases": CASES,
        "documents": 9,
        "documents_digest": proof.statistics["documents_digest"],
        "reference": {"name": "tokenizers", "version": reference_version()},
        "engines": {name: {"version": installed_engines()[name], "equal": True, "difference": None}},
    }
    assert set(proof.measured["megabytes_per_second"]) == {REFERENCE, name}
    assert chosen_engine(proof, name, content=content, special_tokens_in_text=policy) == name  # type: ignore[arg-type]
    assert chosen_engine(proof, "fastest") == proof.measured["fastest"]
    assert chosen_engine(proof, REFERENCE) == REFERENCE
    written = json.loads(proof.path("certificate.json").read_text())
    assert written == {**proof.statistics, "cases_by_family": family_sizes(CASES)}


@pytest.mark.parametrize(
    ("tokenizer", "name"),
    [(tokenizer, name) for tokenizer in ("smollm2", "gpt-neox") for name in ("splintr-rs", "fastokens")],
)
def test_fast_engines_are_certified_for_published_tokenizers(tokenizer: str, name: str) -> None:
    opened = shared_tokenizer(tokenizer)
    facts, _ = compare_engines(
        opened, engines=installed(name), special_tokens_in_text="literal", documents=[], cases=2500, seed=1
    )
    assert facts["engines"][name]["difference"] is None


@pytest.mark.parametrize("tokenizer", ["gpt2", "gpt-neox"])
def test_an_engine_with_newer_unicode_tables_is_refused(tokenizer: str) -> None:
    if installed("snaptokens")["snaptokens"] != "0.2.6":
        pytest.skip("snaptokens 0.2.6 takes letters of Unicode 17 for letters, the reference does not; others may not")
    facts, measured = compare_engines(
        shared_tokenizer(tokenizer),
        engines=installed("snaptokens"),
        special_tokens_in_text="literal",
        documents=[],
        cases=2500,
        seed=1,
    )
    assert re.match(r"case \d+ \(characters\): in the text at byte", facts["engines"]["snaptokens"]["difference"])
    assert measured["fastest"] == REFERENCE


def test_an_engine_that_cannot_load_the_tokenizer_is_recorded_with_the_reason() -> None:
    facts, measured = compare_engines(
        shared_tokenizer("smollm2"),
        engines=installed("snaptokens"),
        special_tokens_in_text="literal",
        documents=[],
        cases=100,
        seed=1,
    )
    assert facts["engines"]["snaptokens"]["equal"] is False
    assert "snaptokens cannot load this tokenizer" in facts["engines"]["snaptokens"]["difference"]
    assert measured["fastest"] == REFERENCE


def test_an_engine_that_differs_on_one_case_is_refused_and_the_case_named(
    trained: Artifact, tmp_path: Path, install: Any, cases: list[tuple[str, str]]
) -> None:
    number = 345
    family, text = cases[number]

    def change(texts: Sequence[str], flat: Flat) -> Flat:
        return changed_in(texts.index(text), flat) if text in texts else flat

    proof = certified(tmp_path, trained, engines=install(change))
    difference = proof.statistics["engines"][WRONG]["difference"]
    assert difference.startswith(f"case {number} ({family}): in the text at byte ")
    expected = open_guarded(REFERENCE, open_tokenizer(trained, EOS), "literal").encode([text])[0].tolist()
    last = len(expected) - 1
    assert f"from token {last} on, expected [" in difference
    assert f"{expected[-1]}], found [" in difference and difference.endswith(f"{expected[-1] ^ 1}]")
    assert proof.measured == {"megabytes_per_second": {}, "fastest": REFERENCE}
    assert chosen_engine(proof, "fastest") == REFERENCE
    with pytest.raises(TokenizerError, match=rf"wrong 1\.0 does not give the ids of tokenizers .*case {number}.*Set"):
        chosen_engine(proof, WRONG)


def drops_text(texts: Sequence[str], flat: Flat) -> Flat:
    """Leaves the last token of long texts out, as engines with a limit do."""
    ids, offsets = flat
    cut = [number for number in range(len(texts)) if offsets[number + 1] - offsets[number] > 500]
    lengths = np.diff(offsets)
    lengths[cut] -= 1
    return np.delete(ids, offsets[1:][cut] - 1), np.concatenate([[0], np.cumsum(lengths)])


def moves_an_end(texts: Sequence[str], flat: Flat) -> Flat:
    """Gives the right ids, and an offset between two texts that is one too small."""
    ids, offsets = flat[0], flat[1].copy()
    if len(texts) > 100 and offsets[50] > offsets[49]:
        offsets[50] -= 1
    return ids, offsets


def gives_no_ids(texts: Sequence[str], flat: Flat) -> Flat:
    ids = flat[0].copy()
    ids[-1:] = 1 << 20
    return ids, flat[1]


def gives_offsets_of_fewer_texts(texts: Sequence[str], flat: Flat) -> Flat:
    return flat[0], flat[1][:-1]


def panics(texts: Sequence[str], flat: Flat) -> Flat:
    if any("\uffff" in text for text in texts):
        raise Panic("index out of bounds: the len is 65535")
    return flat


def fails_in_small_batches(texts: Sequence[str], flat: Flat) -> Flat:
    return changed_in(2, flat) if len(texts) == 7 and flat[1][3] > flat[1][2] else flat


def fails_in_the_whole(texts: Sequence[str], flat: Flat) -> Flat:
    if len(texts) > 1 and any(len(text) > 1000 for text in texts):
        raise ValueError("batch too large")
    return flat


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drops_text, r"case \d+ \(.*\): in the text at byte \d+ of \d+, .*: from token \d+ on, expected \[.+\], found"),
        (moves_an_end, r"case \d+ \(.*\): in the text"),
        (gives_no_ids, r"case \d+ .*makes it fail .*gave the id 1048576; the vocabulary ends at 284"),
        (gives_offsets_of_fewer_texts, r"case 0 .*makes it fail .*offsets that do not cut them into 1 texts"),
        (panics, r"case \d+ \(.*\): the text '.*' makes it fail \(Panic: index out of bounds: the len is 65535\)"),
        (fails_in_small_batches, r"encoded again in a batch of 7: in the text"),
        (fails_in_the_whole, r"case 0 \(single\) and the \d+ texts after it make it fail \(ValueError: batch too"),
    ],
)
def test_engines_that_lose_move_panic_or_depend_on_batches_are_refused(
    trained: Artifact, tmp_path: Path, install: Any, change: Any, message: str
) -> None:
    proof = certified(tmp_path, trained, engines=install(change))
    difference = proof.statistics["engines"][WRONG]["difference"]
    assert difference is not None
    assert re.search(message, difference), difference


def test_an_engine_whose_state_shows_is_refused(trained: Artifact, tmp_path: Path, install: Any) -> None:
    seen = 0

    def change(texts: Sequence[str], flat: Flat) -> Flat:
        nonlocal seen
        seen += len(texts)
        return changed_in(len(texts) - 1, flat) if seen > CASES and flat[1][-1] > flat[1][-2] else flat

    proof = certified(tmp_path, trained, engines=install(change))
    assert "encoded again in a batch of" in proof.statistics["engines"][WRONG]["difference"]


def test_an_engine_that_is_wrong_on_a_document_is_refused_and_the_document_named(
    trained: Artifact, tmp_path: Path, install: Any
) -> None:
    tables = [documents([f"the cat {part} {row}" for row in range(20)], part) for part in range(3)]
    samples = [stored(tmp_path / "a", tables), stored(tmp_path / "b", [documents(["x"])])]

    def change(texts: Sequence[str], flat: Flat) -> Flat:
        return changed_in(texts.index("the cat 1 13"), flat) if "the cat 1 13" in texts else flat

    wanted = {"engines": install(change), "samples": samples, "documents": 1000}
    proof = certified(tmp_path / "certificate", trained, **wanted)
    assert proof.statistics["documents"] == 61
    assert proof.statistics["engines"][WRONG]["difference"].startswith(
        "sample 1 part_00001 row 13: in the text at byte 11 of 12, '"
    )


def test_a_right_engine_is_certified_and_stopping_the_run_stops_it(
    trained: Artifact, tmp_path: Path, install: Any
) -> None:
    assert certified(tmp_path, trained, engines=install(same)).statistics["engines"][WRONG]["equal"] is True

    def stop(texts: Sequence[str], flat: Flat) -> Flat:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        certified(tmp_path / "stopped", trained, engines=install(stop))


def test_a_very_long_document_is_compared_in_bounded_memory(
    trained: Artifact, install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_BATCH_CHARACTERS", 1000)
    monkeypatch.setattr(comparison, "_TIMED_CHARACTERS", 2000)
    monkeypatch.setattr(comparison, "_SLICE_CHARACTERS", 24)
    longest = 0

    def change(texts: Sequence[str], flat: Flat) -> Flat:
        nonlocal longest
        longest = max(longest, sum(map(len, texts)))
        return flat

    facts, _ = compare_engines(
        open_tokenizer(trained, EOS),
        engines=install(change),
        special_tokens_in_text="literal",
        documents=[("long", "the cat " * 100_000), *((f"row {row}", "the cat " * row) for row in range(124))],
        cases=0,
        seed=0,
    )
    assert facts["documents"] == 125 and facts["engines"][WRONG]["equal"]
    assert 1000 <= longest < 4000


def test_without_engines_nothing_is_compared(trained: Artifact, tmp_path: Path) -> None:
    sample = stored(tmp_path / "in", [documents(TEXTS)])
    proof = certified(tmp_path / "certificate", trained, samples=[sample], documents=3, cases=10**9)
    assert (proof.statistics["cases"], proof.statistics["documents"], proof.statistics["engines"]) == (0, 0, {})
    assert chosen_engine(proof, "fastest") == REFERENCE
    with pytest.raises(TokenizerError, match=r"no proof for the engine 'splintr-rs', only for \[\].*\[fast\]"):
        chosen_engine(proof, "splintr-rs")


def test_a_corpus_that_is_too_small_to_pay_for_the_comparison_is_encoded_by_the_reference(
    trained: Artifact, tmp_path: Path, install: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine, cases = install(same), 3
    enough = corpus_bytes_of_proof(cases, 1)
    texts = ["é" * 10, "x" * (enough - 20)]  # bytes of UTF-8 count
    samples = [stored(tmp_path / "a", [documents(texts[:1])]), stored(tmp_path / "b", [documents(texts[1:])])]
    wanted = {"engines": engine, "cases": cases, "documents": 10, "always": False}
    assert certified(tmp_path / "pays", trained, samples=samples, **wanted).statistics["engines"][WRONG]["equal"]
    less = [samples[0], stored(tmp_path / "c", [documents([texts[1][1:]])])]
    with caplog.at_level("INFO"):
        small = certified(tmp_path / "small", trained, samples=less, **wanted)
    assert f"{REFERENCE} encodes: to prove {WRONG} equal costs more than it saves here" in caplog.text
    assert (small.statistics["cases"], small.statistics["documents"], small.statistics["engines"]) == (0, 0, {})
    assert chosen_engine(small, FASTEST) == REFERENCE
    named = certified(tmp_path / "named", trained, samples=less, **{**wanted, "always": True})
    assert chosen_engine(named, WRONG) == WRONG


def test_what_is_installed_must_be_what_is_certified(trained: Artifact, tmp_path: Path, install: Any) -> None:
    engine = install(same)
    for changes, message in (
        ({"engines": {"splintr-rs": "0.0.1"}}, r"splintr-rs 0\.0\.1 is to be certified, installed is"),
        ({"engines": {"absent": "1"}}, "absent 1 is to be certified, installed is none"),
        ({"reference": "0.1"}, r"tokenizers 0\.1 is to be certified, installed is"),
    ):
        with pytest.raises(TokenizerError, match=message):
            certified(tmp_path / "never", trained, **changes)
    proof = certified(tmp_path / "certificate", trained, engines=engine)
    assert chosen_engine(proof, WRONG) == WRONG
    for key, said in (("engines", "wrong 0.9, installed is 1.0"), ("reference", "tokenizers 0.9, installed is")):
        statistics = json.loads(json.dumps(proof.statistics))
        (statistics["engines"][WRONG] if key == "engines" else statistics["reference"])["version"] = "0.9"
        other = dataclasses.replace(proof, ledger={**proof.ledger, "statistics": statistics})
        with pytest.raises(TokenizerError, match=f"{said}.*Run the tokenization pipeline again.*==0.9"):
            chosen_engine(other, WRONG)


def test_a_certificate_is_for_one_tokenizer_and_one_rule(trained: Artifact, tmp_path: Path) -> None:
    proof = certified(tmp_path, trained)
    content = trained.path("tokenizer.json").read_bytes()
    assert chosen_engine(proof, REFERENCE, content=content, special_tokens_in_text="literal") == REFERENCE
    with pytest.raises(TokenizerError, match=r"is for the tokenizer with SHA-256 .*, in use is .*again"):
        chosen_engine(proof, REFERENCE, content=content + b" ")
    with pytest.raises(TokenizerError, match="is for special_tokens_in_text literal, in use is control"):
        chosen_engine(proof, REFERENCE, special_tokens_in_text="control")


_CERTIFY = """
import sys
from pathlib import Path
from everytoken.shards import ArtifactStore, plan_artifact
from everytoken.tokens.engines.certificate import certify_engines
from everytoken.tokens.engines.registry import installed_engines, reference_version
folder = Path(sys.argv[2])
folder.mkdir()
from everytoken.tokens.tokenizer import EncodingRules
rules = EncodingRules(ArtifactStore(Path(sys.argv[1])).load(), "<|endoftext|>", "literal")
certify_engines(folder, rules=rules, engines=installed_engines(), reference=reference_version(), samples=[],
    cases=300, documents=0, seed=42, always=True)
"""


def test_a_certificate_has_the_same_bytes_in_every_process(trained: Artifact, tmp_path: Path) -> None:
    made = []
    for seed in ("0", "1"):
        command = [sys.executable, "-c", _CERTIFY, str(trained.folder), str(tmp_path / seed)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        made.append((tmp_path / seed / "certificate.json").read_bytes())
    assert made[0] == made[1]
    assert json.loads(made[0])["cases"] == 300 or not installed_engines()


def test_documents_are_drawn_by_seed_and_only_parts_that_are_hit_are_read(tmp_path: Path) -> None:
    tables = [documents([f"{part} {row}" for row in range(50)], part) for part in range(20)]
    corpus = stored(tmp_path / "in", tables, batch_rows=7)
    drawn = list(sample_documents([corpus], 5, 3))
    assert drawn == list(sample_documents([corpus], 5, 3)) != list(sample_documents([corpus], 5, 4))
    assert len(set(drawn)) == 5 == len(drawn)
    hit = {label.split()[0] for label, _ in drawn}
    assert all(text == f"{int(label.split()[0][-5:])} {label.split()[2]}" for label, text in drawn)
    for part in corpus.parts:
        if part.name not in hit:
            part.path.unlink()  # type: ignore[attr-defined]
    assert drawn == list(sample_documents([corpus], 5, 3))


def test_a_sample_of_all_documents_is_the_corpus(tmp_path: Path) -> None:
    corpus = stored(tmp_path / "in", [documents(TEXTS), documents([]), documents(TEXTS[:1], 2)], batch_rows=2)
    assert list(sample_documents([corpus], 100, 3)) == [
        *((f"part_00000 row {row}", text) for row, text in enumerate(TEXTS)),
        ("part_00002 row 0", TEXTS[0]),
    ]
    assert list(sample_documents([corpus], 0, 3)) == list(sample_documents([], 3, 3)) == []
    assert list(sample_documents([Shards(())], 3, 3)) == []
    counts = {label.split(" part")[0] for label, _ in sample_documents([corpus, corpus], 8, 3)}
    assert counts == {"sample 1", "sample 2"}


def test_a_document_without_text_is_named(tmp_path: Path) -> None:
    import pyarrow as pa

    table = documents(["a", "b"])
    corpus = stored(tmp_path, [table.set_column(1, "text", pa.array(["a", None], pa.large_string()))])
    with pytest.raises(TokenizerError, match="part_00000 row 1: text is null"):
        list(sample_documents([corpus], 2, 0))
