"""What the configuration of a job names, looked for before its first stage: files, commits, packages, space."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.preflight.ahead import Ahead, BytesAhead
    from everytoken.preflight.checks import preflight_checks

__getattr__, __dir__ = exports(__name__, __file__)
