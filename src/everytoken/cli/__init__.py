"""The command ``everytoken`` (and the project commands of ``kedro``): what Kedro itself does not give."""

from __future__ import annotations

from typing import Any

import click

from everytoken.cli.documents import audit_scores, tokenize
from everytoken.cli.exclusion import exclude
from everytoken.cli.inspection import compare, diff, summary, verify
from everytoken.cli.models import export, generate, import_model, plan, train
from everytoken.cli.provenance import exposure, trace
from everytoken.system_errors import explained


class _Commands(click.Group):
    """Commands that end with one line where the operating system refuses something."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that is named."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            cause = error.__cause__ if isinstance(error, click.ClickException) else error
            if cause is None or (told := explained(cause)) is None:
                raise
            raise click.ClickException(told) from error


@click.group(cls=_Commands)
def cli() -> None:
    """Language-model training data and models, exact to the token."""


for command in (
    summary,
    audit_scores,
    tokenize,
    verify,
    plan,
    train,
    generate,
    export,
    import_model,
    compare,
    diff,
    trace,
    exposure,
    exclude,
):
    cli.add_command(command)
