"""A Chromium without a window, driven by the DevTools protocol over two pipes: no driver program, no port, no package.

with Chromium(folder) as chromium:
    tab = chromium.open(path.as_uri(), width=400, is_dark=True)
    tab.run("document.title")
"""

import fcntl
import json
import os
import shutil
import subprocess
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--font-render-hinting=none",
    "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip
HEIGHT = 900
OWN_DESCRIPTORS_FROM = 20  # above 3 and 4, on which Chromium reads and writes


class PageError(Exception):
    """A script of ours failed in the page, or the browser refused a call."""


def executable() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


class Chromium:
    def __init__(self, profile: Path) -> None:
        program = executable()
        assert program is not None, "no Chromium in PATH"
        for_us, its_output = _pipe()
        its_input, to_it = _pipe()

        def arrange() -> None:
            os.dup2(its_input, 3)
            os.dup2(its_output, 4)

        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        # Descriptors stay closed in the child unless they are 3 and 4: Python makes all others close at exec.
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=arrange)  # noqa: PLW1509  this process starts no threads
        os.close(its_output)
        os.close(its_input)
        self._from = os.fdopen(for_us, "rb")
        self._to = os.fdopen(to_it, "wb", buffering=0)
        self._rest = b""
        self._number = 0
        self.events: deque[dict[str, Any]] = deque()

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._to.close()  # the browser ends with its pipe
        self._process.wait(timeout=120)
        self._from.close()

    def open(self, address: str, width: int, *, is_dark: bool = False) -> "Tab":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, target, session)
        tab.show(address, width, is_dark=is_dark)
        return tab

    def call(self, method: str, session: str | None = None, /, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._to.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise PageError(f"{method}: {answer['error']['message']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def wait_for(self, method: str, session: str) -> dict[str, Any]:
        """The next such event that has not been waited for; what comes before it is kept."""
        for event in [*self.events]:
            if event.get("method") == method and event.get("sessionId") == session:
                self.events.remove(event)
                return event
        while True:
            event = self._next()
            if event.get("method") == method and event.get("sessionId") == session:
                return event
            self.events.append(event)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._from.fileno(), 1 << 20)
            if not read:
                raise PageError(f"Chromium has ended with {self._process.wait()}")
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded


class Tab:
    def __init__(self, chromium: Chromium, target: str, session: str) -> None:
        self._chromium = chromium
        self._target = target
        self._session = session
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._chromium.call(method, self._session, **parameters)

    def show(self, address: str, width: int, *, is_dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=address)
        self._chromium.wait_for("Page.loadEventFired", self._session)

    def run(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise PageError(json.dumps(answer["exceptionDetails"])[:500])
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text)

    def screenshot(self) -> str:
        """The whole page, as the address of a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return f"data:image/png;base64,{taken['data']}"

    def complaints(self) -> list[str]:
        """Lists the errors of the console, and what failed to load."""
        self.run("0")  # everything said before has arrived with the answer
        mine = [event for event in self._chromium.events if event.get("sessionId") == self._session]
        return [text for event in mine if (text := _complaint(event["method"], event["params"])) is not None]

    def close(self) -> None:
        self._chromium.call("Target.closeTarget", targetId=self._target)


def _complaint(method: str, what: dict[str, Any]) -> str | None:
    if method == "Runtime.exceptionThrown":
        return str(what["exceptionDetails"]["text"])
    if method == "Runtime.consoleAPICalled" and what["type"] in ("error", "assert"):
        return " ".join(str(each.get("value")) for each in what["args"])
    if method == "Log.entryAdded" and what["entry"]["level"] == "error":
        return str(what["entry"]["text"])
    return None


def _pipe() -> tuple[int, int]:
    """The pipe's ends, with numbers that do not clash with 3 and 4 in the child."""
    read, write = os.pipe()
    high = tuple(fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, OWN_DESCRIPTORS_FROM) for each in (read, write))
    os.close(read)
    os.close(write)
    return high[0], high[1]
