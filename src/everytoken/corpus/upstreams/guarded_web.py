"""A web client that reaches private addresses and plain http only where they are named.

Whoever names a URL may let its host resolve to an address of the network that reads it, or redirect to one. So each
request is looked at, those of redirects too, and each address that is connected to, after the name was resolved.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from everytoken.corpus.upstreams.retries import FetchError
from everytoken.redaction import address_of, is_named_by, is_public_address, shown_url


def client_of(named: tuple[str, ...]) -> Any:
    """Return what makes a session of aiohttp for fsspec (``get_client``).

    Args:
        named: roots below which plain http and the addresses of their hosts are allowed.
    """
    return functools.partial(_client, named)


async def _client(named: tuple[str, ...], **settings: Any) -> aiohttp.ClientSession:
    async def look(request: aiohttp.ClientRequest, handler: Any) -> aiohttp.ClientResponse:
        _require_allowed_url(str(request.url), named)
        response: aiohttp.ClientResponse = await handler(request)
        return response

    connector = aiohttp.TCPConnector(socket_factory=functools.partial(_socket, named))
    return aiohttp.ClientSession(**{**settings, "connector": connector, "middlewares": (look,)})


def _require_allowed_url(url: str, named: Sequence[str]) -> None:
    if any(is_named_by(url, one) for one in named):
        return
    parts = urlsplit(url)
    address = address_of(parts.hostname or "")
    if parts.scheme.lower() == "http":
        raise _refused(f"{shown_url(url)} is plain http, which anybody on the way can change", shown_url(url))
    if address is not None and not is_public_address(address):
        raise _refused(f"{shown_url(url)} is a private address", shown_url(url))


def _socket(named: tuple[str, ...], address: Any) -> socket.socket:
    """Make the socket for a resolved address."""
    family, kind, protocol, _, place = address
    host, port = place[0], place[1]
    found = ipaddress.ip_address(host.partition("%")[0])
    if not is_public_address(found) and (str(found), port) not in _addresses(named):
        raise _refused(f"a name of the upstream leads to {found}, a private address", f"https://{found}:{port}")
    return socket.socket(family, kind, protocol)


@functools.lru_cache(maxsize=16)
def _addresses(named: tuple[str, ...]) -> frozenset[tuple[str, int]]:
    """Return the addresses and ports of the named web roots."""
    found = set()
    for root in named:
        parts = urlsplit(root)
        if parts.scheme.lower() in ("http", "https") and parts.hostname:
            port = parts.port or (443 if parts.scheme.lower() == "https" else 80)
            for *_, place in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM):
                found.add((str(place[0]).partition("%")[0], port))
    return frozenset(found)


def _refused(reason: str, root: str) -> FetchError:
    remedy = f"If you trust whoever named it, name it: --params replay.allow_roots={root}."
    return FetchError(f"{reason}: it is not read unasked", remedy)
