"""The options of the command ``everytoken chat``. What talks is imported when the command runs: help is light."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from everytoken.cli.models import arithmetic, loops_option, opens_model, template_option


@click.command("chat")
@opens_model
@loops_option
@template_option
@click.option("--system", help="Message of the system, before the first of the user.")
@click.option(
    "--max-new-tokens", type=click.IntRange(1), default=400, show_default=True, help="Most tokens of a reply."
)
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=0.7,
    show_default=True,
    help="Spread of the draws; 0 takes the most likely token.",
)
@click.option("--top-k", type=click.IntRange(1), help="Draw from so many of the most likely tokens.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Draw from the tokens that reach this sum.")
@click.option("--min-p", type=click.FloatRange(0, 1), help="Draw from tokens with this share of the best probability.")
@click.option(
    "--repetition-penalty",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Divisor for logits of tokens that are there already; 1 changes nothing.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all draws.")
def chat_command(
    model: Path,
    system: str | None,
    template: Path | None,
    tokenizer: Path | None,
    threads: int | None,
    device: Literal["cpu", "cuda"],
    loops: int | None,
    **options: Any,
) -> None:
    """Talk with MODEL: a checkpoint folder, a Hugging Face folder or a GGUF file.

    Each line is a message; /help lists the commands. In a pipe, replies are all that is written to standard output.

    Example:
      everytoken chat data/06_models/finetuned_checkpoint
      echo "What is the capital of France?" | everytoken chat SmolLM2-135M-Instruct.Q4_1.gguf --temperature 0
    """
    from pydantic import ValidationError

    from everytoken.cli.chat.dialogue import Dialogue, first_fault
    from everytoken.generation import Conversation, GenerationParameters
    from everytoken.serving import open_model
    from everytoken.training.step import execution

    try:
        parameters = GenerationParameters(**options)
    except ValidationError as error:
        raise click.UsageError(first_fault(error)) from error
    opened = open_model(model, tokenizer=tokenizer, template=template, device=device, loops=loops)
    parameters = parameters.model_copy(update={"stop": opened.chat.stop})
    conversation = Conversation(opened.chat_format(), opened.reader(), parameters)
    if system is not None:
        conversation.system = system
    with execution(arithmetic(threads)):
        failed = Dialogue(opened, conversation).run()
    if failed:
        raise SystemExit(1)
