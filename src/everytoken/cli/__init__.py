"""The command ``everytoken`` (and the project commands of ``kedro``): what Kedro itself does not give."""

from __future__ import annotations

from typing import Any

import click

from everytoken.cli.documents import audit_scores, tokenize
from everytoken.cli.exclusion import exclude
from everytoken.cli.inspection import compare, diff, summary, verify
from everytoken.cli.models import export, generate, import_model, plan, train
from everytoken.cli.provenance import exposure, trace
from everytoken.redacted_output import redact_output
from everytoken.urls import redacted


class _Commands(click.Group):
    """Commands whose messages show no secret, whatever library said them."""

    def invoke(self, ctx: click.Context) -> Any:
        redact_output()
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = redacted(error.message)  # type: ignore[misc]  # each kind of it says more than its message
            raise


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
