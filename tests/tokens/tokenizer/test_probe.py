from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from everytoken.shards import Artifact, Built, plan_artifact, versioned
from everytoken.shards.artifacts import ArtifactStore
from everytoken.tokens import TokenizerError, load_tokenizer_file, open_tokenizer
from everytoken.tokens.tokenizer.probe import PROBE_TEXT, check_probe, library_record, probe_ids, probe_record
from tests.tokens.corpora import EOS

ROOT = Path(__file__).resolve().parents[3]


def description(**changes: Any) -> dict[str, Any]:
    """A ``tokenizer.json`` in the words that every version of the library reads: Llama 3's rule for whole words, runs
    of spaces as added tokens, and NFC."""
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    added = {"id": 258, "content": EOS, "special": True, "normalized": False}
    spaces = {"id": 259, "content": "  ", "special": False, "normalized": True}
    same = {"single_word": False, "lstrip": False, "rstrip": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "ignore_merges": True}
    model |= {"continuing_subword_prefix": None, "end_of_word_suffix": None, "merges": []}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**added, **same}, {**spaces, **same}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {**model, "vocab": {**vocabulary, "\u0120of": 256, "\u0120x": 257}},
        **changes,
    }


def library(**changes: Any) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(description(**changes)))


def record(tokenizer: Tokenizer) -> tuple[dict[str, Any], dict[str, str]]:
    return {"probe": probe_record(tokenizer)}, library_record()


def stored_tokenizer(folder: Path) -> Artifact:
    folder.mkdir()
    source = folder / "given.json"
    source.write_text(json.dumps(description()), encoding="utf-8")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    planned = plan_artifact(load_tokenizer_file, path=str(source), sha256=digest, eos_token=EOS)
    return ArtifactStore(folder / "tokenizer").save(planned)


def test_a_published_probe_text_is_never_edited() -> None:
    digest = hashlib.sha256(PROBE_TEXT.encode()).hexdigest()
    assert digest == "944cc4ea393e042bc0f9053e370926373f097bdf00ecb1d28ec25e2b09656043", (
        "give a better text the next number instead"
    )


def test_the_probe_is_encoded_with_special_tokens_as_text_and_as_tokens() -> None:
    tokenizer = library()
    for literal in (True, False):
        tokenizer.encode_special_tokens = literal
        ids = probe_ids(tokenizer)
        assert tokenizer.encode_special_tokens is literal, "the tokenizer is left as it was"
        as_text = tokenizer.decode(ids[: ids.index(258)], skip_special_tokens=False)
        assert as_text.startswith("The cat's") and as_text.count(EOS) == 2 and ids.count(258) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": None},
        {"normalizer": {"type": "NFKC"}},
        {"added_tokens": description()["added_tokens"][:1]},
        {"added_tokens": [{**description()["added_tokens"][0], "lstrip": True}]},
        {"model": {**description()["model"], "ignore_merges": False}},
        {"pre_tokenizer": {**description()["pre_tokenizer"], "use_regex": False}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": True}, description()["pre_tokenizer"]],
            },
            "model": {**description()["model"], "vocab": {**description()["model"]["vocab"], "\u01201234567": 260}},
        },
    ],
    ids=["no NFC", "NFKC", "no runs of spaces", "EOS strips", "merges alone", "no regex", "digits"],
)
def test_what_decides_ids_shows_in_the_probe(change: dict[str, Any]) -> None:
    changed = description(**change)
    same_vocabulary = library(model={**description()["model"], "vocab": changed["model"]["vocab"]})
    with pytest.raises(TokenizerError, match="encodes otherwise"):
        check_probe(*record(same_vocabulary), library(**change), "it")


def test_another_version_that_gives_the_same_ids_is_welcome() -> None:
    tokenizer = library()
    statistics, _ = record(tokenizer)
    check_probe(statistics, {"library": "tokenizers", "library_version": "0.1"}, tokenizer, "it")


