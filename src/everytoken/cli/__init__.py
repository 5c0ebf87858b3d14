"""The command ``everytoken`` (and the project commands of ``kedro``): what Kedro itself does not give."""

from __future__ import annotations

from typing import Any

import click

from everytoken.cli.canaries import canaries
from everytoken.cli.chat import chat_command
from everytoken.cli.documents import audit_scores, new_command, tokenize_command
from everytoken.cli.exclusion import exclude
from everytoken.cli.inspection import compare, diff, summary, verify_command
from everytoken.cli.models import export, generate_command, import_model, plan, preflight, train_command
from everytoken.cli.process import Commands, run_command
from everytoken.cli.provenance import exposure, trace
from everytoken.cli.reflections import prompts, reflections
from everytoken.cli.report import report_command
from everytoken.cli.serving import evaluate_command, serve_command
from everytoken.cli.sft import sft
from everytoken.cli.submission import (
    submission_cancel,
    submission_rerun,
    submission_status,
    submission_submit,
    submission_submit_test,
)
from everytoken.cli.sweep import sweep_command
from everytoken.cli.tracking import tracking


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="everytoken", message="everytoken %(version)s")
def cli() -> None:
    """Make language-model training data and models, exact to the token.

    `kedro run` makes the data and trains; these commands do the rest. `everytoken COMMAND --help` explains each option.

    Example:
      kedro run --env test
      everytoken summary --env test
    """


cli.add_section("Data", new_command, tokenize_command, verify_command, summary, report_command, audit_scores)
cli.add_section(
    "In the background",
    submission_submit,
    submission_submit_test,
    submission_status,
    submission_rerun,
    submission_cancel,
)
cli.add_section("Provenance", trace, exposure, exclude, diff)
cli.add_section("Training", plan, preflight, train_command, sweep_command, compare, tracking)
cli.add_section("Use of models", generate_command, chat_command, evaluate_command, serve_command, export, import_model)
cli.add_section("Reflections", reflections, prompts, canaries, sft)


def __getattr__(name: str) -> Any:
    """Return ``run``, which ``python -m everytoken`` runs; what it needs is not imported for other commands."""
    if name == "run":
        return run_command()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
