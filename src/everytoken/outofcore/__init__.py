"""Ordering on disk: grouping, sorting and shuffling of more rows than fit into memory."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.outofcore.database import open_database
    from everytoken.outofcore.errors import ShuffleError
    from everytoken.outofcore.external_sort import ExternalSort
    from everytoken.outofcore.grouping import Scatter, begins, block_rows, distinct, find_repeats, slices
    from everytoken.outofcore.row_scatter import RowScatter
    from everytoken.outofcore.shuffle import destinations, in_order

__getattr__, __dir__ = exports(__name__, __file__)

__all__ = [
    "ExternalSort",
    "RowScatter",
    "Scatter",
    "ShuffleError",
    "begins",
    "block_rows",
    "destinations",
    "distinct",
    "find_repeats",
    "in_order",
    "open_database",
    "slices",
]
