"""How a storage is opened: the credentials and settings of a URL, known to this process and to its workers.

They are kept in the environment, as other credentials are: workers inherit it, and it is in no task, ledger or log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from everytoken.redaction import hide

VARIABLE = "EVERYTOKEN_STORAGE_CREDENTIALS"


def give_access(url: str, options: Mapping[str, Any]) -> None:
    """Let this process and its workers open what is below a URL with these options of its fsspec file system.

    Every text among them is hidden from all that is shown from now on.
    """
    if not options:
        return
    hide(_texts(options))
    os.environ[VARIABLE] = json.dumps({**_given(), url.rstrip("/"): dict(options)})


def options_of(url: str) -> dict[str, Any]:
    """Return the options that were given for the nearest folder around a URL; none where none were."""
    given = _given()
    around = [root for root in given if f"{url}/".startswith(f"{root}/")]
    options: dict[str, Any] = given[max(around, key=len)] if around else {}
    hide(_texts(options))  # in a worker
    return options


def _given() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(os.environ.get(VARIABLE, "{}"))
    return known


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, str):
        yield value
