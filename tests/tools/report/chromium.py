"""Pages in Chromium, headless, by its DevTools protocol."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = next(
    (p for p in ("chromium", "chromium-browser", "google-chrome") if shutil.which(p)), None
)
PATIENCE = 60.0


class Browser:
    """One page at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: Any) -> None:
        self._loop, self._socket, self._number = loop, socket, 0
        self.complaints: list[str] = []
        """Of the console, scripts and requests, since the page was opened."""

    def open(self, url: str, *, width: int, dark: bool) -> None:
        self.complaints = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """Of JavaScript, as JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "ArrowRight": 39}
        about = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="rawKeyDown", **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def call(self, method: str, **params: Any) -> Any:
        return self._loop.run_until_complete(self._call(method, params))

    async def _call(self, method: str, params: dict[str, Any]) -> Any:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            said = await self._socket.receive_json(timeout=PATIENCE)
            if said.get("id") == self._number:
                assert "error" not in said, said
                return said["result"]
            self._note(said)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event["method"], event["params"]
        console = method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning")
        log = method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning")
        if console or log or method in ("Runtime.exceptionThrown", "Network.loadingFailed"):
            self.complaints.append(str(params))


@contextmanager
def chromium() -> Iterator[Browser]:
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += [f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        loop = asyncio.new_event_loop()
        try:
            port = Path(profile) / "DevToolsActivePort"
            end = time.monotonic() + PATIENCE
            while not (port.exists() and "\n" in port.read_text()):
                assert time.monotonic() < end, "Chromium has not started"
                time.sleep(0.1)
            number = port.read_text().split("\n")[0]
            session, socket = loop.run_until_complete(_connected(f"http://127.0.0.1:{number}"))
            yield Browser(loop, socket)
            loop.run_until_complete(session.close())
        finally:
            process.terminate()
            process.wait(PATIENCE)
            loop.close()


async def _connected(url: str) -> tuple[Any, Any]:
    session = aiohttp.ClientSession()
    async with session.get(f"{url}/json/list") as answer:
        (page,) = [each for each in await answer.json() if each["type"] == "page"]
    return session, await session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)
