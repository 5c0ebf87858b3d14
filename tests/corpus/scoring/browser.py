"""A headless Chromium that a test looks at a page with, over the DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.shards.children import PATIENCE, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One tab of a headless Chromium."""

    def __init__(self, socket: Any, downloads: Path) -> None:
        self._socket, self._numbers, self._session = socket, itertools.count(1), None
        self.events: list[dict[str, Any]] = []
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        session = {} if self._session is None else {"sessionId": self._session}
        self._socket.send(json.dumps({"id": number, "method": method, "params": params, **session}))
        while True:
            message = json.loads(self._socket.recv(timeout=PATIENCE))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        state = "document.readyState + location.protocol"
        wait_until(lambda: self.evaluate(state) == "completefile:", "the page does not open")

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, *keys: str) -> None:
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

    def screenshot(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def complaints(self) -> list[dict[str, Any]]:
        """What the browser logged: errors of scripts, and what the policy kept out."""
        return [event for event in self.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]

    def requested(self) -> set[str]:
        """Addresses that the browser asked for."""
        asked = (event for event in self.events if event["method"] == "Network.requestWillBeSent")
        return {event["params"]["request"]["url"] for event in asked}


@contextmanager
def browser_page(folder: Path) -> Iterator[Page]:
    """Start a browser with its profile and downloads in a folder; skip the test where there is none."""
    reason = "the browser is driven over a web socket"
    websockets = pytest.importorskip("websockets.sync.client", reason=reason)
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    process = subprocess.Popen(
        [CHROMIUM, *options, "--remote-debugging-port=0", f"--user-data-dir={folder}/profile", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        told = folder / "profile/DevToolsActivePort"
        wait_until(lambda: told.exists() and len(told.read_text().splitlines()) == 2, "Chromium does not start")
        port, path = told.read_text().splitlines()
        with websockets.connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as socket:
            yield Page(socket, folder)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
