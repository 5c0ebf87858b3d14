"""Where an OpenAI-compatible server is, how it is reached, and what it says of itself."""

from __future__ import annotations

import ipaddress
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from everytoken.reflections.generators.asking import GeneratorError

_SECONDS = 10
_TELLING = ("/version", "/get_server_info", "/props")
"""Paths at which vLLM, sglang and llama.cpp tell their version."""
_VERSION_KEYS = ("version", "build_info")


def is_on_this_machine(endpoint: str) -> bool:
    """Return whether an address is of this machine; no proxy is asked for it."""
    host = urlsplit(endpoint).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def api_key(variable: str | None) -> str:
    """Return the key in an environment variable; a word that local servers accept where none is named.

    Raises:
        GeneratorError: the variable is not set.
    """
    if variable is None:
        return "none"
    if not (key := os.environ.get(variable)):
        raise GeneratorError(
            f"the environment variable {variable} is not set: it holds the key of the endpoint. Set it "
            f"(export {variable}=...), or give api_key_variable: null for a server that needs none"
        )
    return key


def ask_json(url: str, key: str) -> tuple[Any, Mapping[str, str]]:
    """Return JSON and headers of an address, without a proxy on this machine.

    Raises:
        OSError: it cannot be reached, or answers with an error.
        ValueError: the answer is no JSON.
    """
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    proxies = urllib.request.ProxyHandler({} if is_on_this_machine(url) else None)
    with urllib.request.build_opener(proxies).open(request, timeout=_SECONDS) as response:
        headers = dict(response.headers)
        return json.loads(response.read()), headers


def served_model(endpoint: str, key: str, wanted: str | None) -> dict[str, Any]:
    """Return what a server says of its model and of itself: model, owner, and name and version where it tells.

    Args:
        endpoint: its address with ``/v1``.
        wanted: the model; None: the first that it lists.

    Raises:
        GeneratorError: it is not there, refuses the key, or has no such model.
    """
    url = f"{endpoint.rstrip('/')}/models"
    try:
        listed, headers = ask_json(url, key)
        models = [(str(one["id"]), one.get("owned_by")) for one in listed["data"]]
    except urllib.error.HTTPError as error:
        raise GeneratorError(f"{url} answers with status {error.code}. {_remedy(error.code)}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GeneratorError(
            f"{url} is no list of models ({type(error).__name__}: {error}). Is the server running, and is "
            "generator.endpoint its address with /v1 at the end?"
        ) from error
    names = [name for name, _ in models]
    if not names or (wanted is not None and wanted not in names):
        raise GeneratorError(
            f"{endpoint} serves {', '.join(names) or 'no model'}, expected {wanted or 'a model'}. Correct "
            "generator.model, or start the server with that model"
        )
    model = wanted or names[0]
    return {"model": model, "owner": dict(models)[model], "server": _header(headers), **_version(endpoint, key)}


def _remedy(status: int) -> str:
    if status in (401, 403):
        return "The server wants a key: name the environment variable that holds it (generator.api_key_variable)"
    return "Is generator.endpoint the address of an OpenAI-compatible server, with /v1 at the end?"


def _header(headers: Mapping[str, str]) -> str | None:
    return next((value for name, value in headers.items() if name.lower() == "server"), None)


def _version(endpoint: str, key: str) -> dict[str, Any]:
    """Return the version, where a known path tells it; none does of most hosted servers."""
    root = endpoint.rstrip("/").removesuffix("/v1")
    for path in _TELLING:
        try:
            found, _ = ask_json(root + path, key)
        except (OSError, ValueError):
            continue
        for name in _VERSION_KEYS:
            if isinstance(found, dict) and isinstance(found.get(name), str):
                return {"version": found[name], "version_from": path}
    return {"version": None}
