"""The documents of a stream: which a window holds (by its index), and the tokens that each has (by its text).

What the tokens of a document are is said by the ledgers: the stream's recipe names the stores of tokens that it was
made from, and their recipes how they were encoded; that of chat windows says it itself. All are found by digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import REFLECTED, StreamIndex, open_stream_index, require_rows
from everytoken.provenance.lookup.character_spans import LocatedTokens, locate_chat, locate_document
from everytoken.provenance.lookup.dataset_locations import Places, store_head
from everytoken.provenance.lookup.document_records import STORES, RecordText
from everytoken.provenance.lookup.foreign_streams import input_files, sequences_of
from everytoken.provenance.lookup.indexed_streams import IndexedStream
from everytoken.shards import LEDGER_FILE, Artifact, ArtifactStore
from everytoken.tokens.chat import ChatParameters, said_in
from everytoken.tokens.streams import STREAM_KINDS, dataset_of_stream, written_by
from everytoken.tokens.tokenizer import DocumentTokenizer, SpecialTokens, TokenizerIdentity, open_tokenizer

if TYPE_CHECKING:
    from everytoken.provenance.lookup.reflection_texts import CanaryReflections, Reflections

Locate = Callable[[RecordText], LocatedTokens]


@dataclass(frozen=True, eq=False)
class StreamDocuments:
    """What is known of the documents of a stream.

    Attributes:
        index: from windows to documents and back; None: nothing says which documents the windows are made of.
        locate: gives the tokens of a document from its text; None where there are no texts, and documents are known by
            number alone.
        tokenizer: the one that made the ids; None where that is not known.
        files: then, how many documents are of each input file, in their order; nothing where that is not known.
        chats: how chats were made windows; None of other streams.
        reflections: of its windows; None of a stream that has none.
    """

    name: str
    index: StreamIndex | None
    locate: Locate | None
    tokenizer: DocumentTokenizer | None
    files: Mapping[str, int] = field(default_factory=dict)
    chats: ChatParameters | None = None
    reflections: Reflections | CanaryReflections | None = None


def documents_of(places: Places, name: str, path: Path, seq_length: int) -> StreamDocuments:
    """Return what is known of the documents of a stream.

    Args:
        places: where its index, its documents and its tokenizer are looked for.
        path: folder, prefix or file of the stream.

    Raises:
        ProvenanceError: it is a stream of this project and has no index, or what it was made from is not there any
            more.
    """
    if (stream := _made_here(path)) is None:
        return StreamDocuments(name, sequences_of(path, seq_length), None, None, input_files(path))
    index = open_index(places, name, stream, seq_length)
    tokenizer = _tokenizer(places, name, stream)
    chats = _chats_of(stream)
    locate = _locate(places, name, stream, index, tokenizer) if chats is None else _locate_chats(chats, tokenizer)
    reflections = _reflections(places, name, stream, index)
    return StreamDocuments(name, index, locate, tokenizer, chats=chats, reflections=reflections)


def documents_of_gone(places: Places, name: str, stream: IndexedStream) -> StreamDocuments:
    """Return what is known of the documents of a stream of which only the index is there.

    How its documents were encoded is taken from the stream that has its name now, where there is one: a take-down
    changes neither tokenizer nor rules. Nothing can be compared with its ids.

    Raises:
        ProvenanceError: the documents are not those that the index counts.
    """
    for split in stream.index.splits:
        now = store_head(places.store(STORES[split]))["rows"]
        if now != (then := stream.index.numbers.documents_of(split)):
            raise ProvenanceError(
                f"the stream {name} with the digest {stream.index.stream} is gone, and its index is of {then:,} "
                f"{split} documents; now there are {now:,}: they were drawn again since. Choose the environment that "
                f"has them (--env), or say where the stream lies: --streams {name}=PATH"
            )
        require_rows(stream.index.numbers, split, store_head(places.store(STORES[split]))["part_rows"])
    dataset = dataset_of_stream(name)
    if dataset in places.artifacts:
        known = documents_of(places, name, places.path(dataset), stream.seq_length)
        if known.index is not None and (known.index.kind, known.index.splits) == (
            stream.index.kind,
            stream.index.splits,
        ):
            return replace(known, index=stream.index)
    return StreamDocuments(name, stream.index, None, None)


def index_of_stream(places: Places, name: str, path: Path, seq_length: int) -> StreamIndex | None:
    """Return the index of a stream that was made from documents; None of one whose documents have but numbers.

    Arguments and errors as of `documents_of`.
    """
    stream = _made_here(path)
    return None if stream is None else open_index(places, name, stream, seq_length)


def _made_here(path: Path) -> Artifact | None:
    """Return the stream that lies there, where this project made it from documents."""
    if not (path / LEDGER_FILE).is_file():
        return None
    stream = ArtifactStore(path).load()
    return stream if any(written_by(stream.ledger["recipe"]["function"])) else None


def open_index(places: Places, name: str, stream: Artifact, seq_length: int) -> StreamIndex:
    """Return the index of a stream of this project.

    Raises:
        ProvenanceError: there is none.
    """
    if (found := places.indexes.get(stream.root_digest)) is None:
        raise ProvenanceError(
            f"there is no index of the stream {name} with the digest {stream.root_digest[:16]} ({stream.folder}) in "
            f"the environment {places.environment!r}. Make it: kedro run{places.options} --pipelines "
            f"{STREAM_KINDS[name].index_pipeline if name in STREAM_KINDS else 'provenance'}"
        )
    index = open_stream_index(found, seq_length)
    for split in index.splits:
        if places.has(STORES[split]):
            require_rows(index.numbers, split, store_head(places.path(STORES[split]))["part_rows"])
    return index


def folder_of_stream(places: Places, name: str) -> Path:
    """Return where the stream of a name lies: of a dataset, of a stream's short name, or of a path.

    Raises:
        ProvenanceError: there is none.
    """
    dataset = dataset_of_stream(name)
    if places.knows(dataset) or dataset != name:
        if dataset not in places.artifacts:
            raise ProvenanceError(
                f"the environment {places.environment!r} has no {dataset} yet, or it is not whole: run the pipeline "
                f"that makes it (kedro run{places.options})"
            )
        return places.path(dataset)
    if name in places.streams:
        return places.streams[name]
    if Path(name).exists() or Path(f"{name}.idx").exists():
        return Path(name)
    raise ProvenanceError(
        f"there is no stream {name!r}: name one of "
        f"{[one.name for one in STREAM_KINDS.values() if places.knows(one.dataset)]}, a dataset, or the path of a "
        "stream"
    )


def _tokenizer(places: Places, name: str, stream: Artifact) -> DocumentTokenizer:
    made = _tokenizer_artifact(places, name, stream)
    return open_tokenizer(made, made.statistics_as(TokenizerIdentity)["eos_token"])


def _tokenizer_artifact(places: Places, name: str, stream: Artifact) -> Artifact:
    digest = stream.ledger["recipe"]["parameters"]["tokenizer"]["digest"]
    if (found := places.with_digest(digest)) is None:
        raise ProvenanceError(
            f"the stream {name} was encoded with a tokenizer of the digest {digest}, which the environment "
            f"{places.environment!r} does not have any more. Run tokenization with the parameters that made it: the "
            "same parameters give the same tokenizer"
        )
    return found[1]


def _reflections(
    places: Places, name: str, stream: Artifact, index: StreamIndex
) -> Reflections | CanaryReflections | None:
    if index.kind != REFLECTED:
        return None
    from everytoken.provenance.lookup.reflection_texts import (  # not for streams without any
        canary_reflections,
        reflections_of,
    )

    tokenizer = _tokenizer_artifact(places, name, stream)
    if all(kind.base is None for kind in written_by(stream.ledger["recipe"]["function"])):
        return canary_reflections(places, stream, index, tokenizer)
    return reflections_of(places, name, stream, tokenizer)


def _stream_of_documents(places: Places, name: str, stream: Artifact) -> Artifact:
    """Return the stream that was made from documents: the one itself, or the one whose windows it has."""
    bases = {kind.base for kind in written_by(stream.ledger["recipe"]["function"])} - {None}
    if not bases:
        return stream
    (base,) = bases
    digest = stream.ledger["recipe"]["parameters"][base]["digest"]
    if (found := places.with_digest(digest)) is None:
        raise ProvenanceError(
            f"the stream {name} was made from the {base} stream with the digest {digest}, which the environment "
            f"{places.environment!r} does not have any more: it was made again since. Make {name} again, too"
        )
    return found[1]


def _locate(places: Places, name: str, stream: Artifact, index: StreamIndex, tokenizer: DocumentTokenizer) -> Locate:
    stream = _stream_of_documents(places, name, stream)
    given = stream.ledger["recipe"]["parameters"]
    tokens = given["tokens"] if isinstance(given["tokens"], list) else [given["tokens"]]
    (kind, *_) = written_by(stream.ledger["recipe"]["function"])
    rules = {
        split: _encoding_of(places, name, kind.tokens_of(split), made_from["digest"])
        for split, made_from in zip(index.splits, tokens, strict=True)
    }

    def locate(document: RecordText) -> LocatedTokens:
        special, most = rules[document.record.split]
        return locate_document(tokenizer, document.text, special_tokens_in_text=special, max_tokens=most)

    return locate


def _encoding_of(places: Places, name: str, dataset: str, digest: str) -> tuple[SpecialTokens, int | None]:
    """Return how the documents of a dataset were encoded: special tokens in text, and the cap."""
    head = store_head(places.store(dataset))
    if head["root_digest"] != digest:
        raise ProvenanceError(
            f"the stream {name} was made from {dataset} with the digest {digest}; now {dataset} has "
            f"{head['root_digest']}: it was made again since. Run tokenization with the parameters of the stream"
        )
    parameters: Mapping[str, Any] = head["recipe"]["parameters"]
    return cast(SpecialTokens, parameters["special_tokens_in_text"]), parameters["max_tokens"]


def _chats_of(stream: Artifact) -> ChatParameters | None:
    if all(kind.layout != "chats" for kind in written_by(stream.ledger["recipe"]["function"])):
        return None
    return ChatParameters.model_validate(stream.ledger["recipe"]["parameters"]["chats"])


def _locate_chats(chats: ChatParameters, tokenizer: DocumentTokenizer) -> Locate:
    marks = {mark: tokenizer.special_tokens[mark] for mark in chats.marks}

    def locate(document: RecordText) -> LocatedTokens:
        source = str(document.record.source)
        spans = said_in(document.text, source, document.spans, chats, f"document {document.record.id!r} of {source}")
        return locate_chat(tokenizer, document.text, spans, marks=marks, ends_with_eos=chats.turn_ends == "eos")

    return locate
