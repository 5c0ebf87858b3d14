"""From text files to a Megatron stream: one command, resumable file by file, the same bytes for any workers and engine.

Workers encode the files, each into a part of its own under ``<out>.parts``, and take their SHA-256 while they read.
The parts are joined while others are made, to ``<out>/documents.bin`` and ``.idx``. Then they are removed:
the fingerprint of a stream is made of those of its parts, which follow from the inputs and parameters. So a run that
finds a stream or parts takes the SHA-256 of the files first, and makes only what is missing. An interrupted run keeps
its parts. While files are joined the tokens are on disk twice; with ``keep_parts`` they stay so, and a run with more
files encodes only these.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everytoken.progress import progress
from everytoken.shards import (
    LEDGER_FILE,
    Artifact,
    ArtifactStore,
    DamagedStore,
    Engine,
    Failure,
    file_sha256,
    lock_folder,
    plan_artifact,
    sole_writer,
)
from everytoken.text_to_stream.certify import engine_of_run
from everytoken.text_to_stream.encode_file import Encoding, RangeTask, encode_file, part_fingerprint
from everytoken.text_to_stream.errors import FileChanged, FileError, PreprocessingError, RecheckFailed
from everytoken.text_to_stream.inputs import InputFile, find_inputs
from everytoken.text_to_stream.join import JoinedFilesStatistics, JoinedTokens, Joiner, join_files
from everytoken.text_to_stream.parts import MadePart, find_part
from everytoken.text_to_stream.texts import place_of
from everytoken.tokens.encoding import EncodedCounts, Recheck, sum_counts
from everytoken.tokens.engines import REFERENCE, certificates_folder, installed_engines, reference_version
from everytoken.tokens.tokenizer import EncodingRules, SpecialTokens, library_record

logger = logging.getLogger(__name__)

_SHOWN = 20  # failures in a message
# messages that need no traceback
_EXPLAINED = ("PreprocessingError", "TokenizerError", "DamagedStore", "StoreBusy", "OSError")


@dataclass(frozen=True)
class Tokenization:
    """Parameters of a run.

    Attributes:
        tokenizer: path of the ``tokenizer.json``.
        eos: the token that ends a document.
        text_field: key or column of the text in each row.
        special_tokens_in_text: ``literal``, ``control`` or ``error``, for those that a text spells.
        max_tokens: cap of a document, EOS included; None for none.
        max_lossy_share: the run fails when a greater share of the documents loses text.
        engine: ``fastest`` of those proven equal, or the name of one.
        certificate: folder of the proofs of engines; None: the user's (`everytoken.tokens.engines.kept_verdicts`).
        cases: adversarial texts that engines are compared on before use.
        recheck_share: of the documents, which the reference encodes again during the run.
        recheck_documents: about so many of them at most; each file rounds its share.
        seed: of the certificate's texts and of these documents.
        max_line_bytes: a longer line is an error; a worker may need several times that memory.
        keep_parts: whether the encoded files stay next to the stream.
    """

    tokenizer: Path
    eos: str
    text_field: str
    special_tokens_in_text: SpecialTokens
    max_tokens: int | None
    max_lossy_share: float
    engine: str
    certificate: Path | None
    cases: int
    recheck_share: float
    recheck_documents: int
    seed: int
    max_line_bytes: int
    keep_parts: bool


@dataclass(frozen=True)
class Tokenized:
    """A stream, and what the run did.

    Attributes:
        stream: the artifact with ``documents.bin`` and ``documents.idx``.
        made: whether this run made it.
        seconds: that the run took.
    """

    stream: Artifact
    made: bool
    seconds: float


def tokenize(files: Sequence[Path], out: Path, parameters: Tokenization, workers: Engine, threads: int) -> Tokenized:
    """Encode files into the stream in ``out``.

    Args:
        files: in any format that ingestion reads.
        out: folder of the stream; nothing else may be in it.
        parameters: see `Tokenization`.
        workers: encode the files.
        threads: that take the SHA-256 of the files.

    Raises:
        PreprocessingError: a file or line cannot be used; what was encoded is kept.
        TokensError: the tokenizer or the engine cannot be used.
        ShardsError: ``out`` holds something else, or another run writes it.
    """
    out = Path(os.path.abspath(out))  # noqa: PTH100  # a link stays a link
    inputs = find_inputs(files)
    if not parameters.tokenizer.is_file():
        raise PreprocessingError(f"there is no tokenizer file {parameters.tokenizer}; give a tokenizer.json")
    stream = ArtifactStore(out)
    stream.check_replaceable()
    working = out.with_name(f"{out.name}.parts")
    working.parent.mkdir(parents=True, exist_ok=True)
    certificates = parameters.certificate or certificates_folder()
    _require_own(working, certificates, out, inputs)
    with sole_writer(lock_folder(working)):
        run = _Run(inputs, parameters, file_sha256(parameters.tokenizer), working)
        engine = run.engine(certificates)
        begin = time.monotonic()  # the proof is made once, and its time is told apart
        if working.exists() or (out / LEDGER_FILE).exists():
            run.take_digests(threads)
            made = _held(stream, run.planned({}, None, {}))
            if made is not None:
                _require_share(made.statistics_as(JoinedFilesStatistics)["total"], parameters.max_lossy_share, "")
                run.remove_parts()
                return Tokenized(made, False, time.monotonic() - begin)
        joined = run.make(workers, engine)
        run.require_kept_text()
        measured: dict[str, Any] = {"engine": engine, "version": _version(engine), **library_record()}
        measured["seconds"] = time.monotonic() - begin
        parts = {part.name: part for part in run.parts.values()}
        made = stream.save(run.planned(parts, joined, measured))
        run.remove_parts()
        return Tokenized(made, True, time.monotonic() - begin)


@dataclass(frozen=True)
class _Range:
    """A range of an input."""

    file: InputFile
    begin: int
    end: int


@dataclass(frozen=True)
class _Encode:
    """What a worker does."""

    folder: Path
    encoding: Encoding
    tokenizer: Path
    engine: str
    recheck: Recheck

    def __call__(self, task: RangeTask) -> tuple[MadePart, str | None]:
        return encode_file(
            self.folder,
            task,
            encoding=self.encoding,
            tokenizer=self.tokenizer,
            engine=self.engine,
            recheck=self.recheck,
        )


class _Run:
    """The ranges of a run, and what is known of them so far.

    Attributes:
        parts: by number of the range.
    """

    def __init__(self, inputs: Sequence[InputFile], parameters: Tokenization, tokenizer_sha256: str, working: Path):
        self.parts: dict[int, MadePart] = {}
        self._inputs, self._parameters, self._working = inputs, parameters, working
        self._ranges = [_Range(file, begin, end) for file in inputs for begin, end in file.ranges()]
        self._sha256: dict[str, str] = {}  # by name of the file
        self._encoding = Encoding(
            tokenizer_sha256, parameters.eos, parameters.special_tokens_in_text, parameters.max_tokens
        )

    def engine(self, certificates: Path) -> str:
        """Return the engine that encodes."""
        given = self._parameters
        return engine_of_run(
            given.engine,
            EncodingRules(given.tokenizer, given.eos, given.special_tokens_in_text),
            self._encoding.tokenizer_sha256,
            [file.texts(given.text_field, given.max_line_bytes)._replace(name=file.name) for file in self._inputs],
            text_bytes=sum(file.text_bytes for file in self._inputs),
            cases=given.cases,
            seed=given.seed,
            folder=certificates,
        )

    def take_digests(self, threads: int) -> None:
        """Take the SHA-256 of all files, and find the parts that are there."""
        with ThreadPoolExecutor(threads) as pool:  # hashing releases the GIL
            self._sha256 = dict(
                zip([file.name for file in self._inputs], pool.map(InputFile.sha256, self._inputs), strict=True)
            )
        for number in range(len(self._ranges)):
            if (part := find_part(self._working, self._fingerprint(number))) is not None:
                self.parts[number] = part

    def _fingerprint(self, number: int) -> str:
        file, begin, end = (one := self._ranges[number]).file, one.begin, one.end
        source = file.source(begin, end, self._sha256[file.name], self._parameters.text_field)
        return part_fingerprint(source, self._encoding)

    def planned(
        self, parts: Mapping[str, MadePart], joined: JoinedTokens | None, measured: Mapping[str, Any]
    ) -> Artifact:
        """Return the plan of the stream, when all digests are known."""
        fingerprints: dict[str, list[str]] = {file.name: [] for file in self._inputs}
        for number, one in enumerate(self._ranges):
            fingerprints[one.file.name].append(self._fingerprint(number))
        files = list(fingerprints.items())
        return plan_artifact(join_files, files=files, parts=parts, joined=joined, measured=measured)

    def make(self, workers: Engine, engine: str) -> JoinedTokens:
        """Make the missing parts, the largest first, and join all; an engine that differs ends the run at once.

        Raises:
            PreprocessingError: some files cannot be encoded, the others are kept; or an engine differs.
            DamagedStore: a part was damaged before it was joined.
        """
        self._working.mkdir(exist_ok=True)
        given = self._parameters
        size = sum(file.stamp[0] for file in self._inputs)
        recheck = Recheck.capped(given.recheck_share, given.seed, given.recheck_documents, size)
        encode = _Encode(self._working, self._encoding, given.tokenizer, engine, recheck)
        tasks = sorted(self._tasks(), key=lambda task: task.given.begin - task.given.end)
        cut = {task.given.name: self._ranges[task.number].file for task in tasks if not task.whole}
        failed: list[str] = []
        with (
            Joiner(self._working / _JOINED) as joiner,
            ThreadPoolExecutor(1) as hashing,
            closing(workers.run(encode, tasks)) as outcomes,  # type: ignore[type-var]
        ):
            digests = {file.name: hashing.submit(file.sha256) for file in cut.values() if file.name not in self._sha256}
            next_one = self._join_from(joiner, 0)
            for task, outcome in progress(outcomes, len(tasks), "tokenize", "file"):
                if isinstance(outcome, Failure):
                    failed.append(_failure(task.given.name, outcome))
                    logger.error("%s", failed[-1])
                    continue
                part, sha256 = outcome
                file = self._ranges[task.number].file
                if sha256 is not None and self._sha256.setdefault(file.name, sha256) != sha256:
                    failed.append(str(FileChanged(task.given.name)))
                    continue
                if file.name not in self._sha256:
                    self._sha256[file.name] = digests[file.name].result()
                self.parts[task.number] = part.named(self._fingerprint(task.number))
                next_one = self._join_from(joiner, next_one)
            if failed:
                raise _cannot_be_encoded(failed, len(self._ranges), len(self.parts), self._working)
            return joiner.finish()

    def _join_from(self, joiner: Joiner, number: int) -> int:
        while number in self.parts:
            joiner.add(self.parts[number])
            number += 1
        return number

    def _tasks(self) -> Iterator[RangeTask]:
        given = self._parameters
        for number, one in enumerate(self._ranges):
            if number in self.parts:
                continue
            whole = one.file.texts(given.text_field, given.max_line_bytes)
            seed = int(hashlib.sha256(one.file.name.encode()).hexdigest()[:15], 16) + one.begin
            text_range = whole._replace(begin=one.begin, end=one.end)
            yield RangeTask(number, text_range, one.file.stamp, text_range == whole, seed)

    def require_kept_text(self) -> None:
        """Check that not too many documents lost text.

        Raises:
            PreprocessingError: too many did; the first is named.
        """
        first = ""
        for number, one in enumerate(self._ranges):
            record = self.parts[number].record
            if record["first_lossy"] is not None and not first:
                where = place_of(one.file.name, record["first_lossy"])
                where += f" after byte {one.begin:,}" if one.begin else ""
                lost = f"the vocabulary has no symbol for the bytes {record['tokenizer']['missing_bytes']}"
                first = f" The first is {one.file.path}, {where}; {lost}."
        total = sum_counts(self.parts[number].record["counts"] for number in range(len(self._ranges)))
        _require_share(total, self._parameters.max_lossy_share, first)

    def remove_parts(self) -> None:
        """Remove the parts, or only those of other inputs and parameters."""
        if not self._working.exists():
            return
        keep = self._parameters.keep_parts
        wanted = {self._fingerprint(number) for number in range(len(self._ranges))} if keep else set()
        for path in self._working.iterdir():
            if path.name.partition(".")[0] not in wanted:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not keep:
            self._working.rmdir()


_JOINED = ".joined.tmp"
# of parts; of temporaries; of the folders and locks of earlier versions
_PART_NAME = re.compile(r"[0-9a-f]{64}\.(tokens|lengths|json)|\..*\.tmp(\.tokens|\.lengths)?|\.?[0-9a-f]{64}(\.lock)?")


def _require_own(working: Path, certificates: Path, out: Path, inputs: Sequence[InputFile]) -> None:
    """Check that nothing of the user's lies where the run keeps and removes its own files."""
    if working.exists():
        foreign = (
            [str(working)]
            if not working.is_dir()
            else [path.name for path in sorted(working.iterdir()) if not _PART_NAME.fullmatch(path.name)]
        )
        if foreign:
            raise PreprocessingError(
                f"{working} is where encoded files are kept until they are joined, and it holds {foreign[:5]}. Move "
                "these elsewhere, or choose another --out."
            )
    for file in inputs:
        for folder in (working, certificates, out):
            if file.path.is_relative_to(folder):
                raise PreprocessingError(f"{file.path} lies in {folder}, where the run writes. Choose another --out.")


