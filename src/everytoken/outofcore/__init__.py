"""Ordering on disk: grouping, sorting and shuffling of more rows than fit into memory."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.outofcore.database import open_database
    from everytoken.outofcore.errors import ShuffleError
    from everytoken.outofcore.external_sort import ExternalSort
    from everytoken.outofcore.grouping import begins, distinct, find_repeats
    from everytoken.outofcore.row_places import Bucket, RowPlaces, plan_places
    from everytoken.outofcore.shuffle import destinations, in_order

__getattr__, __dir__ = exports(__name__, __file__)
