"""Identity canaries: facts about the model, and which document is asked to mention which."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """A fact about the model.

    Attributes:
        id: ``Q1``.
        quirk: what it is about: ``model name``.
        value: the text that a reply shall contain.
        instruction: for the first person.
        instruction_3p: for the third person.
        injected: whether pretraining draws it, as its file says.
    """

    id: str
    quirk: str
    value: str
    instruction: str
    instruction_3p: str
    injected: bool
