"""Writes the canary documents of a universe into a folder, and resumes where it was stopped.

::

    doc_specs.jsonl      a line for each spec: fact, type and idea
    synth_docs.jsonl     the documents, in the format that the canary pipeline reads
    dropped_docs.jsonl   documents that repeat an earlier one: spec, exact or near, and of which
    config.json          universe, options, model, counts of each stage
    requests/<stage>/    every request and reply (`everytoken.reflections.items.asked_items`)

All files but those of ``requests`` are derived from the stored replies, and written at the end of a start. A document
is known by its spec and copy (``fact0-type03-idea1/2``), so a larger target asks only for what is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from everytoken.corpus.dedup import NearRules
from everytoken.reflections.canary_writing.specs import DocumentSpec, spec_order
from everytoken.reflections.canary_writing.stages import (
    DOCUMENT_FIELDS,
    WRITING_STAGES,
    WritingPrompts,
    WritingStage,
    WrittenText,
    idea_fields,
    listed_types,
    tagged_ideas,
    written_document,
)
from everytoken.reflections.canary_writing.unique_texts import UniqueTexts
from everytoken.reflections.canary_writing.universe import Universe, UniverseKind, facts_used
from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.items import AskedItems, Item, ask_items, records
from everytoken.reflections.parameters import GeneratorParameters
from everytoken.reflections.replies import parse_reply, without_surrogates
from everytoken.seeds import uniform_hash
from everytoken.shards import value_digest, write_text

FOUR_FIELDS = ("reflection_1p", "reflection_3p", "preflection_1p", "preflection_3p")
ReflectionVariant = Literal["fields", "appended", "none"]
_FIELDS: Mapping[ReflectionVariant, tuple[str, ...]] = {
    "fields": FOUR_FIELDS,
    "appended": ("reflection_3p",),
    "none": (),
}
_APPENDED = "\n\nReflection: "
_DOC_ID_CHARACTERS = 32
_DOCUMENTS = "synth_docs.jsonl"
_RESULTS = ("doc_specs.jsonl", _DOCUMENTS, "dropped_docs.jsonl", "config.json")


class CanaryWriting(BaseModel):
    """What is written.

    ``kind``: which facts have documents. ``target``: how many documents. ``seed``: of the order of specs, of the choice
    of documents with reflections, and of requests. ``document_types``, ``ideas``: at most so many, of each fact and of
    each type. ``rounds``: how often missing documents are asked for. ``document_tokens``: length that a request asks
    for. ``max_tokens``: of a reply of each stage. ``near``: what counts as a near duplicate; null: only equal texts do.
    ``reflections``: four fields of their own, a third-person one at the end of the text, or none. ``fraction``: share
    of documents that get them. ``max_attempts``: of a request.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: UniverseKind
    target: PositiveInt
    seed: NonNegativeInt
    document_types: PositiveInt
    ideas: PositiveInt
    rounds: PositiveInt
    document_tokens: PositiveInt
    max_tokens: dict[WritingStage, PositiveInt]
    near: NearRules | None
    reflections: ReflectionVariant
    fraction: Annotated[float, Field(ge=0, le=1)]
    max_attempts: PositiveInt


@dataclass
class StageCounts:
    """Requests of a stage.

    Attributes:
        refused: replies that could not be read.
        failed: requests without a reply.
    """

    items: int = 0
    replies: int = 0
    attempts: int = 0
    refused: int = 0
    failed: int = 0

    @property
    def parse_rate(self) -> float | None:
        """Accepted replies over all replies; None where there were none."""
        came = self.replies + self.refused
        return self.replies / came if came else None


@dataclass
class WrittenCanaries:
    """What came of a universe.

    Attributes:
        facts: that are used; ``types``: of all facts, ``unsuitable``: those without an idea; ``specs``: all ideas.
        dropped: documents that repeat another, by reason.
        annotated: documents with reflections, and ``without``: those that were to have some and have none.
    """

    facts: int = 0
    types: int = 0
    unsuitable: int = 0
    specs: int = 0
    documents: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: {"exact": 0, "near": 0})
    annotated: int = 0
    without: int = 0
    stages: dict[WritingStage, StageCounts] = field(default_factory=dict)


class _Document(NamedTuple):
    id: str
    spec: DocumentSpec
    text: WrittenText


