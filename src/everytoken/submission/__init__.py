"""Processes and jobs that go on after the command that started them: submit, submit-test, status, rerun, cancel."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.submission.detached import DetachedFolder, end_detached, start_detached
    from everytoken.submission.errors import SubmissionError
    from everytoken.submission.records import SUBMISSIONS, TRIAL, RunOrder, Submission, TrialRun, submissions_in
    from everytoken.submission.verbs import cancel_run, submission_state, submit_run, wait_for

__getattr__, __dir__ = exports(__name__, __file__)
