"""One check type, one runner of lists of checks, and what every kind of check asks of files."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.checks.check import (
        READ_FAULTS,
        Check,
        Checks,
        Faults,
        Found,
        Mismatch,
        NotMadeError,
        fault_text,
        first_difference,
        made_by,
        require_equal,
        require_none,
        run_checks,
    )
    from everytoken.checks.files import Hashing, require_files, wrong_sizes

__getattr__, __dir__ = exports(__name__, __file__)
