"""What the process of a submission does: ``kedro run`` with the options that were submitted; of a trial, elsewhere."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import click

from everytoken.cli.process import run_command
from everytoken.cli.project import project_folder
from everytoken.cli.submission.trial import empty_trial_folder
from everytoken.redaction import redact_output
from everytoken.submission import RunOrder, Submission


@dataclass(frozen=True)
class SubmittedRun:
    """Runs it, and notes how it ended."""

    submission: Submission
    order: RunOrder

    def __call__(self) -> None:
        """Run it in this process, which runs nothing else.

        Raises:
            SystemExit: it ended early.
        """
        from kedro.framework.startup import bootstrap_project

        from everytoken.configuration import ResultsPlace, results_in

        bootstrap_project(project_folder())
        redact_output()
        trial = self.order.trial
        try:
            with nullcontext() if trial is None else results_in(ResultsPlace(trial.data, {"submit_test": "yes"})):
                run_command().main(args=self.order.arguments, prog_name="kedro run", standalone_mode=False)
        except click.ClickException as error:
            error.show()
            self.submission.fail(error.format_message())
            raise SystemExit(error.exit_code) from None
        except SystemExit as error:
            if error.code:
                self.submission.fail(f"exit code {error.code}")
            raise
        self.submission.done.touch()


def tried_run(submission: Submission, order: RunOrder) -> SubmittedRun:
    """Return what runs a trial, in an empty data folder."""
    empty_trial_folder(submission, order)
    return SubmittedRun(submission, order)
