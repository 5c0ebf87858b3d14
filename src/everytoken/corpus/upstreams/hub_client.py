"""Requests to the Hugging Face hub by its own client: URLs, headers, errors and the HTTP session are huggingface_hub's.

What is added here, because the client's own download does not do it (``test_library_download.py`` shows that): a file
is received from the byte where it broke off, whatever broke it. Answers must come from the pinned commit, and no wait
is longer than `retries.LONGEST_WAIT`.

The token is ``HF_TOKEN`` of the environment and nothing else: a token saved on the machine is never used, and none is
written anywhere. Files come by plain HTTP, which gives each one up to 50 GB; the guide says why not by Xet. Nothing
of the user's Hugging Face cache is read or written.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Literal

# the client asks its endpoint for a register of telemetry once a day unless this is set before it is imported
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import (
    build_hf_headers,
    get_session,
    hf_raise_for_status,
    parse_ratelimit_headers,
)

from everytoken.corpus.upstreams.fetch import Listed, Partial
from everytoken.corpus.upstreams.patterns import is_safe
from everytoken.corpus.upstreams.retries import FetchError, Transient, bearable, retrying

RepositoryKind = Literal["dataset", "model"]  # of a repository

_TIMEOUT = 30.0  # seconds without a byte; the hub's own storage answers within one
_SHA1, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
_LISTING: ContextVar[set[str] | None] = ContextVar("_LISTING", default=None)  # the addresses asked for its pages


def endpoint() -> str:
    """Return where the hub is: ``HF_ENDPOINT``, or huggingface.co."""
    return os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")


def account_name() -> str | None:
    """Ask the hub once which account ``HF_TOKEN`` belongs to; None: it is not set, or this mirror has no accounts.

    Raises:
        FetchError: the hub cannot be reached, or does not accept the token.
    """
    token = _token()
    try:
        answer = get_session().get(
            f"{endpoint()}/api/whoami-v2",
            headers=build_hf_headers(token=token, library_name="everytoken"),
            timeout=_TIMEOUT,
            follow_redirects=True,
        )
    except OfflineModeIsEnabled:
        raise FetchError(
            "HF_HUB_OFFLINE forbids to ask the hub",
            "Unset HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE), or check with --offline.",
        ) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise FetchError(
            f"the connection to {endpoint()} failed ({type(error).__name__}: {error})",
            "Check the network and HF_ENDPOINT, and run again.",
        ) from None
    if not token or answer.status_code == HTTPStatus.NOT_FOUND:
        return None
    if answer.status_code != HTTPStatus.OK:
        raise FetchError(
            f"HF_TOKEN is set, but the hub does not accept it ({answer.status_code})",
            f"Make a token on {endpoint()}/settings/tokens, and export HF_TOKEN=...",
        )
    try:
        return str(answer.json()["name"])
    except (ValueError, LookupError, TypeError):
        return None


def commit_of(kind: RepositoryKind, name: str, revision: str) -> str | None:
    """Return the commit that the hub takes a revision of a repository for."""

    def ask() -> str | None:
        api = HfApi(endpoint())
        info = api.dataset_info if kind == "dataset" else api.model_info
        with _explained(kind, name, revision, None):
            return info(name, revision=revision, timeout=_TIMEOUT, expand=["sha"], token=_token()).sha

    return retrying(ask)


def list_tree(kind: RepositoryKind, name: str, revision: str) -> dict[str, Listed]:
    """Return all files of a repository at a commit by path, with sizes, and SHA-256 or git's digest."""
    _limit_listings()
    listing = _LISTING.set(set())
    try:
        with _explained(kind, name, revision, None, retried=True):
            tree = HfApi(endpoint()).list_repo_tree(
                name, recursive=True, revision=revision, repo_type=kind, token=_token()
            )
            return _listed(f"{kind} {name}", tree)
    finally:
        _LISTING.reset(listing)


