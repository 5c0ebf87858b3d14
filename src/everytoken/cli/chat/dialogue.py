"""A conversation with a model, in a terminal or a pipe."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from everytoken.generation import GenerationParameters

if TYPE_CHECKING:
    from everytoken.generation import Conversation, Message, OpenedModel, Reply

_FORMAT = "everytoken-conversation/1"


class _Read(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _SavedModel(_Read):
    name: str
    sha256: str


class _SavedMessage(_Read):
    role: Literal["system", "user", "assistant"]
    content: str


class _Saved(_Read):
    """What ``/save`` writes."""

    format: Literal["everytoken-conversation/1"]
    model: _SavedModel
    parameters: GenerationParameters
    attempts: int = Field(ge=0)
    messages: list[_SavedMessage]
    state_sha256: str | None = None  # of the file with the state that read them; None: they are read again


class _Stop(Exception):
    """The user wants no more."""


class Dialogue:
    """Messages and commands, line by line, and the replies of the model."""

    def __init__(self, opened: OpenedModel, conversation: Conversation) -> None:
        self._opened, self._chat = opened, conversation
        self._is_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._commands: dict[str, tuple[str, Callable[[str], None]]] = {
            "/reset": ("forget what was said", self._reset),
            "/retry": ("answer the last message again, otherwise", lambda _: self._show(self._chat.retry())),
            "/edit": ("[TURN] TEXT: say TEXT in the last turn, or in another one", self._edit),
            "/save": ("FILE: write the conversation", self._save),
            "/load": ("FILE: go on with a saved conversation", self._load),
            "/seed": ("NUMBER: the seed of the next replies", self._seed),
            "/system": ("[TEXT]: what the system says first, or nothing", self._system),
            "/help": ("list the commands", self._help),
            "/quit": ("leave; so does the end of the input", self._quit),
        }

    def run(self) -> bool:
        """Answer until there is no more input; return whether a line could not be followed."""
        from everytoken.generation import GenerationError

        self._note(f"{self._opened.name}: /help lists the commands, /quit leaves")
        failed = False
        for line in self._lines():
            try:
                self._follow(line)
            except _Stop:
                break
            except BrokenPipeError:  # nobody reads on
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                break
            except (GenerationError, click.UsageError, OSError, ValueError) as error:
                click.echo(f"error: {error}", err=True)
                failed = True
            except KeyboardInterrupt:
                if not self._is_terminal:
                    raise
                click.echo("\n[stopped]", err=True)
        return failed and not self._is_terminal

    def _lines(self) -> Iterator[bytes]:
        while True:
            if self._is_terminal:
                try:
                    yield input("> ").encode(errors="surrogateescape")
                except (EOFError, KeyboardInterrupt):
                    click.echo(err=True)
                    return
            elif sys.stdin is not None and (line := sys.stdin.buffer.readline()):
                yield line
            else:
                return

    def _follow(self, given: bytes) -> None:
        try:
            line = given.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise click.UsageError(
                f"the line is not UTF-8 (byte {error.start + 1}: 0x{given[error.start]:02x})"
            ) from error
        if not line.strip():
            return
        name, _, rest = line.partition(" ")
        if not line.startswith("/") or line.startswith("//"):
            self._show(self._chat.say(line.removeprefix("/") if line.startswith("//") else line))
        elif name in self._commands:
            self._commands[name][1](rest.strip())
        else:
            raise click.UsageError(
                f"{name} is no command; /help lists them. A message that begins with / begins with //"
            )

    def _show(self, speaking: Iterator[str]) -> None:
        started, shown = time.perf_counter(), False
        while True:
            try:
                piece = next(speaking)
            except StopIteration as ended:
                reply: Reply = ended.value
                break
            piece = piece if shown else piece.lstrip(" ")
            shown = shown or bool(piece)
            click.echo(piece, nl=False)
        click.echo()
        if self._chat.left_out:
            click.echo(f"[the context is full: the oldest {self._chat.left_out} messages were left out]", err=True)
        rate = len(reply.tokens) / (time.perf_counter() - started)
        loops = "" if reply.loops is None else f"{reply.loops:.2f} loops a token, "
        self._note(f"[{len(reply.tokens)} tokens, {rate:.1f} a second, {loops}ended by {reply.finish}]", bool(loops))

    def _note(self, text: str, always: bool = False) -> None:
        if self._is_terminal or always:
            click.echo(text, err=True)

    def _reset(self, _: str) -> None:
        system = self._chat.system
        self._chat.messages, self._chat.attempts = [], 0
        self._chat.system = system

    def _edit(self, rest: str) -> None:
        first, _, text = rest.partition(" ")
        turn, text = (int(first), text) if first.isdecimal() else (None, rest)
        if not text:
            raise click.UsageError("/edit needs a text: /edit TEXT, or /edit TURN TEXT")
        self._show(self._chat.edit(text, turn))

    def _seed(self, rest: str) -> None:
        if not rest.isdecimal():
            raise click.UsageError(f"/seed needs a whole number of 0 or more, found {rest!r}")
        self._chat.parameters = self._chat.parameters.model_copy(update={"seed": int(rest)})

    def _system(self, rest: str) -> None:
        self._chat.system = rest or None

    def _help(self, _: str) -> None:
        click.echo("\n".join(f"{name:<8} {what}" for name, (what, _) in self._commands.items()), err=True)

    def _quit(self, _: str) -> None:
        raise _Stop

    def _save(self, rest: str) -> None:
        from everytoken.generation import save_state
        from everytoken.shards import file_sha256, write_text
        from everytoken.training.checkpoints import parameters_sha256

        if not rest:
            raise click.UsageError("/save needs the name of a file")
        if not Path(rest).absolute().parent.is_dir():
            raise click.UsageError(f"/save: there is no folder {Path(rest).parent}")
        path, model_sha256 = _state_file(rest), parameters_sha256(self._opened.model)
        read = save_state(path, self._chat.reader, self._chat.last_prompt, model_sha256)
        content = {
            "format": _FORMAT,
            "model": {"name": self._opened.name, "sha256": model_sha256},
            "parameters": self._chat.parameters.model_dump(mode="json"),
            "attempts": self._chat.attempts,
            "messages": list(self._chat.messages),
            **({"state_sha256": file_sha256(path)} if read else {}),
        }
        write_text(Path(rest), json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        self._count(rest, read)

    def _load(self, rest: str) -> None:
        from everytoken.training.checkpoints import parameters_sha256

        if not rest:
            raise click.UsageError("/load needs the name of a file")
        try:
            saved = _Saved.model_validate_json(Path(rest).read_bytes())
        except ValidationError as error:
            raise click.UsageError(f"{rest} holds no conversation that /save wrote: {first_fault(error)}") from error
        model_sha256 = parameters_sha256(self._opened.model)
        messages: list[Message] = [one.model_dump() for one in saved.messages]
        read = 0
        if saved.state_sha256 is not None:
            read = self._resume(_state_file(rest), saved.state_sha256, messages, model_sha256)
        if saved.model.sha256 != model_sha256:
            click.echo(f"[it was with another model, {saved.model.name}]", err=True)
        self._chat.parameters, self._chat.attempts, self._chat.messages = saved.parameters, saved.attempts, messages
        self._count(rest, read)

    def _resume(self, path: Path, sha256: str, messages: list[Message], model_sha256: str) -> int:
        """Let the model resume from the state next to a conversation; return how many tokens it need not read."""
        from everytoken.generation import GenerationError, load_state
        from everytoken.shards import file_sha256

        if not path.is_file():
            click.echo(f"[{path} is missing: the conversation will be read again]", err=True)
            return 0
        prompt = replace(self._chat, messages=messages).last_prompt
        if file_sha256(path) != sha256:
            raise GenerationError(
                f"{path} is not the file that was saved with the conversation: delete it, and the conversation is read "
                "again"
            )
        return load_state(path, self._chat.reader, prompt, model_sha256)

    def _count(self, file: str, read: int) -> None:
        state = f", and the state after {read} tokens" if read else ""
        click.echo(f"[{file}: {len(self._chat.messages)} messages{state}]", err=True)


def _state_file(conversation: str) -> Path:
    """Return where the state of a conversation is kept: next to it."""
    return Path(f"{conversation}.state.safetensors")


def first_fault(error: ValidationError) -> str:
    """Return the first fault of a validation: where, and what."""
    fault = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"])))