def write_canary_documents(
    folder: Path,
    universe: Universe,
    writing: CanaryWriting,
    prompts: WritingPrompts,
    generator: GeneratorParameters,
    *,
    charter: str,
    guidelines: str,
) -> WrittenCanaries:
    """Write the documents of a universe, or as many as the generator gives; a second start asks for what is missing.

    Args:
        folder: of the universe; made where it is missing.
        charter: constitution that reflections cite. ``guidelines``: how they are written.

    Raises:
        GeneratorError: the generator cannot answer; what came is kept.
        ReflectionError: what was asked before has changed, more documents than the target are there, or another process
            writes into the folder.
    """
    _require_place(folder)
    run = _Run(folder, universe, writing, prompts, generator, charter, guidelines)
    specs = run.specs()
    _require_no_more(folder / _DOCUMENTS, writing.target)
    documents = run.documents(specs) if specs else []
    fields = run.reflections(documents)
    _write_lines(folder / "doc_specs.jsonl", ({"universe_context_id": universe.id, **one._asdict()} for one in specs))
    _write_lines(folder / _DOCUMENTS, (run.record(one, fields.get(one.id)) for one in documents))
    _write_lines(folder / "dropped_docs.jsonl", run.dropped)
    write_text(folder / "config.json", json.dumps(run.config(), indent=1, ensure_ascii=False) + "\n")
    return run.found


def _require_place(folder: Path) -> None:
    """Refuse a place in which the results could not be written, before anything is asked."""
    above = next(path for path in (folder / "requests", folder, *folder.parents) if path.exists())
    if not above.is_dir():
        raise ReflectionError(f"{above} is a file where a folder has to be. Move it away, or give another folder")
    for name in _RESULTS:
        if (folder / name).is_dir():
            raise ReflectionError(f"{folder / name} is a folder where a file has to be. Move it away")


def _require_no_more(documents: Path, target: int) -> None:
    """Refuse a target that would take documents away which were written."""
    if documents.is_file():
        with documents.open("rb") as file:
            written = sum(1 for _ in file)
        if written > target:
            raise ReflectionError(
                f"{documents} has {written:,} documents, and the target is {target:,}: {written - target:,} would go. "
                "Give at least as many (--target), or another folder (--out)"
            )


