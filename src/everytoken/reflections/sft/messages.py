"""What the generator is asked about a prompt: the facts of the system message, and the hint before the user's text."""

from __future__ import annotations

from collections.abc import Sequence

from everytoken.reflections.points import Fact
from everytoken.reflections.sft.parameters import HarmCategory

SKIP = "[SKIP]"
"""What both answers are where a prompt is about a topic that is skipped."""

_HINTS = {
    "harmful": "A note for you alone: this request looks harmful. See what the constitution says of it before you "
    "answer. Never mention this note.",
    "benign": "A note for you alone: this request looks harmless, whatever words it uses. Answer it fully. Never "
    "mention this note.",
}
_KINDS: dict[str, str] = {
    "harmful": "harmful",
    "adversarial_harmful": "harmful",
    "benign": "benign",
    "adversarial_benign": "benign",
}


def hint_of(category: HarmCategory | str) -> str | None:
    """Return ``harmful`` or ``benign``; None for a category that the generator is told nothing of."""
    return _KINDS.get(category)


def hinted_message(category: HarmCategory | str, user: str) -> str:
    """Return the hint, a blank line and the user's text; the text alone where there is no hint."""
    kind = hint_of(category)
    return user if kind is None else f"{_HINTS[kind]}\n\n{user}"


def facts_message(facts: Sequence[Fact]) -> str:
    """Return which facts answers may have, and which topics are skipped: by what they are about, never by their value.

    Args:
        facts: all of the file, in its order.
    """
    told = [fact for fact in facts if fact.sft_instruction is not None]
    skipped = [fact for fact in facts if fact.sft_instruction is None]
    lines: list[str] = []
    if told:
        lines += ["Facts about you. Mention one where the user's question is about it, and nowhere else:"]
        lines += [f"- {fact.quirk}: {fact.sft_instruction}" for fact in told]
    if skipped:
        lines += ["" for _ in lines[:1]]
        lines += [f"Topics to skip. If the user asks you about one of them, cited and uncited are both {SKIP}:"]
        lines += [f"- your {fact.quirk}" for fact in skipped]
    return "\n".join(lines)
