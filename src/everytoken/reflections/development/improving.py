"""The next version of a prompt: rejected and accepted replies go in, a new prompt comes out, is checked and stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from everytoken.reflections.development.candidates import Candidate, JudgedItem, Trial, try_candidate
from everytoken.reflections.development.places import IMPROVEMENTS
from everytoken.reflections.development.samples import sampled_rows
from everytoken.reflections.development.scores import DIMENSIONS, Judgement
from everytoken.reflections.errors import ReflectionError, RefusedReply
from everytoken.reflections.items import AskedItems, Item, ask_items
from everytoken.reflections.prompts import (
    chat,
    placeholders_of,
    prompt_path,
    prompt_versions,
    read_text_file,
    require_placeholders,
    write_version,
)
from everytoken.reflections.replies import parse_reply, without_surrogates, without_thinking

_REQUEST = "improve.md"
_PLACEHOLDERS = "{placeholders}"
_PROMPT = re.compile(r"<prompt>(.*?)</prompt>", re.DOTALL)
_SHOWN = 2000  # characters of a passage, the last ones before the point

EVAL = "eval"
"""The sample that versions are compared on; no improvement sees its rows."""


@dataclass(frozen=True)
class Improvement:
    """What a request for a better version gave.

    Attributes:
        trial: of the version that was improved.
        rejected, accepted: how many replies of each the request shows.
        version: of the new prompt; None: no reply could be used.
    """

    trial: Trial
    rejected: int
    accepted: int
    asked: AskedItems
    version: str | None
    path: Path | None


def improve_prompt(candidate: Candidate) -> Improvement:
    """Try a version on rows that versions are not compared on, ask for a better one, and write it.

    The same version is improved once: its replies are stored.

    Raises:
        GeneratorError: generator or judge cannot answer.
        ReflectionError: no reply was judged, or the request cannot be made.
    """
    purpose = f"improve_{candidate.version}"
    given, plan = candidate.development, candidate.plan
    compared = {row.number for row in sampled_rows(plan, candidate.builder, given.items, given.seed, EVAL)}
    rows = sampled_rows(plan, candidate.builder, given.items, given.seed, purpose, compared)
    trial = try_candidate(candidate, rows, purpose)
    if not trial.judged:
        raise ReflectionError(
            f"nothing to improve {candidate.name} by: of {len(rows):,} rows {len(trial.generating.replies):,} have a "
            f"reply, and none has scores ({_told(trial.judging)}). Use a judge that writes JSON "
            "(reflection.development.judge)"
        )
    rejected, accepted = shown_items(trial)
    asked = ask_items(
        candidate.folder / IMPROVEMENTS / candidate.name,
        [Item(candidate.name, _messages(candidate, rejected, accepted))],
        candidate.judge,
        lambda item, reply: read_improved(reply, candidate),
        name=f"improve {plan.name} {candidate.name}",
        seed=given.seed,
        max_attempts=given.judging_attempts,
        locked_values={},
    )
    if not asked.replies:
        return Improvement(trial, len(rejected), len(accepted), asked, None, None)
    version, path = _write(candidate, read_improved(asked.replies[candidate.name], candidate))
    return Improvement(trial, len(rejected), len(accepted), asked, version, path)


def shown_items(trial: Trial) -> tuple[list[JudgedItem], list[JudgedItem]]:
    """Return rejected replies, the worst first, and accepted ones, the best first: ``examples`` of each at most."""
    given = trial.candidate.development
    ranked = sorted(trial.judged.items(), key=lambda one: (one[1].aggregate, one[0]))
    rejected = [trial.items[number] for number, one in ranked if not one.is_accepted(given)]
    accepted = [trial.items[number] for number, one in reversed(ranked) if one.is_accepted(given)]
    return rejected[: given.examples], accepted[: given.examples]


def read_improved(reply: str, candidate: Candidate) -> str:
    """Return the prompt in a reply, the last one between ``<prompt>`` and ``</prompt>``.

    Raises:
        RefusedReply: there is none, it lacks a placeholder or has one twice, or it is the old prompt.
    """
    found = _PROMPT.findall(without_thinking(reply))
    if not found:
        raise RefusedReply("the reply has no prompt between <prompt> and </prompt>")
    text = without_surrogates(found[-1])[0].strip() + "\n"
    try:
        require_placeholders(text, candidate.kind)
    except ReflectionError as error:
        raise RefusedReply(str(error)) from None
    if text.strip() == candidate.builder.files["prompt"].text.strip():
        raise RefusedReply("the prompt is the old one")
    return text


def _write(candidate: Candidate, text: str) -> tuple[str, Path]:
    """Write the next version; one that has the text already is kept."""
    parameters = candidate.plan.parameters
    files, kind, alias = parameters.prompts, candidate.kind, parameters.generator.alias
    versions = prompt_versions(files, kind, alias)
    for version in versions:
        path = prompt_path(files, kind, alias, version)
        if path.read_text(encoding="utf-8") == text:
            return version, path
    version = f"v{int(versions[-1][1:]) + 1}"
    return version, write_version(files, kind, alias, version, text)


def _messages(
    candidate: Candidate, rejected: Sequence[JudgedItem], accepted: Sequence[JudgedItem]
) -> tuple[dict[str, str], ...]:
    request = read_text_file(Path(candidate.development.templates) / _REQUEST)
    if _PLACEHOLDERS not in request.text:
        raise ReflectionError(f"{request.path} lacks {_PLACEHOLDERS}: it tells which placeholders the new prompt needs")
    system = request.text.replace(_PLACEHOLDERS, ", ".join(placeholders_of(candidate.kind)))
    sections = [f"# Prompt\n\n<prompt>\n{candidate.builder.files['prompt'].text.strip()}\n</prompt>"]
    sections += _examples("Rejected", rejected)
    sections += _examples("Accepted", accepted)
    sections.append("# Task\n\nWrite the next version of the prompt between <prompt> and </prompt>.")
    return tuple(dict(message) for message in chat(system, "\n\n".join(sections)))


def _examples(title: str, items: Sequence[JudgedItem]) -> Iterator[str]:
    if not items:
        yield f"# {title}\n\nNone."
    for number, one in enumerate(items, 1):
        shown = one.request.row.text[max(0, one.request.shown_characters - _SHOWN) : one.request.shown_characters]
        assert one.reply is not None and one.judgement is not None, "what is shown was judged"
        fields = parse_reply(one.reply, one.request.required)
        voices = [_voice(name, fields[name], one.judgement) for name in one.judgement.scores]
        yield f"# {title} {number}\n\n## Passage\n\n{shown}\n\n" + "\n\n".join(voices)


def _voice(name: str, text: str, judgement: Judgement) -> str:
    scores = ", ".join(f"{one} {score}" for one, score in zip(DIMENSIONS, judgement.scores[name], strict=True))
    return f"## {name}\n\n{text}\n\nScores: {scores}. Grounds: {judgement.reasoning[name]}"


def _told(asked: AskedItems) -> str:
    api, parse = asked.failures["api"], asked.failures["parse"]
    return f"{asked.attempts:,} questions to the judge: {api:,} failed, {parse:,} replies were refused"
