"""Checks of stored streams and raw shards against what was written."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.checks.check import Check, Level, checked, require
    from everytoken.tokens.checks.integrity import find_stored, recorded_statistics, stored_bytes, tokenizers_of, verify
    from everytoken.tokens.checks.streams import check_sample, open_lengths
    from everytoken.tokens.checks.windows import Seen, check_ids, sampled

__getattr__, __dir__ = exports(__name__, __file__)

__all__ = [
    "Check",
    "Level",
    "Seen",
    "check_ids",
    "check_sample",
    "checked",
    "find_stored",
    "open_lengths",
    "recorded_statistics",
    "require",
    "sampled",
    "stored_bytes",
    "tokenizers_of",
    "verify",
]
