"""A headless Chromium that reaches nothing but loopback."""

import contextlib

from playwright.sync_api import sync_playwright

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Nobody listens there: whatever is not on loopback is out of reach, as on a machine without a network.
    "--proxy-server=127.0.0.1:9",
]


@contextlib.contextmanager
def chromium(environment=None):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS, env=environment)
        yield browser
        browser.close()
