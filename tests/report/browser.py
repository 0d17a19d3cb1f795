"""Chromium without a window, driven over a pipe by the DevTools protocol: the standard library is enough."""

import base64
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

LAPTOP, PHONE = 1280, 400
"""Widths to look at pages in."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
LAUNCH = """
import fcntl, os, sys
high = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]
for descriptor, wanted in zip(high, (3, 4)):
    os.dup2(descriptor, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The protocol wants the descriptors 3 and 4, whatever the numbers of ours are."""

PATIENCE = 60.0
"""Seconds after which an answer will not come any more."""


def installed():
    """The browser's path, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(AssertionError):
    """The browser refused, or a script on the page raised."""


class Browser:
    """One browser with one tab. Use in a with statement."""

    def __init__(self, profile: Path):
        self._numbers = count(1)
        self._answers: queue.Queue = queue.Queue()
        self.events = []
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        words = [
            installed(),
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",  # there is none for root in a container, and the only pages are ours
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(theirs_in), str(theirs_out), *words],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._session = None

    def __enter__(self):
        try:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.send(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            self._session = None
            self.send("Browser.close")
            self._process.wait(timeout=PATIENCE)
        except (BrowserError, OSError):
            pass  # it has gone by itself; whoever spoke to it has heard of that
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._reader.join(timeout=PATIENCE)
            os.close(self._in)
            os.close(self._out)

    # ------------------------------------------------------------------------------------------ the protocol

    def _read(self):
        rest = b""
        while data := os.read(self._in, 1 << 20):
            *whole, rest = (rest + data).split(b"\0")
            for message in whole:
                self._answers.put(json.loads(message))
        self._answers.put(None)

    def _next(self):
        message = self._answers.get(timeout=PATIENCE)
        if message is None:
            raise BrowserError("the browser has gone")
        if "method" in message:
            self.events.append(message)
        return message

    def send(self, method, **parameters):
        """One command; its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def wait(self, method):
        """Until an event comes."""
        while not any(event["method"] == method for event in self.events):
            self._next()

    # ------------------------------------------------------------------------------------------ a page

    def open(self, path, width=1280, height=900, dark=False, touch=False):
        """Load a file at a size and in a theme, and wait until it stands."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.send("Emulation.setTouchEmulationEnabled", enabled=touch, maxTouchPoints=2)
        self.events.clear()
        self.send("Page.navigate", url=Path(path).resolve().as_uri())
        self.wait("Page.loadEventFired")
        self.frames()

    def evaluate(self, script):
        """The value of an expression (a promise's, once it has one)."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(json.dumps(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    def frames(self):
        """Let the page draw."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def errors(self):
        """What the page complained about."""
        self.frames()
        found = []
        for event in self.events:
            words = event["params"]
            match event["method"]:
                case "Runtime.exceptionThrown":
                    found.append(words["exceptionDetails"])
                case "Runtime.consoleAPICalled" if words["type"] in ("error", "warning", "assert"):
                    found.append(words["args"])
                case "Log.entryAdded" if words["entry"]["level"] in ("error", "warning"):
                    found.append(words["entry"])
        return found

    def requests(self):
        """Everything that was fetched, but for the page itself and what is inside it."""
        urls = [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls[1:] if not url.startswith("data:")]

    def key(self, key, shift=False):
        """Press a key and let it go."""
        text = key if len(key) == 1 else ""
        common = {"key": key, "modifiers": 8 if shift else 0}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)
        self.frames()

    def mouse(self, kind, x, y, **more):
        """moved, pressed, released or wheel, at a place of the window."""
        name = {"moved": "mouseMoved", "pressed": "mousePressed", "released": "mouseReleased", "wheel": "mouseWheel"}
        self.send("Input.dispatchMouseEvent", type=name[kind], x=x, y=y, **more)
        self.frames()

    def drag(self, x0, y0, x1, y1):
        """With the left button."""
        self.mouse("pressed", x0, y0, button="left", buttons=1, clickCount=1)
        for part in (0.25, 0.5, 0.75, 1.0):
            self.mouse("moved", x0 + part * (x1 - x0), y0 + part * (y1 - y0), button="left", buttons=1)
        self.mouse("released", x1, y1, button="left", clickCount=1)

    def touch(self, kind, points):
        """Fingers: start, move or end."""
        name = {"start": "touchStart", "move": "touchMove", "end": "touchEnd"}[kind]
        fingers = [{"x": x, "y": y, "id": place} for place, (x, y) in enumerate(points)]
        self.send("Input.dispatchTouchEvent", type=name, touchPoints=fingers)
        self.frames()

    def screenshot(self, path, whole=True):
        """A PNG of what is seen, or of the whole page."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(found["data"]))
