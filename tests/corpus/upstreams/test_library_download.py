"""What huggingface_hub's own download does with the hostile hub: why `hub_client` receives the bytes itself.

`hf_hub_download` receives them by `http_get`, into a file with a new name for each call. Where one of these tests
fails, the library has learnt it, and the client and the guide's table can shrink.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from email.utils import formatdate

import httpx2
import pytest
from huggingface_hub import hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import http_get

from tests.corpus.upstreams.hub_server import COMMIT, Fault, Hub, serve_hub
from tests.corpus.upstreams.test_hub import BIG

pytestmark = pytest.mark.sensitive


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


@pytest.fixture
def hub(slept: list[float]) -> Iterator[Hub]:
    with serve_hub() as hub:
        hub.files["big.bin"] = BIG
        yield hub


def received(hub: Hub, so_far: bytes = b"", into: io.BytesIO | None = None) -> bytes:
    stream = io.BytesIO() if into is None else into
    stream.write(so_far)
    url = hf_hub_url("org/texts", "big.bin", repo_type="dataset", revision=COMMIT, endpoint=hub.url)
    http_get(url, stream, resume_size=len(so_far), expected_size=len(BIG))
    return stream.getvalue()


def test_it_loses_what_came_before_a_cut(hub: Hub) -> None:
    hub.faults["storage"] = [Fault(cut_after=200_000)]
    assert received(hub) == BIG
    assert [request.start for request in hub.asked("storage")] == [0, 0]
    hub.faults["storage"] = [Fault(cut_after=200_000)] * 6
    with pytest.raises(httpx2.RemoteProtocolError):
        received(hub)


@pytest.mark.parametrize(
    ("fault", "error"),
    [(Fault(cut_after=200_000, reset=True), httpx2.ReadError), (Fault(503, {"Retry-After": "1"}), HfHubHTTPError)],
)
def test_it_gives_up_at_the_first_reset_and_server_error(hub: Hub, fault: Fault, error: type[Exception]) -> None:
    hub.faults["storage"] = [fault]
    with pytest.raises(error):
        received(hub)


def test_it_waits_for_as_long_as_a_server_says_in_seconds_and_reads_no_date(hub: Hub, slept: list[float]) -> None:
    date = formatdate(time.time() + 100, usegmt=True)
    hub.faults["storage"] = [Fault(429, {"Retry-After": "86400"}), Fault(429, {"Retry-After": date})]
    assert received(hub) == BIG
    assert slept[0] == 86401
    assert slept[1] < 10


def test_it_takes_other_bytes_and_another_commit(hub: Hub) -> None:
    hub.served["big.bin"], hub.answers_from = BIG[::-1], "f" * 40
    assert received(hub) == BIG[::-1]
    assert received(hub, b"\0" * 200_000) == b"\0" * 200_000 + BIG[::-1][200_000:]


def test_it_stores_more_than_is_listed_before_it_counts(hub: Hub) -> None:
    hub.served["big.bin"] = BIG * 20
    stream = io.BytesIO()
    with pytest.raises(OSError, match="Consistency check failed"):
        received(hub, into=stream)
    assert len(stream.getvalue()) == 20 * len(BIG)
