"""The answers of prompts as ranks: what is asked, what a result line has, and what must not change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.generators import model_of_generator
from everytoken.reflections.items import request_seed
from everytoken.reflections.parameters import GeneratorParameters, ReflectionParameters
from everytoken.reflections.points import Fact, read_identity_facts
from everytoken.reflections.prompts import (
    TextFile,
    filled,
    prompt_path,
    read_text_file,
    read_version,
    require_sections,
)
from everytoken.reflections.ranks import RankFolder, ask_rank
from everytoken.reflections.registry import GenerationRun
from everytoken.reflections.replies import cited_sections
from everytoken.reflections.sft.messages import facts_message, hinted_message
from everytoken.reflections.sft.parameters import SftParameters
from everytoken.reflections.sft.prompts import PROMPTS_FILE, PromptRow, PromptStatistics, read_prompts
from everytoken.reflections.sft.replies import ANSWER_FIELDS, CITED, UNCITED, AnswerRules
from everytoken.shards import Artifact, reading

SFT_RUN = GenerationRun(
    name="sft",
    prompt="sft",
    required=ANSWER_FIELDS,
    text_columns={CITED: CITED, UNCITED: UNCITED},
    charter_column="citations",
)
"""The run, whose rows are prompts in the place of documents; it adds no column to a stream."""

SKIPPED = "skipped"
"""Status of a prompt that is about a topic that is skipped."""


@dataclass(frozen=True)
class PromptRequest:
    """What the generator is asked about a prompt; it has no point, no drawn fact and no style."""

    row: PromptRow
    messages: tuple[Mapping[str, str], Mapping[str, str]]
    required: tuple[str, ...] = ANSWER_FIELDS
    position: int | None = None
    token_index: int | None = None
    canary: Fact | None = None
    style: str | None = None


@dataclass(frozen=True, eq=False)
class PromptRequests:
    """Builds the requests of prompts and reads the replies; `open` reads the files.

    Attributes:
        system: the message that all prompts share.
        facts: all of the file; none where the generator learns of none.
        files: what messages are made of: ``prompt``, ``constitution``, ``canaries``.
    """

    parameters: SftParameters
    rules: AnswerRules
    system: str
    facts: tuple[Fact, ...]
    sections: frozenset[str]
    files: Mapping[str, TextFile]
    run: GenerationRun = SFT_RUN

    @classmethod
    def open(cls, parameters: SftParameters, shared: ReflectionParameters) -> Self:
        """Read and check prompt, constitution and facts.

        Args:
            shared: where prompts, constitution and facts are, and for which generator.

        Raises:
            PromptMissing: the prompt file does not exist.
            ReflectionError: a file is not what it should be.
        """
        where = shared.prompts
        prompt = read_version(prompt_path(where, "sft", shared.generator.alias, parameters.version), "sft")
        charter, canaries = read_text_file(Path(where.constitution)), read_text_file(Path(shared.canaries.facts))
        facts = read_identity_facts(canaries.path) if parameters.canaries else ()
        return cls(
            parameters=parameters,
            rules=AnswerRules(parameters.family_name, parameters.vocabulary),
            system=filled(prompt.text, "sft", charter.text, canaries=facts_message(facts)),
            facts=facts,
            sections=require_sections(charter.text, charter.path),
            files={"prompt": prompt, "constitution": charter, "canaries": canaries},
        )

    def build(self, row: PromptRow) -> PromptRequest:
        """Return what the generator is asked about a prompt."""
        user = hinted_message(row.harm_category, row.user)
        return PromptRequest(row, ({"role": "system", "content": self.system}, {"role": "user", "content": user}))

    def columns(self, request: PromptRequest, reply: str) -> dict[str, Any]:
        """Return what a result line has of a reply: both answers, the sections that one cites, facts that occur.

        Raises:
            BlankReply: an answer is blank.
            RefusedReply: the reply is not acceptable for another reason.
        """
        pair = self.rules.read(reply, request.row.user)
        return {
            CITED: pair.cited,
            UNCITED: pair.uncited,
            "citations": json.dumps(cited_sections(pair.cited, self.sections)),
            "facts": [one.id for one in self.facts if one.occurs_in(pair.cited) or one.occurs_in(pair.uncited)],
            "surrogates_replaced": pair.surrogates,
            "stored_tokens": None,
            "status": SKIPPED if pair.is_skip else "ok",
        }

    def request_seed(self, row: PromptRow, attempt: int) -> int:
        """Return the seed of a request; the row is a part of its key, as ids may repeat."""
        return request_seed(self.parameters.generation_seed, SFT_RUN.name, f"{row.number}_{row.key}", attempt)


@dataclass(frozen=True)
class SftPlan:
    """The answers of a file of prompts; saving it asks for those that are missing."""

    parameters: SftParameters
    shared: ReflectionParameters
    prompts: Artifact

    @property
    def statistics(self) -> PromptStatistics:
        """What the file of prompts holds."""
        return self.prompts.statistics_as(PromptStatistics)

    def requests(self) -> PromptRequests:
        """Return what builds the requests; its files are read and checked."""
        return PromptRequests.open(self.parameters, self.shared)

    def locked_values(self) -> dict[str, Any]:
        """Check prompt, facts and generator; return what must not change while the answers are made."""
        found, generator = self.statistics, self.shared.generator
        opened = self.requests()
        return {
            "run_name": SFT_RUN.name,
            "rows": (0, found["n"]),
            "rows_per_task": self.parameters.rows_per_task,
            "seed": found["seed"],
            "content_sha256": found["content_sha256"],
            "prompts": self.prompts.root_digest,
            "version": self.parameters.version,
            "generation_seed": self.parameters.generation_seed,
            "canaries": self.parameters.canaries,
            "family_name": self.parameters.family_name,
            "vocabulary": list(self.parameters.vocabulary),
            "sha256": {name: file.sha256 for name, file in opened.files.items()},
            "generator_alias": generator.alias,
            "sampling": generator.chosen_sampling.model_dump(),
            "model": model_of_generator(generator),
        }

    def run_rank(self, rank: RankFolder) -> None:
        """Ask about all prompts of a rank that have no result, and write its marker.

        Raises:
            GeneratorError: the generator cannot answer; what came is kept.
        """
        with reading([self.prompts]):
            ask_rank(rank, _AboutPrompts(self, rank))


@dataclass(frozen=True)
class _AboutPrompts:
    """The questions of a rank about its prompts."""

    plan: SftPlan
    rank: RankFolder
    rests_after_refusal: bool = False

    @property
    def generator(self) -> GeneratorParameters:
        return self.plan.shared.generator

    @property
    def max_attempts(self) -> int:
        return self.plan.parameters.max_attempts

    def builder(self) -> PromptRequests:
        return self.plan.requests()

    def counter(self) -> None:
        return None

    def rows(self, done: set[int]) -> Iterable[PromptRow]:
        return read_prompts(self.plan.prompts.path(PROMPTS_FILE), self.rank.first, self.rank.end, done)


def require_prompts(prompts: Artifact, values: Mapping[str, Any]) -> None:
    """Check that the answers of a run are of these prompts.

    Raises:
        ReflectionError: they are of others.
    """
    if values.get("prompts") != prompts.root_digest:
        raise ReflectionError(
            f"{prompts.folder} has other prompts than those that were answered (sft_replies). Restore sft.mix, or "
            "answer these prompts in another folder (globals.yml: data)"
        )