@pytest.mark.parametrize("changed", [lambda ids: [*ids[:7], 1, *ids[8:]], lambda ids: ids[:7], lambda ids: [*ids, 1]])
def test_other_ids_stop_and_the_message_names_both_versions_the_place_and_what_to_do(changed: Any) -> None:
    tokenizer = library()
    statistics, measured = record(tokenizer)
    ids = statistics["probe"]["ids"]
    recorded = {"probe": {**statistics["probe"], "ids": changed(ids)}}
    place = 7 if len(changed(ids)) <= len(ids) else len(ids)
    message = (
        rf"^data/tokenizer was made with tokenizers 0\.1, and tokenizers {measured['library_version']}, which is "
        rf"installed, encodes otherwise\. .* number {place} and .*pip install 'tokenizers==0\.1'\), or remove"
    )
    for _ in range(2):  # what is kept of a process is never an error's absence
        with pytest.raises(TokenizerError, match=message):
            check_probe(recorded, {"library_version": "0.1"}, tokenizer, "data/tokenizer")


def test_a_tokenizer_without_a_probe_or_with_an_unknown_one_is_refused() -> None:
    tokenizer = library()
    with pytest.raises(TokenizerError, match=r"it has no ids of a probe text.*Run the tokenization pipeline again"):
        check_probe({}, {}, tokenizer, "it")
    statistics, measured = record(tokenizer)
    with pytest.raises(TokenizerError, match="probe text 99, which a newer everytoken has"):
        check_probe({"probe": {**statistics["probe"], "version": 99}}, measured, tokenizer, "it")


@versioned("with_recorded_ids", 1)
def with_recorded_ids(folder: Path, *, content: bytes, ids: list[int]) -> Built:
    (folder / "tokenizer.json").write_bytes(content)
    probe = probe_record(Tokenizer.from_buffer(content))
    return Built({"probe": {**probe, "ids": ids}}, library_record())


def test_a_tokenizer_whose_recorded_ids_are_others_cannot_be_opened(tmp_path: Path) -> None:
    content = json.dumps(description()).encode()
    ids = probe_ids(library())
    for name, recorded in (("same", ids), ("other", ids[::-1])):
        planned = plan_artifact(with_recorded_ids, content=content, ids=recorded)
        made = ArtifactStore(tmp_path / name).save(planned)
        if recorded == ids:
            assert open_tokenizer(made, EOS).eos_id == 258
            continue
        with pytest.raises(TokenizerError, match=rf"{tmp_path}/other.* encodes otherwise"):
            open_tokenizer(made, EOS)


OPEN = """
import sys
from pathlib import Path
from everytoken.shards import ArtifactStore
from everytoken.tokens import TokenizerError, open_tokenizer
try:
    print(open_tokenizer(ArtifactStore(Path(sys.argv[1])).load(), sys.argv[2]).vocab_size)
except TokenizerError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("other", "printed"),
    [
        ("0.22.2", "260\n"),
        ("0.15.2", "was made with tokenizers {now}, and tokenizers 0.15.2, which is installed, encodes otherwise"),
    ],
)
def test_a_real_other_version_of_the_library_stops_exactly_when_it_encodes_otherwise(
    tmp_path: Path, other: str, printed: str
) -> None:
    """Versions before 0.19.1 read ``ignore_merges`` and do not do it."""
    made = stored_tokenizer(tmp_path / "made")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--no-input"]
    target = tmp_path / "other"
    installed = subprocess.run(
        [*pip, "--target", str(target), f"tokenizers=={other}"], check=False, capture_output=True, text=True
    )
    if installed.returncode:
        pytest.skip(f"tokenizers {other} cannot be installed here: {installed.stderr.strip()[-200:]}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), str(ROOT / "src")])}
    command = [sys.executable, "-c", OPEN, str(made.folder), EOS]
    ran = subprocess.run(command, check=True, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert printed.format(now=made.measured["library_version"]) in ran.stdout
