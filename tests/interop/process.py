"""Programs that tests start, and end by their own pid."""

import os
import queue
import re
import subprocess
import threading
import time

# How long to wait for what should come at once. A limit against hanging, not a promise.
PATIENCE = 60


def environment():
    """Settings of whoever runs the tests are not settings of what is under test."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HOTROW_")}


def run(*command):
    """A program that ends by itself, with what it printed."""
    command = [str(word) for word in command]
    return subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)


class Process:
    """A program whose standard error is kept line by line."""

    def __init__(self, *command, **more):
        """`more` are variables of its environment."""
        self.command = [str(word) for word in command]
        self.child = subprocess.Popen(
            self.command, env=environment() | more, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.log = []
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.child.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for_line(self, pattern):
        """The first group of `pattern` in the first line of the log that has it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {pattern!r} came:\n{self.text()}") from None
            if line is None:
                raise AssertionError(f"it ended before a line with {pattern!r}:\n{self.text()}")
            self.log.append(line)
            if found := re.search(pattern, line):
                return found[1]

    def text(self):
        """What it was and what it logged."""
        while not self._lines.empty():
            self.log.append(self._lines.get() or "")
        return " ".join(self.command) + "\n" + "".join(self.log)

    def wait(self):
        """Its exit code, when it has ended by itself."""
        code = self.child.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def terminate(self):
        """SIGTERM, and its exit code."""
        if self.child.poll() is None:
            self.child.terminate()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.child.kill()
            raise AssertionError(f"it did not end when told to:\n{self.text()}") from None
