"""From a row of the annotated split to the messages of a generator, and from its reply to columns.

All of it is a pure function of the row, the parameters and the files that they name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.parameters import ReflectionParameters
from everytoken.reflections.points import Fact, draw_fact, injected_facts, sampled_index
from everytoken.reflections.prompts.constitution import require_sections
from everytoken.reflections.prompts.files import TextFile, filled, read_prompt, read_text_file
from everytoken.reflections.prompts.messages import chat, user_message
from everytoken.reflections.prompts.requests import DocumentRequest, SidecarRow, Skipped
from everytoken.reflections.prompts.styles import draw_style, parse_styles
from everytoken.reflections.registry import GenerationRun
from everytoken.reflections.replies import cited_sections, cut_summary, parse_raw, parse_reply, without_surrogates
from everytoken.seeds import integer_key
from everytoken.tokens.encoding import TokenSpan, TokenSpans, open_spans
from everytoken.tokens.tokenizer import EncodingRules

_SEED_BITS = 31  # servers take a signed 32-bit seed


class TextPoint(NamedTuple):
    """Where a text is cut for the generator, which sees ``characters`` code points of it.

    ``token_index`` is the token of the point; None for a run without one.
    """

    characters: int
    token_index: int | None


@dataclass(frozen=True, eq=False)
class RequestBuilder:
    """Builds the requests of a run and reads its replies; `open` reads the files and the tokenizer once.

    Attributes:
        facts: the identity canaries that are drawn from.
        system: the system message; None where the style of a document is its system message.
        styles: texts by name; none for runs without styles.
        files: what messages are made of: ``prompt``, ``constitution``, ``guidelines``, ``canaries``.
        max_tokens: tokens of a row whose sidecar has no length.
        summary_tokens: that a summary is cut to.
    """

    run: GenerationRun
    parameters: ReflectionParameters
    spans: TokenSpans
    facts: Sequence[Fact]
    system: str | None
    styles: Mapping[str, str]
    sections: frozenset[str]
    files: Mapping[str, TextFile]
    max_tokens: int
    summary_tokens: int

    @classmethod
    def open(
        cls,
        run: GenerationRun,
        parameters: ReflectionParameters,
        rules: EncodingRules,
        *,
        max_annotated_tokens: int,
        reflection_budget: int,
    ) -> Self:
        """Read and check prompt, constitution, guidelines and facts, and open the tokenizer.

        Raises:
            PromptMissing: the prompt file does not exist.
            ReflectionError: a file is not what it should be.
            TokenizerError: the tokenizer cannot be opened.
        """
        files = parameters.prompts
        prompt = read_prompt(files, run.prompt, parameters.generator.alias)
        charter, guidelines = read_text_file(Path(files.constitution)), read_text_file(Path(files.guidelines))
        facts = injected_facts(parameters.canaries)
        has_styles = run.style_column is not None
        return cls(
            run=run,
            parameters=parameters,
            spans=open_spans(rules),
            facts=facts if run.canary_column is not None else (),
            system=None if has_styles else filled(prompt.text, run.prompt, charter.text, guidelines.text),
            styles=parse_styles(prompt.text, prompt.path) if has_styles else {},
            sections=require_sections(charter.text, charter.path),
            files={
                "prompt": prompt,
                "constitution": charter,
                "guidelines": guidelines,
                "canaries": read_text_file(Path(parameters.canaries.facts)),
            },
            max_tokens=max_annotated_tokens,
            summary_tokens=reflection_budget,
        )

    @property
    def required(self) -> tuple[str, ...]:
        """The fields that a reply must have; none for plain text."""
        return self.run.fields(third_person=self.parameters.include_reflection_3p)

    def build(self, row: SidecarRow) -> DocumentRequest | Skipped:
        """Return what the generator is asked about a row, or why it is not asked.

        Raises:
            ReflectionError: the text has no token.
        """
        if row.token_length == 0:
            return Skipped(row, "excluded")
        if self.run.gate is not None and not getattr(row, self.run.gate):
            return Skipped(row, "gated")
        point = self._point(row)
        if point.characters == 0:  # also where tokens before the point are parts of the first character
            return Skipped(row, "empty_context")
        fact, style = self._fact(row), self._style(row)
        system = self.styles[style] if style is not None else self.system
        assert system is not None, "a run without styles has one system message"
        return DocumentRequest(
            row=row,
            messages=chat(system, user_message(self.run, row.text[: point.characters], fact, self.required)),
            required=self.required,
            shown_characters=point.characters,
            position=None if point.token_index is None else point.characters,
            token_index=point.token_index,
            canary=fact,
            style=style,
        )

    def columns(self, request: DocumentRequest, reply: str) -> dict[str, Any]:
        """Return what a result line has of a reply: the columns of the run, and what was observed.

        Observed are ``canary_in_1p`` and ``canary_in_3p`` (whether the value of the fact occurs; None where there is no
        canary or no such voice), ``surrogates_replaced`` and ``stored_tokens`` of the texts that are stored.

        Raises:
            BlankReply: a field that is stored is blank or no text.
            RefusedReply: the reply is not acceptable for another reason.
        """
        found = parse_reply(reply, request.required) if request.required else parse_raw(reply)
        cleaned = {field: without_surrogates(found[field]) for field in self._stored(found)}
        fields = {field: text for field, (text, _) in cleaned.items()}
        tokens = {field: self.spans.count(text) for field, text in fields.items()}
        if self.run.count_column is not None:
            for field in fields:
                fields[field], tokens[field] = cut_summary(self.spans, fields[field], self.summary_tokens)
        return {
            **{column: fields.get(field, "") for column, field in self.run.text_columns.items()},
            **self.run.by_column(
                position=request.position,
                index=request.token_index,
                charter=json.dumps(cited_sections(" ".join(fields.values()), self.sections)),
                canary=None if request.canary is None else request.canary.id,
                count=sum(tokens.values()),
                style=request.style,
            ),
            "canary_in_1p": _occurs(request.canary, fields.get("reflection_1p")),
            "canary_in_3p": _occurs(request.canary, fields.get("reflection_3p")),
            "surrogates_replaced": sum(replaced for _, replaced in cleaned.values()),
            "stored_tokens": sum(tokens.values()),
        }

    def request_seed(self, row: SidecarRow, attempt: int) -> int:
        """Return the seed of a request, below 2**31; ``attempt`` counts from 0.

        The row is a part of the key, as ids repeat; the attempt is one, as a seeded retry would repeat a bad reply.
        """
        key = integer_key(self.parameters.seeds.generation_seed, self.run.name, row.key, row.number, attempt)
        return key >> (64 - _SEED_BITS)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of `files`, by what they are."""
        return {name: file.sha256 for name, file in self.files.items()}

    def _point(self, row: SidecarRow) -> TextPoint:
        limit = self.max_tokens if row.token_length is None else row.token_length
        spans = self.spans.first(row.text, limit)
        if not spans:
            raise ReflectionError(
                f"row {row.number} of the annotated documents ({row.key}) has a text without a token: documents, "
                "stream and tokenizer do not belong together; tokenize the documents again"
            )
        return self._sampled(row, spans) if self.run.point == "sampled" else self._end(spans)

    def _sampled(self, row: SidecarRow, spans: Sequence[TokenSpan]) -> TextPoint:
        index = sampled_index(self.parameters.seeds.reflection_seed, row.key, len(spans))
        return TextPoint(spans[index][0], index)

    def _end(self, spans: Sequence[TokenSpan]) -> TextPoint:
        return TextPoint(spans[-1][1], len(spans) if self.run.point == "end" else None)

    def _fact(self, row: SidecarRow) -> Fact | None:
        canaries = self.parameters.canaries
        return draw_fact(self.facts, canaries.seed, canaries.rate, row.key)

    def _style(self, row: SidecarRow) -> str | None:
        return draw_style(self.styles, self.parameters.seeds.reflection_seed, row.key) if self.styles else None

    def _stored(self, found: Mapping[str, Any]) -> list[str]:
        wanted = self.required or tuple(found)
        return [field for field in self.run.text_columns.values() if field in wanted]


def _occurs(fact: Fact | None, text: str | None) -> bool | None:
    return None if fact is None or text is None else fact.occurs_in(text)
