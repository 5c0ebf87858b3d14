"""What the process of a submission does: ``kedro run`` with the options that were submitted."""

from __future__ import annotations

from dataclasses import dataclass

import click

from everytoken.cli.process import run_command
from everytoken.cli.project import project_folder
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

        bootstrap_project(project_folder())
        redact_output()
        try:
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
