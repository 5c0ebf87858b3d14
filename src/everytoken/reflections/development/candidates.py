"""A version of a prompt, tried: its replies about the sampled rows, and what the judge says of them.

Replies and judgements are stored under the number of their row, and asked for once. Whatever is told of a version is
derived from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from everytoken.reflections.development.judging import judge_messages, judge_system, judged_voices
from everytoken.reflections.development.scores import Judgement, parse_judgement
from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.items import AskedItems, Item, ask_items
from everytoken.reflections.parameters import DevelopmentParameters, GeneratorParameters
from everytoken.reflections.prompts import (
    DocumentRequest,
    RequestBuilder,
    SidecarRow,
    TextFile,
    read_text_file,
    with_version,
)
from everytoken.reflections.ranks import GenerationPlan
from everytoken.reflections.registry import PromptKind, find_generation_run


@dataclass(frozen=True)
class Candidate:
    """A version of a prompt for a generator, and a judge.

    Attributes:
        plan: of the run, with this version.
        folder: where all candidates of the run have their replies.
    """

    plan: GenerationPlan
    builder: RequestBuilder
    rubric: TextFile
    folder: Path

    @classmethod
    def open(cls, plan: GenerationPlan, version: str, folder: Path) -> Candidate:
        """Read the files of a version.

        Raises:
            ReflectionError: one cannot be used, or the run is not judged.
        """
        run, _ = find_generation_run(plan.name)
        one = replace(plan, parameters=with_version(plan.parameters, run.prompt, version))
        builder = versioned_builder(plan, version)
        judged_voices(run, builder.required)
        return cls(one, builder, read_text_file(Path(development_of(plan).rubric)), folder)

    @property
    def kind(self) -> PromptKind:
        """The kind of its prompt."""
        return self.builder.run.prompt

    @property
    def version(self) -> str:
        """``v1``."""
        return str(getattr(self.plan.parameters.prompts.versions, self.kind))

    @property
    def name(self) -> str:
        """Of generator and prompt: ``<alias>__<kind>_<version>``."""
        return f"{self.plan.parameters.generator.alias}__{self.kind}_{self.version}"

    @property
    def development(self) -> DevelopmentParameters:
        """The parameters of the trial."""
        return development_of(self.plan)

    @property
    def judge(self) -> GeneratorParameters:
        """Who judges, and who improves."""
        return self.development.judge or self.plan.parameters.generator

    @property
    def voices(self) -> tuple[str, ...]:
        """Fields of a reply that are judged."""
        return judged_voices(self.builder.run, self.builder.required)

    def tracked_parameters(self) -> dict[str, Any]:
        """Return what decides the figures of a version, as plain JSON by which versions are compared."""
        given, digests = self.development, self.builder.digests()
        return {
            "run": self.plan.name,
            "generator": self.plan.parameters.generator.alias,
            "prompt": f"{self.kind}_{self.version}",
            **{f"{name}_sha256": digests[name] for name in ("prompt", "constitution", "guidelines")},
            "rubric_sha256": self.rubric.sha256,
            "judge": self.judge.alias,
            "sampling": self.plan.parameters.generator.chosen_sampling.model_dump(),
            "judge_sampling": self.judge.chosen_sampling.model_dump(),
            **given.model_dump(include={"seed", "items", "floor", "bound", "generating_attempts", "judging_attempts"}),
        }

    def system_of_judge(self) -> str:
        """Return the system message of the judge."""
        return judge_system(self.rubric, self.builder.files["constitution"])


@dataclass(frozen=True)
class JudgedItem:
    """A row of the sample; a reply or a judgement that failed is None."""

    request: DocumentRequest
    reply: str | None
    judgement: Judgement | None


@dataclass(frozen=True)
class Trial:
    """A candidate on a sample.

    Attributes:
        items: by the number of the row, ascending.
        generating, judging: what came of the questions.
    """

    candidate: Candidate
    items: Mapping[int, JudgedItem]
    generating: AskedItems
    judging: AskedItems

    @property
    def judged(self) -> dict[int, Judgement]:
        """The judgements, by row."""
        return {number: one.judgement for number, one in self.items.items() if one.judgement is not None}


def development_of(plan: GenerationPlan) -> DevelopmentParameters:
    """Return the parameters of prompt development.

    Raises:
        ReflectionError: there are none.
    """
    if (given := plan.parameters.development) is None:
        raise ReflectionError("reflection.development is null: give its parameters, as conf/base does")
    return given


def versioned_builder(plan: GenerationPlan, version: str | None = None) -> RequestBuilder:
    """Return what builds the requests of a run with another version of its prompt, whatever a frozen record fixes.

    Args:
        version: None: that of the parameters.

    Raises:
        PromptMissing: the version does not exist.
        ReflectionError: a file cannot be used.
    """
    run, _ = find_generation_run(plan.name)
    wanted = version or str(getattr(plan.parameters.prompts.versions, run.prompt))
    return replace(plan, parameters=with_version(plan.parameters, run.prompt, wanted)).builder()


def try_candidate(candidate: Candidate, rows: Sequence[SidecarRow], purpose: str) -> Trial:
    """Ask the generator about the rows, then the judge about the replies; what is stored is not asked again.

    Args:
        purpose: of the sample; a part of the folders, and of the seeds of the requests.

    Raises:
        GeneratorError: generator or judge cannot answer; what came is kept.
        ReflectionError: a file or a parameter has changed since replies were stored.
    """
    requests = {str(row.number): _request(candidate, row) for row in rows}
    generating = _generate(candidate, requests, purpose)
    judging = _judge(candidate, requests, generating, purpose)
    items = {
        int(number): JudgedItem(
            request,
            generating.replies.get(number),
            parse_judgement(judging.replies[number], candidate.voices) if number in judging.replies else None,
        )
        for number, request in requests.items()
    }
    return Trial(candidate, items, generating, judging)


def _request(candidate: Candidate, row: SidecarRow) -> DocumentRequest:
    request = candidate.builder.build(row)
    assert isinstance(request, DocumentRequest), "a sample has rows that are asked about"
    return request


def _generate(candidate: Candidate, requests: Mapping[str, DocumentRequest], purpose: str) -> AskedItems:
    builder, given = candidate.builder, candidate.development
    return ask_items(
        candidate.folder / "generations" / purpose / candidate.name,
        [Item(number, request.messages, request.required) for number, request in requests.items()],
        candidate.plan.parameters.generator,
        lambda item, reply: builder.columns(requests[item.id], reply),
        name=f"generate {purpose} {candidate.plan.name} {candidate.name}",
        seed=given.seed,
        max_attempts=given.generating_attempts,
        locked_values={
            "run": builder.run.name,
            "sha256": builder.digests(),
            **builder.parameters.seeds.model_dump(include={"reflection_seed"}),
            "canaries": builder.parameters.canaries.model_dump(exclude={"facts"}),
            "include_reflection_3p": builder.parameters.include_reflection_3p,
        },
    )


def _judge(
    candidate: Candidate, requests: Mapping[str, DocumentRequest], generating: AskedItems, purpose: str
) -> AskedItems:
    given, system, voices = candidate.development, candidate.system_of_judge(), candidate.voices
    return ask_items(
        candidate.folder / "judgements" / purpose / f"{candidate.judge.alias}__on__{candidate.name}",
        [
            Item(number, judge_messages(system, requests[number], reply, voices))
            for number, reply in generating.replies.items()
        ],
        candidate.judge,
        partial(_read_judgement, voices),
        name=f"judge {purpose} {candidate.plan.name} {candidate.name}",
        seed=given.seed,
        max_attempts=given.judging_attempts,
        locked_values=_locked_judge(candidate),
    )


def _locked_judge(candidate: Candidate) -> dict[str, Any]:
    charter = candidate.builder.files["constitution"]
    return {"sha256": {"rubric": candidate.rubric.sha256, "constitution": charter.sha256}}


def _read_judgement(voices: Sequence[str], item: Item, reply: str) -> Judgement:
    return parse_judgement(reply, voices)
