"""Personal data in texts that has a form: e-mail and IP addresses, telephone numbers, IBANs.

===========  ==================================================================================================
email        local part of at most 64 ASCII characters, ``@``, a host of labels with a last one of letters
iban         a country of ISO 13616's registry, two check digits and as many characters as it has, with single
             spaces or none, whose remainder by 97 is 1 (ISO 7064)
ip           IPv4 in four decimal numbers up to 255; IPv6 of at least three groups that are written
phone        ``+`` or ``00``, a country code, and 8 to 15 digits in all (E.164), with single spaces, dots, dashes,
             slashes or brackets between them; or a number of North America, as (212) 555-0142
===========  ==================================================================================================

Names, postal addresses and numbers in a national form of another country are not found. A version number of four
parts is found as an IP address. Only ASCII digits count, so that the rule is the same in every version of Python.
Where two overlap, the one that begins first counts; of one beginning the first in the table.
"""

from __future__ import annotations

import ipaddress
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

PersonalDataKind = Literal["email", "iban", "ip", "phone"]
PERSONAL_DATA_KINDS: tuple[PersonalDataKind, ...] = ("email", "iban", "ip", "phone")


class PersonalDataRule(BaseModel):
    """What is done about personal data in the documents of a source.

    Attributes:
        version: of the patterns of this module; another one finds other texts.
        rule: ``count`` counts it only; ``mask`` writes ``[email]``, ``[iban]``, ``[ip]`` or ``[phone]`` in its place;
            ``drop`` sets the document aside as ``personal_data``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1]
    rule: Literal["count", "mask", "drop"]
    kinds: Annotated[tuple[PersonalDataKind, ...], Field(min_length=1)] = PERSONAL_DATA_KINDS


class PersonalDatum(NamedTuple):
    """One of them: the half-open range of its code points."""

    kind: PersonalDataKind
    first: int
    end: int


def find_personal_data(text: str, kinds: Sequence[PersonalDataKind]) -> list[PersonalDatum]:
    """Return what of these kinds is in a text, in order, without overlaps; time is linear in the text."""
    candidates = sorted(
        (first, PERSONAL_DATA_KINDS.index(kind), end, kind) for kind in kinds for first, end in _FINDERS[kind](text)
    )
    found: list[PersonalDatum] = []
    for first, _, end, kind in candidates:
        if not found or first >= found[-1].end:
            found.append(PersonalDatum(kind, first, end))
    return found


def masked_text(text: str, found: Sequence[PersonalDatum]) -> str:
    """Return a text with the name of the kind in brackets in the place of each."""
    pieces, at = [], 0
    for kind, first, end in found:
        pieces += [text[at:first], f"[{kind}]"]
        at = end
    return "".join([*pieces, text[at:]])


def masked_spans(spans: Sequence[tuple[int, int]], found: Sequence[PersonalDatum]) -> tuple[tuple[int, int], ...]:
    """Return where ranges of code points are in the text that `masked_text` returns.

    A border inside of a masked piece moves to the beginning of what stands for it.
    """
    firsts, moved, shift = [one.first for one in found], [0], 0
    for kind, first, end in found:
        shift += len(f"[{kind}]") - (end - first)
        moved.append(shift)

    def place(at: int) -> int:
        before = bisect_right(firsts, at - 1)  # how many begin before it
        if before and at < found[before - 1].end:
            return found[before - 1].first + moved[before - 1]
        return at + moved[before]

    return tuple((place(first), place(end)) for first, end in spans)


_EMAIL = re.compile(
    r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}"
    r"(?![A-Za-z0-9-])"
)
_IPV4 = re.compile(
    r"(?<![0-9.])(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
    r"(?!\.?[0-9])"
)
_IPV6 = re.compile(r"(?<![A-Za-z0-9_:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![A-Za-z0-9_:])")
_INTERNATIONAL = re.compile(r"(?<![A-Za-z0-9_+])(?:\+|(?<![0-9] )00)[1-9](?:[ ./()-]{0,2}[0-9]){7,14}(?![0-9])")
_NORTH_AMERICAN = re.compile(
    r"(?<![A-Za-z0-9_+.-])(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[ .-][0-9]{4}(?![A-Za-z0-9_-])"
)
_LEAST_GROUPS = 3  # of an IPv6 address that are written; fewer are often code, as in a::b
_IBANS = {  # characters by country, by the registry of ISO 13616
    country: re.compile(rf"[A-Z]{{2}}[0-9]{{2}}(?: ?[A-Z0-9]){{{length - 4}}}(?![A-Za-z0-9])")
    for length, countries in {
        15: "NO", 16: "BE", 18: "DK FI FK FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV", 22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG", 25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB NI PL SV", 29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}  # fmt: skip
_IBAN_HEAD = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_IBANS)})(?=[0-9]{{2}})")


def _emails(text: str) -> Iterator[tuple[int, int]]:
    if "@" in text:
        yield from (found.span() for found in _EMAIL.finditer(text))


def _ibans(text: str) -> Iterator[tuple[int, int]]:
    for head in _IBAN_HEAD.finditer(text):
        written = _IBANS[head.group()].match(text, head.start())
        if written and _remainder(written.group().replace(" ", "")) == 1:
            yield written.span()


def _remainder(iban: str) -> int:
    """Return the remainder by 97 of an IBAN whose letters are numbers from 10 on and whose head is its end."""
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97


def _ips(text: str) -> Iterator[tuple[int, int]]:
    yield from (found.span() for found in _IPV4.finditer(text))
    if "::" in text or text.count(":") >= 7:
        for found in _IPV6.finditer(text):
            if sum(map(bool, found.group().split(":"))) >= _LEAST_GROUPS and _is_ipv6(found.group()):
                yield found.span()


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _phones(text: str) -> Iterator[tuple[int, int]]:
    yield from (found.span() for found in _INTERNATIONAL.finditer(text))
    yield from (found.span() for found in _NORTH_AMERICAN.finditer(text))


_FINDERS = {"email": _emails, "iban": _ibans, "ip": _ips, "phone": _phones}
