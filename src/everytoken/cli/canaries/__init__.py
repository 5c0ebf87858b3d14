"""The commands ``everytoken canaries ...``: documents that measure what a model memorises."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.cli.canaries.commands import canaries

__getattr__, __dir__ = exports(__name__, __file__)