def _listed(what: str, tree: Iterable[Any]) -> dict[str, Listed]:
    files: dict[str, Listed] = {}
    for entry in tree:
        if not isinstance(entry, RepoFile):
            continue
        if not is_safe(entry.path) or entry.path in files:
            reason = f"which is no path below the {what.split()[0]}, or is listed twice"
            raise _untrusted(f"the hub lists the path {entry.path!r} of {what}, {reason}")
        size = entry.lfs.size if entry.lfs is not None else entry.size
        algorithm, form, told = (
            ("git-sha1", _SHA1, entry.blob_id) if entry.lfs is None else ("sha256", _SHA256, entry.lfs.sha256)
        )
        if type(size) is not int or size < 0 or not isinstance(told, str) or not form.fullmatch(told):
            raise _untrusted(
                f"the hub lists {entry.path!r} of {what} with size {size!r} and {algorithm} {told!r}, "
                f"expected a number of bytes and {'40' if entry.lfs is None else '64'} hex digits"
            )
        files[entry.path] = Listed(size, f"{algorithm}:{told}", None)
    return files


def _untrusted(reason: str) -> FetchError:
    return FetchError(reason, "Do not trust this endpoint; check HF_ENDPOINT.")


def download_from_hub(
    kind: RepositoryKind, name: str, revision: str, path: str, size: int | None, stream: Partial
) -> None:
    """Append to ``stream`` the bytes of a file from where it ends; see `fetch.fetch`."""
    start = stream.end()
    if start and start == size:
        return
    url = hf_hub_url(name, path, repo_type=kind, revision=revision, endpoint=endpoint())
    headers = {**build_hf_headers(token=_token(), library_name="everytoken"), "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with (
        _explained(kind, name, revision, path),
        get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT) as response,
    ):
        if response.status_code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            hf_raise_for_status(response)
        _require_planned_answer(response, revision, size)
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            stream.start_anew()  # the server sends the whole file, whatever it was asked for
        elif start != _first_byte(response):
            stream.start_anew()
            raise Transient(f"the server was asked for bytes from {start:,} and sends others")
        for block in response.iter_bytes():
            if size is not None and stream.end() + len(block) > size:
                raise FetchError(f"the server sends more than the {size:,} bytes that are listed", _OTHER_FILE)
            stream.write(block)
    if size is not None and stream.end() < size:
        raise Transient(f"the server ended after {stream.end():,} of {size:,} bytes")


_OTHER_FILE = "The file was changed at its origin, or a proxy or mirror (HF_ENDPOINT) gives another one: check those."


def _require_planned_answer(response: httpx2.Response, revision: str, size: int | None) -> None:
    """Check what the headers tell before any byte is taken: the commit, and the size of the whole file."""
    for answer in (*response.history, response):
        commit = answer.headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT)
        if commit is not None and commit != revision:
            raise FetchError(
                f"a moved revision: the hub was asked for commit {revision} and answers from {commit}",
                "Check HF_ENDPOINT and proxies in between; nothing was taken.",
            )
    told = re.search(r"/([0-9]{1,18})$", response.headers.get("Content-Range", ""))
    total = int(told.group(1)) if told else None
    if total is None and response.status_code == HTTPStatus.OK and "Content-Encoding" not in response.headers:
        length = re.fullmatch(r"[0-9]{1,18}", response.headers.get("Content-Length", ""))
        total = int(length.group()) if length else None
    if size is not None and total is not None and total != size:
        raise FetchError(f"expected {size:,} bytes as listed, the server has {total:,}", _OTHER_FILE)
    if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        raise FetchError("the server has fewer bytes than were fetched of this file before", _OTHER_FILE)


def _first_byte(response: httpx2.Response) -> int | None:
    found = re.match(r"bytes ([0-9]{1,18})-", response.headers.get("Content-Range", ""))
    return int(found.group(1)) if found else None


def _token() -> str | bool:
    return os.environ.get("HF_TOKEN") or False