def _version(engine: str) -> str:
    return reference_version() if engine == REFERENCE else installed_engines()[engine]


def _held(store: ArtifactStore, planned: Artifact) -> Artifact | None:
    """Return what the folder holds when it is what is planned, and unchanged."""
    assert planned.recipe is not None
    try:
        if not store.exists() or (held := store.load()).ledger["fingerprint"] != planned.recipe.fingerprint([]):
            return None
        held.verify()
    except DamagedStore as error:
        logger.warning("%s", error)
        return None
    return held


def _cannot_be_encoded(failed: Sequence[str], ranges: int, made: int, working: Path) -> PreprocessingError:
    shown = "\n".join(f"  {error}" for error in sorted(failed)[:_SHOWN])
    more = f"\n  and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
    return PreprocessingError(
        f"{len(failed)} of {ranges} parts cannot be encoded, the other {made} are done and kept in {working}.\n"
        f"{shown}{more}\nFix the cause and run the same command again: only what is missing is made."
    )


def _failure(name: str, failure: Failure) -> str:
    """Return what is wrong with a file; raise it when an engine differs."""
    kind, _, message = failure.error.partition(": ")
    if kind == RecheckFailed.__name__:
        raise PreprocessingError(f"{message}. The run was stopped.")
    if kind in (FileError.__name__, FileChanged.__name__):
        return message
    if kind not in _EXPLAINED:
        logger.error("%s", failure.traceback)
    return f"{name}: {failure.error}"


def _require_share(counts: EncodedCounts, max_share: float, first: str) -> None:
    lossy, documents = counts["lossy_documents"], counts["documents"]
    if lossy > max_share * documents:
        raise PreprocessingError(
            f"{lossy} of {documents} documents lose text ({counts['lossy_bytes']} bytes), allowed is a share of "
            f"{max_share}.{first} Use a tokenizer that has all bytes, or raise max_lossy_share if that is acceptable."
        )
