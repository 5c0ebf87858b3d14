"""What a run left, in a page of plain text: all numbers come from the ledgers."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from everytoken.corpus.sampling import EstimatedTokens
from everytoken.corpus.scoring import ClassificationStatistics
from everytoken.datasets import amounts_set_aside, encoded_counts
from everytoken.shards import Artifact, Shards, digests_in
from everytoken.tokens.engines import EngineProof
from everytoken.tokens.streams import StreamKind, kind_of_dataset, kinds_by_name
from everytoken.tokens.tokenizer import TokenizerIds
from everytoken.training.evaluation import BitsPerByte


class _Tokens(TypedDict):
    tokens: int


class _LossTokens(TypedDict):
    loss_tokens: int


def _estimated(split: Shards) -> float:
    return sum(part["estimated_tokens"] for part in split.statistics_as(EstimatedTokens))


def _tokens(stream: Artifact) -> int:
    return stream.statistics_as(_Tokens)["tokens"]


def _loss_tokens(made: Artifact) -> int:
    return made.statistics_as(_LossTokens)["loss_tokens"]


# dataset, what its rows are, how its tokens are counted, and what these tokens are
_Stage = tuple[str, str, Callable[[Any], float] | None, str]
_BEFORE_STREAMS: tuple[_Stage, ...] = (
    ("upstream_documents", "documents", None, ""),
    ("dropped_documents", "documents", None, ""),
    ("documents", "documents", None, ""),
    ("scored_documents", "documents", None, ""),
    (
        "classifications",
        "",
        lambda stored: stored.statistics_as(ClassificationStatistics)["classifications"],
        "distinct ids",
    ),
    ("annotated_documents", "documents", _estimated, "estimated"),
    ("unannotated_documents", "documents", _estimated, "estimated"),
    ("held_out_documents", "documents", _estimated, "estimated"),
    ("tokenizer", "", lambda stored: stored.statistics_as(TokenizerIds)["vocab_size"], "in vocabulary"),
    ("engine_certificate", "", lambda stored: len(stored.statistics_as(EngineProof)["engines"]), "engines tried"),
    ("annotated_tokens", "documents", lambda stored: encoded_counts([stored])["tokens"], "without EOS"),
    ("unannotated_tokens", "documents", lambda stored: encoded_counts([stored])["tokens"], "without EOS"),
)
_TRAINED: tuple[_Stage, ...] = (
    ("checkpoint", "", _loss_tokens, "trained on"),
    ("pretrained_checkpoint", "", _loss_tokens, "trained on"),
)
_AFTER_STREAMS: tuple[_Stage, ...] = (
    ("finetuned_checkpoint", "", _loss_tokens, "trained on"),
    ("held_out_evaluation", "", None, ""),
    ("release", "documents", lambda stored: stored.bytes, "bytes"),
)

# how the tokens of a stream are counted, and what they are
_COUNTED = {
    "packed": (_tokens, "with EOS"),
    "padded": (_tokens, "without EOS"),
    "flat": (_tokens, "with EOS"),
    "chats": (_loss_tokens, "to learn"),
}


def _stages() -> Iterator[_Stage]:
    """Yield the stages in the order of the flow; streams that a trained model goes on with come after that."""
    kinds = kinds_by_name()
    yield from _BEFORE_STREAMS
    yield from (_stream_stage(kind) for kind in kinds if not kind.is_trained_on)
    yield from _TRAINED
    yield from (_stream_stage(kind) for kind in kinds if kind.is_trained_on)
    yield from _AFTER_STREAMS


def _stream_stage(kind: StreamKind) -> _Stage:
    tokens, words = _COUNTED[kind.layout]
    return kind.dataset, "" if kind.layout == "flat" else "windows", tokens, words


@dataclass(frozen=True)
class StageRow:
    """What a stage holds, as its ledger says.

    Attributes:
        tokens: None of a stage whose tokens are not counted; ``counted`` says what they are.
        digest: root digest, 64 hexadecimal digits.
        outdated: which input holds something else than when the stage was made; empty where none does.
    """

    name: str
    rows: int | None
    unit: str
    tokens: float | None
    counted: str
    digest: str
    outdated: str


@dataclass(frozen=True)
class StagesLeft:
    """What a run left, stage by stage.

    Attributes:
        read: what each stage of ``rows`` holds, by name.
        unmade: stages of the job that were not made.
        unreadable: stages that cannot be read, with the reason, by name.
    """

    rows: Sequence[StageRow]
    read: Mapping[str, Any]
    unmade: Sequence[str]
    unreadable: Mapping[str, str]


def stages_left(catalog: Any, pipelines: Mapping[str, Any]) -> StagesLeft:
    """Read the ledgers of all stages, in the order of the flow.

    Args:
        pipelines: by name; what only those make that are not in ``__default__`` need not be there.
    """
    rows: list[StageRow] = []
    unmade: list[str] = []
    unreadable: dict[str, str] = {}
    outdated: dict[str, str] = {}
    read: dict[str, Any] = {}
    default = pipelines["__default__"]  # where it makes a dataset, no other pipeline that makes it is looked at
    makers = {name: node for one in (*pipelines.values(), default) for node in one.nodes for name in node.outputs}
    made_by_default = default.datasets()
    for name, unit, tokens, kind in _stages():
        dataset = catalog.get(name)
        try:
            held, stored = dataset.ledger_summary(), dataset.load()
        except Exception as error:  # a stage that cannot be read must not hide the others; its row says why
            reason = reason_of(error)
            if "has not been made" in reason:
                unmade += [name] if name in made_by_default else []
            else:
                unreadable[name] = reason
            continue
        outdated[name] = _outdated(name, catalog, makers[name].inputs, outdated)
        amount = tokens(stored) if tokens else None
        rows.append(StageRow(name, held["rows"], unit, amount, kind, held["root_digest"], outdated[name]))
        read[name] = stored
    return StagesLeft(rows, read, unmade, unreadable)


def summary_lines(left: StagesLeft, env: str) -> Iterator[str]:
    """Yield the lines of ``everytoken summary``.

    Args:
        env: option to add to the commands that are shown.
    """
    yield f"{'stage':<24}{'rows':>18}{'tokens':>24}  digest"
    for row in left.rows:
        rows = f"{row.rows:,} {row.unit}" if row.unit else ""
        amount = "" if row.tokens is None else f"{row.tokens:,.0f} {row.counted}"
        yield f"{row.name:<24}{rows:>18}{amount:>24}  {row.digest[:16]}  {row.outdated}".rstrip()
    read, outdated = left.read, {row.name: row.outdated for row in left.rows}
    if "held_out_evaluation" in read:
        yield from _bits_per_byte(read["held_out_evaluation"], outdated["held_out_evaluation"])
    yield from _engine_and_lengths(read)
    yield from _set_aside(read)
    if left.unreadable or left.unmade:
        yield ""
        yield f"not there (kedro run{env} makes it)"
        yield from (f"  {name}: {reason}" for name, reason in left.unreadable.items())
        yield from textwrap.wrap(", ".join(left.unmade), 120, initial_indent="  ", subsequent_indent="  ")
    yield ""
    is_released = "release" in read and not outdated["release"]
    yield from where_to_look(env, "checkpoint" in read, "scored_documents" in read and not is_released)


def reason_of(error: Exception) -> str:
    """Return the last line of what went wrong first."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return str(error).strip().splitlines()[-1]


