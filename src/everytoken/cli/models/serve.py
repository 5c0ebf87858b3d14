"""The command ``everytoken serve``: a model behind OpenAI's API."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click

from everytoken.cli.models import arithmetic, opens_model, template_option

_TOKEN = "EVERYTOKEN_SERVE_TOKEN"


@click.command("serve")
@opens_model
@template_option
@click.option("--host", default="127.0.0.1", show_default=True, help=f"Another than loopback needs {_TOKEN}.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=2, show_default=True, help="Requests that are answered at a time."
)
@click.option("--queue", type=click.IntRange(0), default=16, show_default=True, help="Requests that may wait.")
@click.option(
    "--max-body-bytes", type=click.IntRange(1), default=4 << 20, show_default=True, help="Bytes of a request."
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=400,
    show_default=True,
    help="Tokens of a reply whose request does not say.",
)
def serve_command(
    model: Path,
    template: Path | None,
    tokenizer: Path | None,
    device: Literal["cpu", "cuda"],
    threads: int | None,
    **options: Any,
) -> None:
    """Serve MODEL: a checkpoint folder, a Hugging Face folder or a GGUF file.

    It speaks the chat and completions API of OpenAI. Clients need the token of the environment variable
    EVERYTOKEN_SERVE_TOKEN, where it is set.

    \b
    everytoken serve data/06_models/finetuned_checkpoint
    curl http://127.0.0.1:8000/v1/models
    """  # noqa: D301
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise click.ClickException(f"{' and '.join(missing)} cannot be imported: pip install 'everytoken[serve]'")
    from everytoken.serving import ServerOptions, open_model, serve

    opened = open_model(model, tokenizer=tokenizer, template=template, device=device)
    serve(
        opened,
        ServerOptions(token=os.environ.get(_TOKEN) or None, threads=arithmetic(threads).threads, **options),
        lambda url: click.echo(f"{opened.name}: {url}/v1"),
    )
