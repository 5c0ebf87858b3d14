"""Who may ask, and how much: the token, the name of the host, the size of a body."""

from __future__ import annotations

import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everytoken.serving.refusals import Refusal

_HEALTH = "/health"


class Guard:
    """Middleware before all of an application.

    Without a token a server is on loopback, where web pages of a browser on the same machine reach it under a name of
    their own. So the name of the host has to be one of loopback.

    Args:
        token: that every request but `/health` has to have, as ``Authorization: Bearer TOKEN``.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, max_body_bytes: int) -> None:
        self._app, self._token, self._max_body_bytes = app, token, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it before its body is read."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            self._check(Headers(scope=scope), scope["path"])
        except Refusal as refusal:
            return await refused(refusal)(scope, receive, send)
        await self._app(scope, self._limited(receive), send)

    def _check(self, headers: Headers, path: str) -> None:
        if self._token is None:
            if not is_loopback(_without_port(headers.get("host", ""))):
                raise Refusal(403, "this server has no token, and answers under a name of loopback alone: localhost")
        elif path != _HEALTH and not _is_token(headers.get("authorization", ""), self._token):
            raise Refusal(
                401,
                "expected the header Authorization: Bearer TOKEN with the token of this server",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_body_bytes:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """Return ``receive``, which refuses a body that is too large though its length was not given."""
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_body_bytes:
                # the framework turns every other error here into its own
                raise HTTPException(413, str(self._too_large()))
            return message

        return limited

    def _too_large(self) -> Refusal:
        return Refusal(413, f"a request has at most {self._max_body_bytes:,} bytes here (--max-body-bytes)")


def refused(refusal: Refusal) -> JSONResponse:
    """Return the response of a refusal."""
    return JSONResponse(refusal.content(), refusal.status, refusal.headers)


def is_loopback(host: str) -> bool:
    """Return whether a name or address is of this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _without_port(host: str) -> str:
    return host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host


def _is_token(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