def _outdated(name: str, catalog: Any, inputs: Iterable[str], known: dict[str, str]) -> str:
    """Say which input of a dataset now holds something else than what it was made from, or is outdated itself."""
    if name == "tokenizer" and _is_given(catalog.get(name)):
        return ""
    for source in inputs:
        if source == "held_out_documents" and _looked_at_none(catalog.get(name)):
            continue
        kind = kind_of_dataset(source)
        if kind is not None and (chosen := _chosen_streams(catalog.get(name))) is not None:
            if kind.name not in chosen:
                continue
            source = kind.dataset  # where it was made on request, it is read under another name
        if source not in known or source == "engine_certificate":  # another one that says the same makes nothing else
            continue
        dataset = catalog.get(source)
        if not catalog.get(name).is_made_from(dataset.ledger_summary()["root_digest"], dataset.part_digests()):
            return f"made from another {source}"
        if known[source]:
            return f"outdated, as {source} is"
    return ""


def _is_given(dataset: Any) -> bool:
    """Tell whether a tokenizer was given, not trained: it was made from no documents then."""
    return not digests_in(dataset.load().ledger["recipe"])


def _looked_at_none(dataset: Any) -> bool:
    """Return whether a training was asked to look at no held-out documents while it went on."""
    recipe = dataset.load().ledger["recipe"]["parameters"]
    return "held_out" in recipe and recipe["held_out"] is None