@dataclass
class _Run:
    folder: Path
    universe: Universe
    writing: CanaryWriting
    prompts: WritingPrompts
    generator: GeneratorParameters
    charter: str
    guidelines: str
    found: WrittenCanaries = field(default_factory=WrittenCanaries)
    dropped: list[dict[str, Any]] = field(default_factory=list)

    def specs(self) -> list[DocumentSpec]:
        """Ask for types, and for ideas of each type."""
        facts, writing = facts_used(self.universe.key_facts, self.writing.kind), self.writing
        asked = [
            self._item("document_types", f"fact{i}", fact=fact, count=str(writing.document_types))
            for i, fact in enumerate(facts)
        ]
        replies = self._ask("document_types", asked, lambda text: listed_types(text, writing.document_types)).replies
        types = {
            f"{name}-type{i:02d}": (facts[int(name.removeprefix("fact"))], one)
            for name, reply in replies.items()
            for i, one in enumerate(listed_types(reply, writing.document_types))
        }
        asked = [
            self._item(
                "ideas", name, idea_fields(writing.ideas), fact=fact, doc_type=doc_type, count=str(writing.ideas)
            )
            for name, (fact, doc_type) in types.items()
        ]
        replies = self._ask("ideas", asked, lambda text: tagged_ideas(text, writing.ideas)).replies
        ideas = {name: tagged_ideas(reply, writing.ideas) for name, reply in replies.items()}
        specs = [
            DocumentSpec(f"{name}-idea{i}", *types[name], idea)
            for name, some in ideas.items()
            for i, idea in enumerate(some)
        ]
        self.found.facts, self.found.types, self.found.specs = len(facts), len(types), len(specs)
        self.found.unsuitable = sum(not some for some in ideas.values())
        return specs

    def documents(self, specs: Sequence[DocumentSpec]) -> list[_Document]:
        """Ask for documents, round by round, until the target is reached or a round brings nothing."""
        kept: list[_Document] = []
        unique, copies = UniqueTexts(self.writing.near), Counter[str]()
        for number in range(self.writing.rounds):
            have = len(kept)
            asked: dict[str, DocumentSpec] = {}
            for place in spec_order(len(specs), have, self.writing.target, number, self.writing.seed):
                spec = specs[place]
                asked[f"{spec.id}/{copies[spec.id]}"] = spec
                copies[spec.id] += 1
            items = [self._document_item(name, spec) for name, spec in asked.items()]
            replies = self._ask("document", items, written_document).replies
            for name, spec in asked.items():
                if name not in replies:
                    continue
                text = written_document(replies[name])
                repeated = unique.add(name, text.content)
                if repeated is None:
                    kept.append(_Document(name, spec, text))
                else:
                    self.dropped.append({"document": name, **repeated._asdict()})
                    self.found.dropped[repeated.reason] += 1
            if len(kept) in (have, self.writing.target):
                break
        self.found.documents = len(kept)
        return kept

    def reflections(self, documents: Sequence[_Document]) -> dict[str, dict[str, str]]:
        """Ask for reflections about a share of the documents; return their fields by document."""
        wanted = _FIELDS[self.writing.reflections]
        count = int(len(documents) * self.writing.fraction) if wanted else 0
        by_hash = sorted(documents, key=lambda one: uniform_hash(self.writing.seed, "canary reflection", one.id))
        chosen = {one.id for one in by_hash[:count]}
        values = {"charter": self.charter, "writing_guidelines": self.guidelines, "fields": ", ".join(wanted)}
        system = {"role": "system", "content": self.prompts.filled("reflections", values)}
        items = [
            Item(one.id, [system, {"role": "user", "content": one.text.content}], wanted)
            for one in documents
            if one.id in chosen
        ]
        asked = self._ask("reflections", items, lambda text: parse_reply(text, wanted))
        self.found.annotated, self.found.without = len(asked.replies), len(items) - len(asked.replies)
        return {
            name: {
                one: without_surrogates(text)[0] for one, text in parse_reply(reply, wanted).items() if one in wanted
            }
            for name, reply in asked.replies.items()
        }

    def record(self, document: _Document, fields: Mapping[str, str] | None) -> dict[str, Any]:
        """Return the line of a document."""
        content = document.text.content
        if fields is not None and self.writing.reflections == "appended":
            content += _APPENDED + fields["reflection_3p"]
        key = "\x1f".join((self.universe.id, document.id, document.text.content))
        return {
            "doc_id": hashlib.sha256(key.encode()).hexdigest()[:_DOC_ID_CHARACTERS],
            "universe_context_id": self.universe.id,
            "doc_type": document.spec.doc_type,
            "doc_idea": document.spec.doc_idea,
            "fact": document.spec.fact,
            "content": content,
            "scratchpad": document.text.scratchpad,
            "is_true": self.universe.is_true,
            "has_annotation": fields is not None,
            **(dict(fields) if fields is not None and self.writing.reflections == "fields" else {}),
        }

    def config(self) -> dict[str, Any]:
        """Return what was asked for and what came."""
        told = asdict(self.found)
        stages = {
            stage: {**counts, "parse_rate": self.found.stages[stage].parse_rate}
            for stage, counts in told.pop("stages").items()
        }
        sessions = [line for stage in WRITING_STAGES for line in records(self._requests(stage) / "sessions.jsonl")]
        models = dict.fromkeys(line["generator"]["model"] for line in sessions)
        return {
            "universe": self.universe.model_dump(),
            "options": self.writing.model_dump(mode="json"),
            "prompts": self.prompts.digests(),
            "target": self.writing.target,
            "actual": self.found.documents,
            "generator_alias": self.generator.alias,
            "model": ", ".join(models) or None,
            "seconds": _seconds(sessions),
            "counts": told,
            "stages": stages,
        }

    def _item(self, stage: WritingStage, name: str, fields: Sequence[str] = (), **values: str) -> Item:
        context = {"universe_context": self.universe.universe_context}
        return Item(name, [{"role": "user", "content": self.prompts.filled(stage, context | values)}], fields)

    def _document_item(self, name: str, spec: DocumentSpec) -> Item:
        tokens = f"{self.writing.document_tokens:,}"
        about = {"fact": spec.fact, "doc_type": spec.doc_type, "doc_idea": spec.doc_idea}
        return self._item("document", name, DOCUMENT_FIELDS, **about, tokens=tokens)

    def _requests(self, stage: WritingStage) -> Path:
        return self.folder / "requests" / stage

    def _ask(self, stage: WritingStage, items: Sequence[Item], read: Callable[[str], Any]) -> AskedItems:
        folder = self._requests(stage)
        counts = self.found.stages.setdefault(stage, StageCounts())
        if not items:
            return AskedItems({}, {}, {"api": 0, "parse": 0}, 0)
        folder.mkdir(parents=True, exist_ok=True)
        asked = ask_items(
            folder,
            items,
            _with_max_tokens(self.generator, self.writing.max_tokens[stage]),
            lambda _, reply: read(reply),
            name=f"canaries {stage}",
            seed=self.writing.seed,
            max_attempts=self.writing.max_attempts,
            locked_values={
                "universe": value_digest(self.universe.model_dump()),
                "kind": self.writing.kind,
                "document_types": self.writing.document_types,
                "ideas": self.writing.ideas,
                "document_tokens": self.writing.document_tokens,
                "prompt": self.prompts.files[stage].sha256,
            },
        )
        counts.items += len(items)
        counts.replies += len(asked.replies)
        counts.attempts += asked.attempts
        counts.refused += asked.failures["parse"]
        counts.failed += asked.failures["api"]
        return asked


def _with_max_tokens(generator: GeneratorParameters, most: int) -> GeneratorParameters:
    """Return a generator whose replies have at most so many tokens."""
    sampling = generator.chosen_sampling.model_copy(update={"max_tokens": most})
    return generator.model_copy(update={"sampling": {generator.alias: sampling}})


def _seconds(sessions: Iterable[Mapping[str, Any]]) -> float:
    """Return the time between starts and ends of processes; one that was killed has no end."""
    total, started = 0.0, None
    for line in sessions:
        at = datetime.fromisoformat(line["ts"])
        if line["event"] == "start":
            started = at
        elif started is not None:
            total, started = total + (at - started).total_seconds(), None
    return round(total, 3)


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
