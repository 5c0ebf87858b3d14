from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everytoken.shards import file_sha256
from everytoken.tokens import TokenizerError, load_tokenizer_file, open_tokenizer, train_tokenizer
from tests.tokens.corpora import EOS, documents, stored

TEXTS = [
    "the cat sat on the mat",
    "le café noir et le café crème",
    "日本語の文章と日本語の単語",
    "x = x + 1; y = x",
]

TRAIN = """
import sys
from pathlib import Path
from tests.tokens.corpora import EOS, documents, stored
from everytoken.tokens import train_tokenizer
folder = Path(sys.argv[1])
folder.mkdir()
sources = [path.read_text(encoding="utf-8") for path in sorted(Path(sys.argv[2]).glob("*.py"))]
first = stored(folder / "a", [documents(sources[::2]), documents(sources[1::2])])
second = stored(folder / "b", [documents(sources[:3])])
special = ["<|pad|>", EOS]
train_tokenizer(
    folder, texts=[first, second], vocab_size=900, min_frequency=2, special_tokens=special, eos_token=EOS
)
"""


def test_same_corpus_gives_the_same_bytes_for_any_threads_and_hash_seed(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    files = []
    for threads, hash_seed, parallel in [("1", "0", "false"), ("2", "1", "true"), ("2", "2", "true")]:
        folder = tmp_path / f"{threads}-{hash_seed}"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")]),
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": parallel,
            "PYTHONHASHSEED": hash_seed,
        }
        sources = str(Path(os.__file__).parent / "json")
        subprocess.run([sys.executable, "-c", TRAIN, str(folder), sources], check=True, env=environment, cwd=root)
        files.append((folder / "tokenizer.json").read_bytes())
    assert files[0] == files[1] == files[2]


def test_special_tokens_come_first_and_all_bytes_are_there(tmp_path: Path) -> None:
    corpus = [stored(tmp_path / "in", [documents(TEXTS[:2]), documents(TEXTS[2:])])]
    built = train_tokenizer(
        tmp_path,
        texts=corpus,
        vocab_size=280,
        min_frequency=1,
        special_tokens=["<|pad|>", EOS],
        eos_token=EOS,
    )
    opened = open_tokenizer(tmp_path / "tokenizer.json", EOS)
    assert [opened.tokenizer.id_to_token(i) for i in (0, 1)] == ["<|pad|>", EOS]
    assert opened.vocab_size == 280 and opened.missing_bytes == ()
    assert built.statistics["documents"] == 4
    assert built.statistics["characters"] == sum(map(len, TEXTS))
    assert built.statistics["eos_id"] == 1
    everything = "".join(map(chr, range(0xD800))) + "\U0001f600\U0010ffff"
    ids = opened.tokenizer.encode(everything, add_special_tokens=False).ids
    assert opened.tokenizer.decode(ids) == everything


def test_a_corpus_too_small_for_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    corpus = [stored(tmp_path / "in", [documents(TEXTS)])]
    with pytest.raises(TokenizerError, match=r"give a vocabulary of \d+ tokens, expected 32000"):
        train_tokenizer(tmp_path, texts=corpus, vocab_size=32_000, min_frequency=1, special_tokens=[EOS], eos_token=EOS)
    assert not (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize("special", [[], ["<|pad|>"], [EOS, EOS]])
def test_eos_must_be_a_special_token_once(tmp_path: Path, special: list[str]) -> None:
    with pytest.raises(TokenizerError, match="each must occur once"):
        train_tokenizer(tmp_path, texts=[], vocab_size=300, min_frequency=1, special_tokens=special, eos_token=EOS)


def test_a_given_file_is_verified_and_copied(tmp_path: Path) -> None:
    corpus = [stored(tmp_path / "in", [documents(TEXTS)])]
    train_tokenizer(tmp_path, texts=corpus, vocab_size=270, min_frequency=1, special_tokens=[EOS], eos_token=EOS)
    source, target = tmp_path / "tokenizer.json", tmp_path / "copy"
    target.mkdir()
    built = load_tokenizer_file(target, path=str(source), sha256=file_sha256(source).upper(), eos_token=EOS)
    assert (target / "tokenizer.json").read_bytes() == source.read_bytes()
    assert built.statistics["vocab_size"] == 270
    with pytest.raises(TokenizerError, match=r"has SHA-256 .* expected 0000"):
        load_tokenizer_file(target, path=str(source), sha256="0" * 64, eos_token=EOS)
    with pytest.raises(TokenizerError, match="no tokenizer file"):
        load_tokenizer_file(target, path=str(tmp_path / "absent"), sha256="0" * 64, eos_token=EOS)
