"""What a run left, on one page: a card, and a report that begins with it."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.cli.report.command import report_command, report_files

__getattr__, __dir__ = exports(__name__, __file__)
