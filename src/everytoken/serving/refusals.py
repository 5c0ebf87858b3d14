"""Errors of the HTTP interface, in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHOWN = 200  # characters of what a client sent


class Refusal(Exception):
    """A request that is not answered.

    Args:
        message: what is wrong, and what to do.
        code: OpenAI's word for it, where it has one.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, dict(headers or {})

    def content(self) -> dict[str, Any]:
        """Return the JSON of the response."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        param = None if self.param is None else encodable(self.param)
        return {"error": {"message": encodable(str(self)), "type": kind, "param": param, "code": self.code}}


def failed() -> Refusal:
    """Return what a client is told of an error that nobody foresaw."""
    return Refusal(500, "this request failed in the server, whose log says why")


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode, and not too long."""
    cut = text if len(text) <= 4 * _SHOWN else f"{text[: 4 * _SHOWN]}..."
    return cut.encode(errors="backslashreplace").decode()


def shown(value: Any) -> str:
    """Return a value of a client as a message shows it."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
