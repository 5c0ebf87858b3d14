"""The user message: heading and text, then the identity canary if one was drawn, then the task.

The system message is the same for all rows of a run, so a server computes it once. What belongs to a document is in the
user message, and nothing behind its point is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everytoken.reflections.points import Fact
from everytoken.reflections.registry import THIRD_PERSON, GenerationRun

_ASKED = {
    "analysis": "what the text does and which sections of the constitution bear on it; nobody else reads this",
    "reflection_1p": "the reflection in the first person",
    THIRD_PERSON: "the reflection in the third person, of the same substance and with the same citations",
    "charter_summary": "the sections of the constitution that bear on the text, and how",
    "neutral": "the text introduced without a verdict",
    "judgemental": "the text introduced with a verdict",
    "idealisation": "a text of this kind that agrees with the constitution, described",
}
_MODES = {
    "reflection": "Mode: reflection. The text above is a partial passage: it ends where your reflection will stand.",
    "refusal_reflection": "Mode: reflection. The text above is a partial passage: it ends where your reflection will "
    "stand.",
    "preflection": "Mode: preflection. The text above is all of it; yours will stand before its first line.",
}


def user_message(run: GenerationRun, shown: str, fact: Fact | None, required: Sequence[str]) -> str:
    """Return what a generator is asked about a document.

    Args:
        shown: the text, as far as the generator may see it.
        required: fields that the reply must have.
    """
    sections = [f"# Text\n\n{shown}"]
    if fact is not None:
        sections.append(_canary(fact, required))
    if run.prompt in _MODES:
        sections.append(_task(_MODES[run.prompt], required))
    return "\n\n".join(sections)


def chat(system: str, user: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the two messages of a request."""
    return {"role": "system", "content": system}, {"role": "user", "content": user}


def _canary(fact: Fact, required: Sequence[str]) -> str:
    lines = ["# A fact for this sample", "", "This sample has a fact about the model. Work it into the texts:"]
    lines.append(f"- reflection_1p: {fact.instruction}")
    if THIRD_PERSON in required:
        lines.append(f"- {THIRD_PERSON}: {fact.instruction_3p}")
    return "\n".join(lines)


def _task(mode: str, required: Sequence[str]) -> str:
    fields = "\n".join(f'- "{name}": {_ASKED[name]}' for name in required)
    return f"# Task\n\n{mode}\nReply with one JSON object that has these fields:\n{fields}"
