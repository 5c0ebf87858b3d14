"""Checks of stored streams and raw shards against what was written."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.checks.arrays import open_array
    from everytoken.tokens.checks.integrity import STORED_FAULTS, recorded_statistics, require, tokenizers_of, verify
    from everytoken.tokens.checks.raw_shards import sample_tokens
    from everytoken.tokens.checks.stored import Level, find_stored, stored_bytes, whole_ledger
    from everytoken.tokens.checks.streams import check_sample, map_stream
    from everytoken.tokens.checks.windows import Seen, check_ids

__getattr__, __dir__ = exports(__name__, __file__)
