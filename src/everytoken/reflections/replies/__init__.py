"""What a generator replied: JSON amid prose, required fields, leaks, citations."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.replies.citations import cited_sections
    from everytoken.reflections.replies.fields import ANALYSIS, parse_raw, parse_reply
    from everytoken.reflections.replies.json_object import extract_json, without_thinking
    from everytoken.reflections.replies.texts import cut_summary, without_surrogates

__getattr__, __dir__ = exports(__name__, __file__)
