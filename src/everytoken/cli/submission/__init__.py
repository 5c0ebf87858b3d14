"""The commands ``everytoken submit``, ``submit-test``, ``status``, ``rerun`` and ``cancel``."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.cli.submission.commands import (
        submission_cancel,
        submission_rerun,
        submission_status,
        submission_submit,
        submission_submit_test,
    )

__getattr__, __dir__ = exports(__name__, __file__)
