"""Where a tokenizer comes from: trained on the corpus (byte-level BPE), or a given ``tokenizer.json`` pinned
by its SHA-256.

Training is deterministic: the library counts words in parallel but chooses merges by count and then by the
ids of the pair, so neither the number of threads nor hash seeds can show in the file. Tests compare the
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from everytoken.shards import Built, Shards, file_sha256, versioned
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer import TOKENIZER_FILE, open_tokenizer


@versioned(1)
def train_tokenizer(
    folder: Path,
    *,
    texts: Sequence[Shards],
    vocab_size: int,
    min_frequency: int,
    special_tokens: Sequence[str],
    eos_token: str,
) -> Built:
    """Train byte-level BPE on the ``text`` column of each dataset in turn, in part order, and write
    ``tokenizer.json``.

    All 256 byte symbols are in the vocabulary, so no text is lost. Special tokens get the first ids, in the
    order given. Memory grows with the number of distinct words, not with the corpus.

    Args:
        folder: where the file goes.
        texts: the datasets to learn from.
        vocab_size: tokens in the vocabulary, special tokens and byte symbols included.
        min_frequency: how often a pair must occur to be merged.
        special_tokens: tokens that are never split; ``eos_token`` must be one of them.
        eos_token: the token that ends a document.

    Raises:
        TokenizerError: EOS is not among the special tokens, one occurs twice, or the corpus is too small for
            ``vocab_size``.
    """
    if eos_token not in special_tokens or len(set(special_tokens)) != len(special_tokens):
        raise TokenizerError(
            f"special_tokens are {list(special_tokens)}: each must occur once, and eos_token {eos_token!r} among them"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    counts = {"documents": 0, "characters": 0}
    tokenizer.train_from_iterator(_texts(texts, counts), trainer)
    reached = tokenizer.get_vocab_size(with_added_tokens=True)
    if reached != vocab_size:
        raise TokenizerError(
            f"{counts['documents']} documents ({counts['characters']} characters) give a vocabulary of "
            f"{reached} tokens, expected {vocab_size}. It must hold 256 byte symbols and "
            f"{len(special_tokens)} special tokens and cannot hold more merges than the text has: change "
            f"vocab_size, lower min_frequency (now {min_frequency}) or give more text."
        )
    tokenizer.save(str(folder / TOKENIZER_FILE))
    return Built({**counts, **_facts(folder / TOKENIZER_FILE, eos_token)}, {})


@versioned(1, unrecorded=["path"])
def load_tokenizer_file(folder: Path, *, path: str, sha256: str, eos_token: str) -> Built:
    """Take a given ``tokenizer.json``: verify its SHA-256, check that it can be used with ``eos_token``, and
    copy it.

    Raises:
        TokenizerError: the file is missing or another one, or is not usable (see `open_tokenizer`).
    """
    source = Path(path)
    if not source.is_file():
        raise TokenizerError(f"there is no tokenizer file {source}; give the path of a tokenizer.json")
    found = file_sha256(source)
    if found != sha256.lower():
        raise TokenizerError(
            f"{source} has SHA-256 {found}, expected {sha256.lower()}. Every stream depends on this file: "
            f"get the right one, or pin the new one and make all token data again."
        )
    target = folder / TOKENIZER_FILE
    target.write_bytes(source.read_bytes())
    return Built(_facts(target, eos_token), {})


def _texts(datasets: Sequence[Shards], counts: dict[str, int]) -> Iterator[list[str]]:
    for dataset in datasets:
        for part in dataset:
            for batch in part.batches(["text"]):
                texts = batch.column("text").to_pylist()
                counts["documents"] += len(texts)
                counts["characters"] += sum(map(len, texts))
                yield texts


def _facts(path: Path, eos_token: str) -> dict[str, object]:
    opened = open_tokenizer(path, eos_token)
    return {
        "vocab_size": opened.vocab_size,
        "eos_token": eos_token,
        "eos_id": opened.eos_id,
        "dtype": opened.dtype.name,
        "missing_bytes": list(opened.missing_bytes),
        "sha256": file_sha256(path),
    }
