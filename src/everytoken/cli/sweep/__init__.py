"""The job of an environment over a grid of parameters: what the grid does not change is made once."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.cli.sweep.command import sweep_command

__getattr__, __dir__ = exports(__name__, __file__)
