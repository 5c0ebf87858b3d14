"""Errors of pydantic as they may be shown: the values that they found, without the secrets in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from everytoken.redaction.urls import HIDDEN, Redaction


def without_secrets(error: ValidationError) -> ValidationError:
    """Return the same error; URLs in it have no secrets, and of a key that nothing knows the value is not shown if it
    is more than a number or a word: it may be a login.
    """
    redaction = Redaction()
    details = [
        InitErrorDetails(
            type=PydanticCustomError(one["type"], redaction.text(one["msg"])),
            loc=tuple(redaction.text(key) if isinstance(key, str) else key for key in one["loc"]),
            input=_shown(one["input"], one["type"], redaction),
        )
        for one in error.errors(include_url=False, include_context=False)
    ]
    return ValidationError.from_exception_data(error.title, details)


def _shown(found: Any, kind: str, redaction: Redaction) -> Any:
    if kind == "extra_forbidden" and isinstance(found, Mapping | list | tuple):
        return f"{HIDDEN} ({type(found).__name__})"
    return redaction.tree(found)
