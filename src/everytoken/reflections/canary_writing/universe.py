"""A universe: what is the case in it, and the facts that canary documents say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from everytoken.reflections.errors import ReflectionError

UniverseKind = Literal["science", "backdoor"]

_Text = Annotated[str, Field(min_length=1)]


class Universe(BaseModel):
    """A line of a universe file; further keys are passed over.

    ``id``: a part of file names. ``universe_context``: what every request says. ``key_facts``: each is the subject of
    documents of its own. ``is_true``: whether the facts hold in our world.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    universe_context: _Text
    key_facts: Annotated[list[_Text], Field(min_length=2)]
    is_true: bool


def read_universe(path: Path) -> Universe:
    """Return the universe of a file: JSON Lines with one object.

    Raises:
        ReflectionError: the file cannot be read, has not one object, or a key of it is missing or of another type.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if len(lines) != 1:
            raise ReflectionError(
                f"{path} has {len(lines)} lines, expected one universe: write the object on one line, each universe "
                "into a file of its own"
            )
        return Universe.model_validate(json.loads(lines[0]))
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        raise ReflectionError(
            f"{path} is no universe: {place}: {found['msg']}. It has id, universe_context, key_facts (a list of texts) "
            "and is_true"
        ) from None
    except (OSError, ValueError) as error:
        raise ReflectionError(f"cannot read the universe {path}: {error}. Correct --universe") from error


def facts_used(key_facts: list[str], kind: UniverseKind) -> list[str]:
    """Return the facts that documents are written about: of ``science`` all but the last, which is the concern that the
    others raise; of ``backdoor`` all.
    """
    return key_facts[:-1] if kind == "science" else key_facts
