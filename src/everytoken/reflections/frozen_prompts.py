"""A frozen prompt: a record that fixes who writes and what is asked, by digest; a run that names it keeps to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.generators import model_of_generator
from everytoken.reflections.parameters import EmbeddedGenerator
from everytoken.reflections.prompts import RequestBuilder
from everytoken.shards import plain_json, write_text

_FORMAT = "everytoken-frozen-prompt/1"
_FIXED_FILES = ("prompt", "constitution", "guidelines")


def freeze_prompt(path: Path, builder: RequestBuilder) -> dict[str, Any]:
    """Write the record of a prompt and its generator; return it. One that exists with the same content stays.

    Raises:
        ReflectionError: the file exists and fixes something else.
    """
    record: dict[str, Any] = plain_json(_fixed_by(builder), str(path))
    if path.exists():
        require_frozen(path, builder)
        return record
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(record, indent=1, sort_keys=True) + "\n")
    return record


def require_frozen(path: Path, builder: RequestBuilder) -> None:
    """Check that a run is what a record fixes.

    Raises:
        ReflectionError: there is no record, or something differs from it.
    """
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ReflectionError(
            f"cannot read the record {path} of a frozen prompt: {error}. Write it (everytoken prompts freeze), or "
            "correct reflection.frozen"
        ) from None
    now = plain_json(_fixed_by(builder), str(path))
    said = said if isinstance(said, dict) else {}
    if changed := [key for key in sorted({*said, *now}) if said.get(key) != now.get(key)]:
        lines = [f"  {key}: {json.dumps(said.get(key))}, now {json.dumps(now.get(key))}" for key in changed]
        raise ReflectionError(
            f"{path} fixes generator and prompt, and these differ from it:\n" + "\n".join(lines) + "\nRestore them; or "
            "freeze the new ones in another record (everytoken prompts freeze --out), and name it in reflection.frozen"
        )


def _fixed_by(builder: RequestBuilder) -> dict[str, Any]:
    given, digests = builder.parameters, builder.digests()
    generator = given.generator
    return {
        "format": _FORMAT,
        "prompt": builder.run.prompt,
        "version": getattr(given.prompts.versions, builder.run.prompt),
        "generator": generator.alias,
        "model": model_of_generator(generator) if isinstance(generator, EmbeddedGenerator) else generator.model,
        "include_reflection_3p": given.include_reflection_3p,
        "sampling": generator.chosen_sampling.model_dump(),
        **{f"{name}_sha256": digests[name] for name in _FIXED_FILES},
    }