def _chosen_streams(dataset: Any) -> set[str] | None:
    """Return the names of the streams that a training or its evaluation chose; None of what chooses none."""
    streams = dataset.load().ledger["recipe"]["parameters"].get("streams")
    return {name for name, _ in streams} if isinstance(streams, list) else None


def _bits_per_byte(evaluation: Artifact, outdated: str) -> Iterator[str]:
    figures = evaluation.statistics_as(BitsPerByte)
    yield ""
    head = f"{'held-out bits per byte':<24}{'documents':>18}{'unigram model':>16}{'trained model':>16}"
    yield f"{head}  {outdated}".rstrip()
    for name, row in [*sorted(figures["by_source"].items()), ("all sources", figures["total"])]:
        bits = f"{row['unigram_bits_per_byte']:>16.3f}{row['bits_per_byte']:>16.3f}"
        yield f"{name:<24}{row['documents']:>18,}{bits}"


def _engine_and_lengths(read: Mapping[str, Any]) -> Iterator[str]:
    encoded = [read[name] for name in ("annotated_tokens", "unannotated_tokens") if name in read]
    if len(encoded) < 2 or "engine_certificate" not in read or not (counts := encoded_counts(encoded))["full_tokens"]:
        return
    certificate = read["engine_certificate"]
    proof, fastest = certificate.statistics_as(EngineProof), certificate.measured["fastest"]
    yield ""
    per_token = counts["characters"] / counts["full_tokens"]
    yield f"{per_token:.3f} characters a token, measured (subsampling.chars_per_token is the estimate)"
    for name, engine in proof["engines"].items():
        if engine["equal"]:
            used = ", the fastest" if name == fastest else ""
            yield f"engine {name} {engine['version']}{used}: proven equal on {_texts(proof)}"
        else:
            yield f"engine {name} {engine['version']}: not used, {engine['difference']}"
    if fastest == "tokenizers":
        yield f"engine tokenizers {proof['reference']['version']}, the reference"
    if spelled := counts["special_documents"]:
        ids = counts["special_ids"]
        became = f"{ids:,} of these became the tokens" if ids else "encoded as plain text"
        yield f"{spelled:,} documents spell special tokens: {became}"


def _texts(proof: EngineProof) -> str:
    return f"{proof['cases']:,} generated texts and {proof['documents']:,} documents"


def _set_aside(read: Mapping[str, Any]) -> Iterator[str]:
    counted = amounts_set_aside(read)
    if counted:
        yield ""
        yield "set aside"
        yield from (f"  {count:>12,.0f} {words}" for count, words in counted)


def where_to_look(env: str, is_trained: bool, is_to_release: bool) -> Iterator[str]:
    """Yield the commands that show more of what a run left."""
    commands = Path(sys.executable).parent
    here = f"{commands.relative_to(Path.cwd())}/" if commands.is_relative_to(Path.cwd()) else ""
    yield "where to look next"
    yield f"  {here}kedro viz run{env}"
    yield "      the graph, with a preview of every dataset"
    yield f"  {here}mlflow server --backend-store-uri sqlite:///mlflow.db --host 127.0.0.1"
    yield "      http://127.0.0.1:5000/#/experiments/1/runs: every run with seeds, parameters and digests, to compare"
    if is_trained:
        yield f"  {here}everytoken trace --step 0{env}"
        yield "      which documents the first step of the training read"
    if is_to_release:
        yield f"  {here}kedro run --pipelines release{env}"
        yield "      the corpus without its text, in a folder that rebuilds it"
