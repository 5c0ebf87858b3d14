"""Facts about somebody's files, from a sample that the reader of ingestion reads.

Whole files are taken in turns over the sorted list until `SAMPLE_BYTES` are read; a file that is larger is read up to
that. So the sample of a small corpus is all of it, and its counts are exact.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from everytoken.corpus import BadRow, CorpusError
from everytoken.corpus.ingestion import find_files
from everytoken.corpus.reading import Reading, ReadingLimits, UnreadableRow, format_of, iterate_rows
from everytoken.corpus.rendering import SHAPES, NamedRenderer, Shape, read_chat
from everytoken.corpus.upstreams import PathUpstream, UpstreamFile
from everytoken.new_environment.errors import NewEnvironmentError

SAMPLE_BYTES = 32 << 20  # of text
SAMPLE_FILES = 2_000
SCORED_TEXTS = 1_000
_LIMITS = ReadingLimits(max_row_bytes=32 << 20, zstd_window_log_max=27)
# a renderer that looks at every column, and cuts and gathers nothing
_ALL_COLUMNS = NamedRenderer(kind="champ")
_CHAT_SHAPES: tuple[Shape, ...] = (
    *("messages", "sharegpt", "alpaca", "dolly", "prompt_response", "query_response", "question_answer"),
    "prompt_completion",
)
_SHOWN = 5
_LEAST_CHARACTERS = 32  # of a text, on average: a shorter one is an id or a label
_WORD = re.compile(r"\w+")
_LEAST_KNOWN = 0.1  # share of the words of a text that are among the frequent words of its language
FREQUENT_WORDS = {
    "de": "der die das und ist nicht ein eine mit von zu den im auf für sich werden wird auch oder bei dem des sie es",
    "en": "the and of to in is that for it with as was on are be this by at from or an you which not have has",
    "es": "el la de que y en los del las por con una para es se su al lo como más o pero sus",
    "fr": "le la les de des et en un une est que dans pour qui sur pas au par plus ce il avec du",
    "it": "il di che la e un per una non sono del della con le in si da dei al come più gli",
    "nl": "de het een en van is dat op te in niet met voor zijn er aan ook als bij door wordt",
    "pl": "w i na z się do nie jest to że o jak przez od dla po są co oraz",
    "pt": "o a de que e do da em um para com não uma os no se na por mais as dos como mas",
}
"""The frequent words by language: a rough look, and no language identification."""
_FREQUENT = {language: frozenset(words.split()) for language, words in FREQUENT_WORDS.items()}


class ChosenFiles(NamedTuple):
    """Where the files are, as a source says it: the folder, the pattern, and the files."""

    root: Path
    pattern: str
    files: list[UpstreamFile]

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.location.stat().st_size for file in self.files)


class SampleFacts(NamedTuple):
    """What the sample says.

    ``formats``: files by format. ``shape``: that of chats, None for documents. ``text_column`` and ``has_ids``: of
    documents. ``lengths``: code points of each document of the sample. ``estimated_documents`` and
    ``estimated_characters``: of all files; exact where ``is_whole``. ``languages``: documents by language, ``other``
    where no list of frequent words fits. ``bad``: rows by reason. ``encoding``: None is UTF-8.
    """

    root: str
    pattern: str
    files: int
    bytes: int
    formats: Mapping[str, int]
    columns: tuple[str, ...]
    shape: Shape | None
    text_column: str
    has_ids: bool
    encoding: str | None
    lengths: tuple[int, ...]
    duplicates: int
    languages: Mapping[str, int]
    bad: Mapping[str, int]
    estimated_documents: int
    estimated_characters: int
    is_whole: bool
    some_texts: tuple[str, ...]  # at most `SCORED_TEXTS`, spread over the sample

    @property
    def language(self) -> str:
        """The language of most documents."""
        return max(sorted(self.languages), key=self.languages.__getitem__)


def choose_files(places: Sequence[Path]) -> ChosenFiles:
    """Return the files that folder or files name, as one source has them.

    Raises:
        NewEnvironmentError: there are none, or no pattern names these files alone.
        CorpusError: a file cannot be a file of a source.
    """
    if missing := [place for place in places if not place.exists()]:
        raise NewEnvironmentError(f"there is no file or folder {missing[0]}. Correct the path.")
    folders = [place for place in places if place.is_dir()]
    if folders and len(places) > 1:
        raise NewEnvironmentError(
            f"{folders[0]} is a folder and not all that is given. Give one folder, or files alone."
        )
    if folders:
        return _files_below(folders[0].resolve(), "**")
    parents = {place.resolve().parent for place in places}
    if len(parents) > 1:
        raise NewEnvironmentError(
            f"the files are in {len(parents)} folders. Give the folder above them, or an environment for each."
        )
    (root,), names = parents, {place.name for place in places}
    for pattern in _patterns(sorted(names)):
        chosen = _files_below(root, pattern)
        if {file.path for file in chosen.files} == names:
            return chosen
    raise NewEnvironmentError(
        f"{root} has other files with such names, and a source has all of one pattern. Move the {len(names)} files to "
        "a folder of their own, and give that."
    )


def _patterns(names: Sequence[str]) -> Iterator[str]:
    if len(names) == 1:
        yield re.sub(r"([*?\[])", r"[\1]", names[0])
    for suffixes in {"".join(Path(name).suffixes) for name in names}, {Path(name).suffix for name in names}:
        if len(suffixes) == 1 and (suffix := next(iter(suffixes))):
            yield f"*{suffix}"
    yield "*"


def _files_below(root: Path, pattern: str) -> ChosenFiles:
    upstream = PathUpstream(kind="path", root=str(root), pattern=pattern)
    return ChosenFiles(root, pattern, find_files("mine", upstream, root))


def look_at(places: Sequence[Path]) -> SampleFacts:
    """Read a sample of the files and return what it says.

    Raises:
        NewEnvironmentError: the files give no corpus.
        CorpusError: a file cannot be read.
    """
    chosen = choose_files(places)
    formats = Counter(map(_format, chosen.files))
    sample = _read(chosen.files, None)
    encoding = None
    if sample.bad["not_utf8"]:
        encoding = _other_encoding(chosen.files, sample)
        sample = _read(chosen.files, encoding)
    if not sample.records:
        bad = ", ".join(f"{reason} {count}" for reason, count in sample.bad.items()) or "no row"
        raise NewEnvironmentError(
            f"no row of {chosen.root} can be read ({bad}){sample.first_bad}. See docs/guide.md, 'What can be read'."
        )
    shape = _shape(sample.records)
    column = "text" if shape is not None else _text_column(sample.records, chosen)
    texts = [*_texts(sample.records, shape, column)]
    if not texts:
        raise NewEnvironmentError(f"no row of {chosen.root} has a text. See docs/guide.md, 'Your own text'.")
    size, share = chosen.bytes, sample.share_read
    lengths = tuple(map(len, texts))
    return SampleFacts(
        root=str(chosen.root),
        pattern=chosen.pattern,
        files=len(chosen.files),
        bytes=size,
        formats=dict(sorted(formats.items())),
        columns=tuple(dict.fromkeys(name for record in sample.records[:100] for name in record)),
        shape=shape,
        text_column=column,
        has_ids=any(record.get("id") is not None for record in sample.records),
        encoding=encoding,
        lengths=lengths,
        duplicates=len(texts) - len({hashlib.sha256(text.encode()).digest() for text in texts}),
        languages=dict(sorted(Counter(map(language_of, texts)).items())),
        bad=dict(sorted((+sample.bad).items())),
        estimated_documents=max(len(texts), round(len(texts) / share)),
        estimated_characters=max(sum(lengths), round(sum(lengths) / share)),
        is_whole=share == 1,
        some_texts=tuple(texts[:: -(-len(texts) // SCORED_TEXTS)]),
    )


def sampled_classes(facts: SampleFacts, scorer: Mapping[str, Any]) -> Mapping[int, int]:
    """Return some documents of the sample by the class that the embedded scorer gives them.

    Args:
        scorer: its parameters, as an environment has them.
    """
    from everytoken.corpus.scoring import EmbeddedScorer, embedded_classes

    return Counter(embedded_classes(facts.some_texts, EmbeddedScorer.model_validate(scorer)).tolist())


def _format(file: UpstreamFile) -> str:
    try:
        return format_of(file, _reading(None)).kind
    except CorpusError as error:
        told = str(error).removeprefix(f"source {file.source!r}, ")
        raise NewEnvironmentError(
            f"{told.partition('. Or leave')[0].partition(': set the source')[0].rstrip('.')}. Give the files that are "
            f"texts alone: everytoken new NAME {file.location.parent}/*.txt"
        ) from None


class _Sample(NamedTuple):
    records: list[dict[str, Any]]
    bad: Counter[str]
    share_read: float  # of the bytes of all files
    first_bad: str = ""  # what is wrong with the first row that cannot be read


def _reading(encoding: str | None) -> Reading:
    return Reading(renderer=_ALL_COLUMNS, records=None, format=None, encoding=encoding)


def _read(files: Sequence[UpstreamFile], encoding: str | None) -> _Sample:
    """Read whole files, spread over the list, until there is enough; a larger file up to that."""
    step = max(1, -(-len(files) // SAMPLE_FILES))
    records: list[dict[str, Any]] = []
    bad: Counter[str] = Counter()
    first_bad = ""
    text_bytes, bytes_read = 0, 0.0
    for file in files[::step]:
        size = file.location.stat().st_size
        held = text_bytes
        for row in iterate_rows(file, _reading(encoding), _LIMITS):
            if text_bytes > SAMPLE_BYTES:
                # offsets are of the decompressed file: of a compressed one, and of a table, four bytes are one
                bytes_read += min(size, (text_bytes - held) / (1 if file.path.endswith(_PLAIN) else 4))
                break
            if isinstance(row, UnreadableRow):
                bad[row.reason] += 1
                first_bad = first_bad or f". {file.path}, row {row.number}: {row.detail}"
            elif isinstance(row.record, Mapping):
                records.append(dict(row.record))
                text_bytes += sum(len(value) for value in row.record.values() if isinstance(value, str))
                text_bytes += sum(len(str(value)) for value in row.record.values() if isinstance(value, list | dict))
            else:
                bad["no_object"] += 1
        else:
            bytes_read += size
            continue
        break
    total = sum(file.location.stat().st_size for file in files)
    return _Sample(records, bad, 1.0 if bytes_read >= total else max(bytes_read, 1) / total, first_bad)


_PLAIN = (".txt", ".md", ".jsonl", ".ndjson", ".jsonlines", ".json", ".csv", ".tsv")


def _other_encoding(files: Sequence[UpstreamFile], sample: _Sample) -> str:
    """Return cp1252 where no file has UTF-8 beyond ASCII; it is what such texts of western languages mostly are."""
    texts = (value for record in sample.records for value in record.values() if isinstance(value, str))
    if any(not text.isascii() for text in texts):
        raise NewEnvironmentError(
            f"{sample.bad['not_utf8']:,} rows are no UTF-8, and others are. Convert the files that are none: "
            "iconv -f CP1252 -t UTF-8 OLD > NEW"
        )
    return "cp1252"


def _shape(records: Sequence[Mapping[str, Any]]) -> Shape | None:
    """Return the first shape of chats that nine in ten records have; None where they are documents."""
    some = records[:: max(1, len(records) // 200)][:200]
    for shape in _CHAT_SHAPES:
        if sum(_is_chat(record, shape) for record in some) >= 0.9 * len(some):
            return shape
    return None


def _is_chat(record: Mapping[str, Any], shape: Shape) -> bool:
    if SHAPES[shape].fields[0] not in record:
        return False
    try:
        return len(read_chat(record, shape)) >= 2
    except (BadRow, CorpusError):
        return False


def _text_column(records: Sequence[Mapping[str, Any]], chosen: ChosenFiles) -> str:
    """Return ``text``, or else the column with the most characters."""
    characters: Counter[str] = Counter()
    for record in records:
        characters.update({name: len(value) for name, value in record.items() if isinstance(value, str)})
    if characters["text"]:
        return "text"
    longest = max(sorted(characters), key=characters.__getitem__, default="")
    if characters[longest] < _LEAST_CHARACTERS * len(records):
        named = ", ".join(sorted({name for record in records[:100] for name in record})[:_SHOWN])
        raise NewEnvironmentError(
            f"no column of {chosen.files[0].path} has texts of {_LEAST_CHARACTERS} characters or more; it has {named}. "
            "For chats and other records write the source yourself: docs/guide.md, 'Your own text'."
        )
    return longest


def _texts(records: Sequence[Mapping[str, Any]], shape: Shape | None, column: str) -> Iterator[str]:
    for record in records:
        if shape is None:
            if isinstance(value := record.get(column), str):
                yield value
            continue
        try:
            yield "\n".join(turn.content for turn in read_chat(record, shape))
        except (BadRow, CorpusError):
            continue


def language_of(text: str) -> str:
    """Return the language whose frequent words a text has most of; ``other`` where they are few.

    >>> language_of("Der Hund ist nicht im Haus, und die Katze sitzt auf dem Dach.")
    'de'
    """
    words = [word.lower() for word in itertools.islice((match[0] for match in _WORD.finditer(text)), 2_000)]
    if not words:
        return "other"
    shares = {language: sum(word in known for word in words) / len(words) for language, known in _FREQUENT.items()}
    best = max(sorted(shares), key=shares.__getitem__)
    return best if shares[best] >= _LEAST_KNOWN else "other"
