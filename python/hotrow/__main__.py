"""The command line: ``hotrow serve``, ``hotrow stats``, ... as the binary has it."""

from __future__ import annotations

import signal
import sys

from . import _native


def main() -> None:
    # Python only notes a Ctrl-C, and acts when it is back from a call: here that would be never.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(0 if _native.run(["hotrow", *sys.argv[1:]]) else 1)


if __name__ == "__main__":
    main()
