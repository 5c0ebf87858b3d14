"""Processes and jobs that go on after the command that started them: submit, status, rerun, cancel."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.submission.detached import DetachedFolder, end_detached, start_detached, work_in

__getattr__, __dir__ = exports(__name__, __file__)
