"""The commands ``everytoken sft ...``: post-training data."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.cli.sft.command import sft

__getattr__, __dir__ = exports(__name__, __file__)
