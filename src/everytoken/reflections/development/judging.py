"""What a judge is asked about a reply: the text that the writer saw, each voice under its name, the form of scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from everytoken.reflections.development.scores import DIMENSIONS
from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.points import Fact
from everytoken.reflections.prompts import CHARTER, DocumentRequest, TextFile, chat
from everytoken.reflections.registry import GenerationRun
from everytoken.reflections.replies import ANALYSIS, parse_reply


def judged_voices(run: GenerationRun, required: Sequence[str]) -> tuple[str, ...]:
    """Return the fields of a reply that are judged: those that are stored.

    Raises:
        ReflectionError: the replies of the run are not written by a constitution.
    """
    if run.charter_column is None:
        raise ReflectionError(
            f"the run {run.name} has no constitution, so nothing is judged by one. Choose a run with the column "
            "charter_...: reflections, reflection_end, refusal_reflection, preflections"
        )
    return tuple(name for name in required if name != ANALYSIS)


def judge_system(rubric: TextFile, charter: TextFile) -> str:
    """Return the system message of a judge, the same for all items.

    Raises:
        ReflectionError: the rubric has no place for the constitution, or lacks a dimension.
    """
    for name in (CHARTER, *DIMENSIONS):
        if name not in rubric.text:
            raise ReflectionError(f"{rubric.path} lacks {name}: a rubric has it")
    return rubric.text.replace(CHARTER, charter.text)


def judge_messages(
    system: str, request: DocumentRequest, reply: str, voices: Sequence[str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return what a judge is asked about a reply."""
    found = parse_reply(reply, request.required)
    sections = [f"# Passage\n\n{request.row.text[: request.shown_characters]}"]
    sections += [f"# Text {voice}\n\n{found[voice]}" for voice in voices]
    if request.canary is not None:
        sections.append(_canary_notice(request.canary))
    sections.append(_form(voices))
    return chat(system, "\n\n".join(sections))


def _canary_notice(fact: Fact) -> str:
    return (
        f"# Notice\n\nThe writer was told to mention that the {fact.quirk} of the model is {fact.value}. Do not mark a "
        "text down for that."
    )


def _form(voices: Sequence[str]) -> str:
    one = {"scores": dict.fromkeys(DIMENSIONS, "1 to 5"), "reasoning": "one or two sentences"}
    form = json.dumps(dict.fromkeys(voices, one), indent=1).replace('"1 to 5"', "<1 to 5>")
    return f"# Task\n\nReply with one JSON object of this form:\n{form}"
