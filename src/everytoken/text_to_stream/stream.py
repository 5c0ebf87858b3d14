"""From text files to a Megatron stream: one command, resumable file by file, the same bytes for any workers and engine.

A run has three steps. The SHA-256 of every input is taken; the files are encoded by workers, each into an artifact of
its own under ``<out>.parts``, named by its fingerprint; and the artifacts are joined to ``<out>/documents.bin`` and
``.idx``, with a ledger. The parts are removed when the stream is there: the fingerprint of a stream is made of those of
its parts, which follow from the inputs and parameters, so a second run finds the stream without them. An interrupted
run keeps its parts and goes on with the others. While files are joined the tokens are on disk twice; with
``keep_parts`` they stay so, and a run with more files encodes only these.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everytoken.shards import (
    Artifact,
    ArtifactStore,
    DamagedStore,
    Engine,
    Failure,
    file_sha256,
    lock_folder,
    plan_artifact,
    progress,
    sole_writer,
)
from everytoken.text_to_stream.certify import engine_of_run
from everytoken.text_to_stream.encode_file import Encoding, encode_file
from everytoken.text_to_stream.errors import FileError, PreprocessingError, RecheckFailed
from everytoken.text_to_stream.inputs import InputFile, find_inputs
from everytoken.text_to_stream.join import JoinedFilesStatistics, MadePart, MakePart, join_files
from everytoken.text_to_stream.texts import TextRange, place_of
from everytoken.tokens.encoding import EncodedCounts, Recheck, sum_counts
from everytoken.tokens.engines import REFERENCE, certificates_folder, installed_engines, reference_version
from everytoken.tokens.tokenizer import EncodingRules, SpecialTokens, TokenizerStatistics, library_record

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
        recheck_documents: so many of them at most.
        seed: of the certificate's texts and of these documents.
        max_line_bytes: a longer line is an error; a worker may need several times that memory.
        keep_parts: whether the encoded files stay beside the stream.
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
    inputs = find_inputs(files, threads)
    if not parameters.tokenizer.is_file():
        raise PreprocessingError(f"there is no tokenizer file {parameters.tokenizer}; give a tokenizer.json")
    tokenizer_sha256 = file_sha256(parameters.tokenizer)
    stream = ArtifactStore(out)
    stream.check_replaceable()
    working = out.with_name(f"{out.name}.parts")
    working.parent.mkdir(parents=True, exist_ok=True)
    certificates = parameters.certificate or certificates_folder()
    _require_own(working, certificates, out, inputs)
    with sole_writer(lock_folder(working)):
        texts = [file.texts(parameters.text_field, parameters.max_line_bytes) for file in inputs]
        engine = engine_of_run(
            parameters.engine,
            EncodingRules(parameters.tokenizer, parameters.eos, parameters.special_tokens_in_text),
            tokenizer_sha256,
            [text._replace(name=file.name) for file, text in zip(inputs, texts, strict=True)],
            text_bytes=sum(file.text_bytes for file in inputs),
            cases=parameters.cases,
            seed=parameters.seed,
            folder=certificates,
        )
        planned = _planned(inputs, parameters, tokenizer_sha256, engine)
        files_of_stream = [(file.name, list(parts)) for file, parts in zip(inputs, planned, strict=True)]
        begin = time.monotonic()  # the proof is made once, and its time is told apart
        made = _held(stream, plan_artifact(join_files, files=files_of_stream, parts={}, measured={}))
        if made is not None:
            _require_share(made.statistics_as(JoinedFilesStatistics)["total"], parameters.max_lossy_share, "")
            _remove_parts(working, parameters.keep_parts, planned)
            return Tokenized(made, False, time.monotonic() - begin)
        parts = _make_parts({name: part for of_file in planned for name, part in of_file.items()}, working, workers)
        _require_kept_text(inputs, planned, parts, parameters.max_lossy_share)
        measured: dict[str, Any] = {"engine": engine, "version": _version(engine), **library_record()}
        measured["seconds"] = time.monotonic() - begin
        made = stream.save(plan_artifact(join_files, files=files_of_stream, parts=parts, measured=measured))
        _remove_parts(working, parameters.keep_parts, planned)
        return Tokenized(made, True, time.monotonic() - begin)


def _remove_parts(working: Path, keep: bool, planned: Sequence[Mapping[str, Artifact]]) -> None:
    """Remove the parts, or only those of other inputs and parameters."""
    if not working.exists():
        return
    wanted = {fingerprint for of_file in planned for fingerprint in of_file} if keep else set()
    for path in working.iterdir():
        if path.name.strip(".").removesuffix(".lock") not in wanted:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not keep:
        working.rmdir()


_PART_NAME = re.compile(r"\.?[0-9a-f]{64}(\.lock|\.[0-9]+\.tmp)?")


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


def _planned(
    inputs: Sequence[InputFile],
    parameters: Tokenization,
    tokenizer_sha256: str,
    engine: str,
) -> list[dict[str, Artifact]]:
    """Return the parts of each file by fingerprint, in order."""
    encoding = Encoding(tokenizer_sha256, parameters.eos, parameters.special_tokens_in_text, parameters.max_tokens)
    size = sum(file.stamp[0] for file in inputs)
    recheck = Recheck.capped(parameters.recheck_share, parameters.seed, parameters.recheck_documents, size)
    planned = []
    for file in inputs:
        whole = file.texts(parameters.text_field, parameters.max_line_bytes)
        parts = [
            plan_artifact(
                encode_file,
                source=source,
                encoding=encoding,
                proof=None,
                given=whole._replace(begin=source["begin"], end=source["end"]),
                stamp=file.stamp,
                tokenizer=parameters.tokenizer,
                engine=engine,
                recheck=recheck,
            )
            for source in file.ranges(parameters.text_field)
        ]
        planned.append({_fingerprint(part): part for part in parts})
    return planned


def _fingerprint(planned: Artifact) -> str:
    assert planned.recipe is not None
    return planned.recipe.fingerprint([])


def _held(store: ArtifactStore, planned: Artifact) -> Artifact | None:
    """Return what the folder holds when it is what is planned, and unchanged."""
    try:
        if not store.exists() or (held := store.load()).ledger["fingerprint"] != _fingerprint(planned):
            return None
        held.verify()
    except DamagedStore as error:
        logger.warning("%s", error)
        return None
    return held


def _make_parts(planned: Mapping[str, Artifact], working: Path, workers: Engine) -> dict[str, MadePart]:
    """Make what is missing, the largest first; an engine that differs ends the run at once.

    Raises:
        PreprocessingError: some files cannot be encoded, the others are kept; or an engine differs from the reference.
    """
    working.mkdir(exist_ok=True)
    tasks = sorted(planned.items(), key=lambda task: _given(task[1]).begin - _given(task[1]).end)
    made: dict[str, MadePart] = {}
    failed: list[str] = []
    facts: TokenizerStatistics | None = None
    with closing(workers.run(MakePart(working), tasks)) as outcomes:  # type: ignore[type-var]
        for (fingerprint, part), outcome in progress(outcomes, len(tasks), "tokenize", "file"):
            if isinstance(outcome, Failure):
                failed.append(_failure(part, outcome))
                logger.error("%s", failed[-1])
                continue
            facts = facts if facts is not None and facts == outcome.tokenizer else outcome.tokenizer  # one copy
            made[fingerprint] = replace(outcome, tokenizer=facts)
    if failed:
        shown = "\n".join(f"  {error}" for error in sorted(failed)[:_SHOWN])
        more = f"\n  and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        raise PreprocessingError(
            f"{len(failed)} of {len(planned)} parts cannot be encoded, the other {len(made)} are done and kept in "
            f"{working}.\n{shown}{more}\nMend the cause and run the same command again: only what is missing is made."
        )
    return made


def _failure(planned: Artifact, failure: Failure) -> str:
    """Return what is wrong with a file; raise it when an engine differs."""
    kind, _, message = failure.error.partition(": ")
    if kind == RecheckFailed.__name__:
        raise PreprocessingError(f"{message}. The run was stopped.")
    if kind == FileError.__name__:
        return message
    if kind not in _EXPLAINED:
        logger.error("%s", failure.traceback)
    return f"{_given(planned).name}: {failure.error}"


def _given(planned: Artifact) -> TextRange:
    assert planned.recipe is not None
    given: TextRange = planned.recipe.parameters["given"]
    return given


def _require_kept_text(
    inputs: Sequence[InputFile],
    planned: Sequence[Mapping[str, Artifact]],
    parts: Mapping[str, MadePart],
    max_share: float,
) -> None:
    first = ""
    for file, of_file in zip(inputs, planned, strict=True):
        for fingerprint in of_file:
            part = parts[fingerprint]
            if part.first_lossy is not None and not first:
                begin = _given(of_file[fingerprint]).begin
                where = place_of(file.name, part.first_lossy) + (f" after byte {begin:,}" if begin else "")
                lost = f"the vocabulary has no symbol for the bytes {part.tokenizer['missing_bytes']}"
                first = f" The first is {file.path}, {where}; {lost}."
    _require_share(sum_counts(parts[one].counts for of_file in planned for one in of_file), max_share, first)


def _require_share(counts: EncodedCounts, max_share: float, first: str) -> None:
    lossy, documents = counts["lossy_documents"], counts["documents"]
    if lossy > max_share * documents:
        raise PreprocessingError(
            f"{lossy} of {documents} documents lose text ({counts['lossy_bytes']} bytes), allowed is a share of "
            f"{max_share}.{first} Use a tokenizer that has all bytes, or raise max_lossy_share if that is acceptable."
        )
