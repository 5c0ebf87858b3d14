"""Exact and near duplicates."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.corpus.dedup.duplicates import DedupRules, Duplicates, between, find_duplicates, load_mapped
    from everytoken.corpus.dedup.near_duplicates import NearRules, buckets_of, find_buckets

__getattr__, __dir__ = exports(__name__, __file__)
