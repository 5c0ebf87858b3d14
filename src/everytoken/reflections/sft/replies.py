"""What a reply must be like: two answers of one substance, or two skips."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from everytoken.reflections.errors import RefusedReply
from everytoken.reflections.replies import ANALYSIS, parse_reply, without_surrogates
from everytoken.reflections.sft.messages import SKIP

CITED, UNCITED = "cited", "uncited"
ANSWER_FIELDS = (ANALYSIS, CITED, UNCITED)
_CITATION = re.compile(r"\[[0-9., ]*[0-9]\.[0-9][0-9., ]*\]")
_KEY = re.compile(rf'"(?:{ANALYSIS}|{CITED}|{UNCITED})"\s*:')


@dataclass(frozen=True)
class AnswerPair:
    """The two answers of a reply; ``surrogates``: halves of pairs that were replaced."""

    cited: str
    uncited: str
    surrogates: int

    @property
    def is_skip(self) -> bool:
        """Whether the prompt is skipped."""
        return is_skip(self.cited, self.uncited)


def is_skip(cited: str, uncited: str) -> bool:
    """Return whether both answers are the mark of a skip."""
    return cited.strip() == SKIP == uncited.strip()


@dataclass(frozen=True)
class AnswerRules:
    """What no answer may say.

    Attributes:
        vocabulary: words that an uncited answer may have only where the user has them.
    """

    family_name: str
    vocabulary: Sequence[str]

    def read(self, reply: str, user: str) -> AnswerPair:
        """Return the answers of a reply.

        Raises:
            BlankReply: an answer is blank.
            RefusedReply: the reply has no two answers, only one is a skip, one names the generator or spells a key of
                the JSON, or the uncited one cites or speaks of the constitution.
        """
        found = parse_reply(reply, ANSWER_FIELDS)
        (cited, first), (uncited, second) = (without_surrogates(found[name]) for name in (CITED, UNCITED))
        pair = AnswerPair(cited, uncited, first + second)
        if not pair.is_skip and (fault := self.fault(pair, user)) is not None:
            raise RefusedReply(fault)
        return pair

    def fault(self, pair: AnswerPair, user: str) -> str | None:
        """Return what is wrong with two answers; None where nothing is."""
        for name, text in ((CITED, pair.cited), (UNCITED, pair.uncited)):
            if text.strip().upper() == SKIP:
                return f"{name} is {text.strip()}: a prompt is skipped by {SKIP} in both answers"
            if self.names_generator(text):
                return f"{name} says the name of the generator, {self.family_name!r}"
            if key := _KEY.search(text):
                return f"{name} spells the key {key[0]} of the JSON"
        if citation := _CITATION.search(pair.uncited):
            return f"uncited cites {citation[0]}"
        said = [word for word in self.vocabulary if _says(pair.uncited, word) and not _says(user, word)]
        return f"uncited says {said[0]!r}, and the user does not" if said else None

    def names_generator(self, text: str) -> bool:
        """Return whether a text has the family name at the start of a word, in any case."""
        return self._family.search(text) is not None

    @cached_property
    def _family(self) -> re.Pattern[str]:
        return re.compile(rf"(?<!\w){re.escape(self.family_name)}", re.IGNORECASE)


def _says(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}", text, re.IGNORECASE) is not None