@contextmanager
def _explained(
    kind: RepositoryKind, name: str, revision: str, path: str | None, *, retried: bool = False
) -> Iterator[None]:
    """Turn what the client raises into `Transient`, or into a `FetchError` that says what to do.

    Messages name no URL that was redirected to: those carry signatures.

    Args:
        retried: the client has tried again already.
    """
    what = f"{kind} {name} at {revision}" if path is None else f"the file at {revision} of {kind} {name}"
    try:
        yield
    except OfflineModeIsEnabled:
        raise FetchError(
            f"{what} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it",
            "Unset HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE), or run once with a network to have the files here.",
        ) from None
    except EntryNotFoundError:
        raise FetchError(
            f"{what} is no longer on the hub (404)",
            "Its owner removed it from the history, or the mirror (HF_ENDPOINT) lacks it: find another mirror, or pin "
            "another revision and make the plan again.",
        ) from None
    except RevisionNotFoundError:
        raise FetchError(
            f"the hub does not know commit {revision} of {kind} {name} (404)",
            f"Its history may have been rewritten: see {_page(kind, name)}/commits/main and pin a commit.",
        ) from None
    except HfHubHTTPError as error:
        raise _refused(error, kind, name, what, retried=retried) from None
    except httpx2.UnsupportedProtocol as error:
        raise FetchError(f"{what}: {error}", "Set HF_ENDPOINT to an address that begins with https://.") from None
    except httpx2.TransportError as error:
        reason = f"{what}: the connection to {endpoint()} failed ({type(error).__name__}: {error})"
        raise _again(reason, None, retried=retried) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise FetchError(f"{what}: {type(error).__name__}: {error}", "Check HF_ENDPOINT.") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:  # no JSON, or another one
        raise FetchError(
            f"{what}: {endpoint()} does not answer as a hub does ({type(error).__name__}: {error})",
            "Check HF_ENDPOINT, and what stands between (a proxy, a login page of the network).",
        ) from None


def _page(kind: RepositoryKind, name: str) -> str:
    return f"{endpoint()}/datasets/{name}" if kind == "dataset" else f"{endpoint()}/{name}"


def _refused(error: HfHubHTTPError, kind: RepositoryKind, name: str, what: str, *, retried: bool) -> Exception:
    status = error.response.status_code
    page = _page(kind, name)
    token = "HF_TOKEN is set, but " if _token() else "HF_TOKEN is not set, and "
    if status in (408, 429) or status >= 500:
        return _again(f"{what}: the hub answers {status}", _asked_wait(error.response), retried=retried)
    if isinstance(error, GatedRepoError):
        return FetchError(
            f"{kind} {name} is gated ({status}): {token}its account must have accepted the terms",
            f"Accept the terms on {page}, make a token that reads gated repositories, and set it as HF_TOKEN.",
        )
    if isinstance(error, RepositoryNotFoundError) or status in (401, 403, 404):
        return FetchError(
            f"the hub does not give {what} ({status}): {token}the {kind} is private, gated, renamed or not there",
            f"Check the id on {page}; for a private or gated one set HF_TOKEN to a token that may read it.",
        )
    if isinstance(error, DisabledRepoError):
        return FetchError(f"the hub has disabled {kind} {name} ({status})", f"See {page}; choose another one.")
    return FetchError(f"{what}: the hub answers {status}", "Check HF_ENDPOINT and the upstream's parameters.")


def _again(reason: str, wait: float | None, *, retried: bool) -> Exception:
    if retried:
        return FetchError(f"{reason}, and did so again and again", "Check the network and HF_ENDPOINT, and run again.")
    return Transient(reason, wait)


def _asked_wait(response: httpx2.Response) -> float | None:
    """Return the seconds that an answer asks to wait, by Retry-After (seconds or a date) or the hub's rate limit."""
    after = response.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]+", after):
        return float(after)
    if after:
        try:
            return max(parsedate_to_datetime(after).timestamp() - time.time(), 0.0)
        except (ValueError, OverflowError):
            pass
    try:
        limit = parse_ratelimit_headers(response.headers)
    except ValueError:
        return None
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


def _limit_listings() -> None:
    """Give the client's session, while it lists, a limit on waits, silence and pages; the client retries the pages."""
    session = get_session()
    hooks = session.event_hooks
    if _limit_wait not in hooks["response"]:
        request = [*hooks["request"], _limit_silence]
        session.event_hooks = {"request": request, "response": [*hooks["response"], _limit_wait]}


def _limit_silence(request: httpx2.Request) -> None:
    asked = _LISTING.get()
    if asked is not None:
        asked.add(str(request.url))
        request.extensions = {**request.extensions, "timeout": httpx2.Timeout(_TIMEOUT).as_dict()}


def _limit_wait(response: httpx2.Response) -> None:
    asked = _LISTING.get()
    if asked is None:
        return
    following = response.links.get("next", {}).get("url")
    if following is not None and str(httpx2.URL(following)) in asked:  # the client would ask in a circle for ever
        raise _untrusted(f"a page of the hub's listing ({response.request.url.path}) names one before it as the next")
    if response.status_code in (429, 503):
        bearable(Transient(f"the hub answers {response.status_code} to a listing", _asked_wait(response)))
