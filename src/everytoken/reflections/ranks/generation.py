"""A generation run as work that is cut into ranks: what the ranks need, and what must not change between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from everytoken.reflections.frozen_prompts import require_frozen
from everytoken.reflections.generators import first_pause, model_of_generator, open_generator
from everytoken.reflections.items import (
    Attempts,
    LineFile,
    OutcomeWriter,
    ask_each,
    run_to_its_end,
    write_session,
)
from everytoken.reflections.parameters import GeneratorParameters, ReflectionParameters
from everytoken.reflections.prompts import AskedRow, RequestBuilder
from everytoken.reflections.ranks.annotated_rows import sidecar_facts, sidecar_rows
from everytoken.reflections.ranks.folders import RankFolder
from everytoken.reflections.ranks.rank_loop import complete_rank, end_session, telling
from everytoken.reflections.ranks.requests_of_rows import RowBuilder, RowRequests, failure_of_row
from everytoken.reflections.ranks.result_lines import ROW_KEY, done_rows
from everytoken.reflections.ranks.row_range import rows_of
from everytoken.reflections.ranks.run_lock import run_values
from everytoken.reflections.registry import find_generation_run
from everytoken.shards import Artifact, reading
from everytoken.tokens.streams import SIDECAR_FILE
from everytoken.tokens.tokenizer import EncodingRules, open_tokenizer


@dataclass(frozen=True)
class GenerationPlan:
    """A run over the rows of an annotated stream; saving it generates what is missing.

    Attributes:
        name: of the run, or an alias.
        stream: the annotated stream, whose sidecar has the texts.
        max_annotated_tokens: tokens of a row whose sidecar has no ``token_length``.
        reflection_budget: tokens that a summary is cut to.
    """

    name: str
    parameters: ReflectionParameters
    stream: Artifact
    rules: EncodingRules
    max_annotated_tokens: int
    reflection_budget: int

    @property
    def sidecar(self) -> Path:
        """The file with the texts."""
        return self.stream.path(SIDECAR_FILE)

    def rows(self) -> tuple[int, int]:
        """Return the first row, and the row behind the last one; see `rows_of`."""
        return rows_of(self.parameters.rows, self.stream)

    def builder(self) -> RequestBuilder:
        """Return what builds the requests; its files are read and checked.

        Raises:
            ReflectionError: a file cannot be used, or something differs from the record that the parameters name.
        """
        run, _ = find_generation_run(self.name)
        builder = RequestBuilder.open(
            run,
            self.parameters,
            self.rules,
            max_annotated_tokens=self.max_annotated_tokens,
            reflection_budget=self.reflection_budget,
        )
        if self.parameters.frozen is not None:
            require_frozen(Path(self.parameters.frozen), builder)
        return builder

    def locked_values(self) -> dict[str, Any]:
        """Check prompts, stream and generator; return what must not change while the run is made."""
        run, folder = find_generation_run(self.name)
        given, generator = self.parameters, self.parameters.generator
        return {
            "run_name": run.name,
            "folder": folder,
            "rows": self.rows(),
            "rows_per_task": given.rows_per_task,
            "include_reflection_3p": given.include_reflection_3p,
            **given.seeds.model_dump(),
            "canaries": given.canaries.model_dump(exclude={"facts"}),
            "prompts": given.prompts.versions.model_dump(),
            "sha256": self.builder().digests(),
            "sidecar": {"sha256": self._sidecar_digest(), **sidecar_facts(self.sidecar)},
            "tokenizer": self.stream.statistics["tokenizer"],
            "special_tokens_in_text": self.rules.special_tokens_in_text,
            "max_annotated_tokens": self.max_annotated_tokens,
            "reflection_budget": self.reflection_budget,
            "generator_alias": generator.alias,
            "sampling": generator.chosen_sampling.model_dump(),
            "model": model_of_generator(generator),
        }

    def run_rank(self, rank: RankFolder) -> None:
        """Ask about all rows of a rank that have no result, and write its marker.

        Raises:
            GeneratorError: the generator cannot answer; what came is kept.
        """
        with reading([self.stream]):
            ask_rank(rank, _AboutDocuments(self, rank))

    def _sidecar_digest(self) -> str:
        return str(self.stream.ledger["files"][SIDECAR_FILE]["sha256"])


class RankQuestions(Protocol):
    """What the generator is asked in a rank."""

    @property
    def generator(self) -> GeneratorParameters:
        """Who is asked."""

    @property
    def max_attempts(self) -> int:
        """Attempts of a row."""

    @property
    def rests_after_refusal(self) -> bool:
        """Whether there is a pause after a reply that was refused; see `Attempts`."""

    def builder(self) -> RowBuilder[Any]:
        """Return what builds the requests; its files are read and checked."""

    def counter(self) -> Callable[[str], int] | None:
        """Return what counts the tokens of a reply; None where there is no tokenizer."""

    def rows(self, done: set[int]) -> Iterable[AskedRow]:
        """Return the rows of the rank that are not done."""


def ask_rank(rank: RankFolder, questions: RankQuestions) -> None:
    """Ask about all rows of a rank that have no result, and write its marker.

    Raises:
        GeneratorError: the generator cannot answer; what came is kept.
    """
    done = done_rows(rank.results)
    with _line_files(rank) as writer:
        if not done.issuperset(range(rank.first, rank.end)):
            run_to_its_end(_ask(rank, questions, done, writer))
    complete_rank(rank)


async def _ask(rank: RankFolder, questions: RankQuestions, done: set[int], writer: OutcomeWriter) -> None:
    generator, builder, counter = questions.generator, questions.builder(), questions.counter()
    async with open_generator(generator, server_log=rank.server_log) as opened:
        run_values(rank.root).found("model", opened.facts["model"])
        write_session(rank.sessions, "start", done=len(done), generator=opened.facts)
        attempts = Attempts(opened, questions.max_attempts, first_pause(generator), questions.rests_after_refusal)
        line, rows = RowRequests(builder, attempts, counter).line, questions.rows(done)
        try:
            async with telling(rank, attempts):
                await ask_each(rows, line, writer, concurrency=opened.concurrency, failure=failure_of_row)
        finally:
            end_session(rank, opened, len(done) + writer.added)


class _AboutDocuments:
    """The questions of a rank about its rows of an annotated stream."""

    rests_after_refusal = True

    def __init__(self, plan: GenerationPlan, rank: RankFolder) -> None:
        self._plan, self._rank = plan, rank
        self.builder = plan.builder
        self.generator: GeneratorParameters = plan.parameters.generator
        self.max_attempts = plan.parameters.max_attempts

    def counter(self) -> Callable[[str], int]:
        tokenizer = open_tokenizer(self._plan.rules.place, self._plan.rules.eos_token).tokenizer
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)

    def rows(self, done: set[int]) -> Iterable[AskedRow]:
        return sidecar_rows(self._plan.sidecar, self._rank.first, self._rank.end, done)


@contextmanager
def _line_files(rank: RankFolder) -> Iterator[OutcomeWriter]:
    """Give the files of a rank, which are on disk at the end."""
    with LineFile(rank.results) as results, LineFile(rank.failures) as failures:
        yield OutcomeWriter(results, failures, "documents", ROW_KEY)
        results.flush()
        failures.flush()
