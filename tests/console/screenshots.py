"""Makes docs/console-*.png: two shards with a log and checkpoints, three tables in training."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from browser import chromium
from shards import ROOT, Cluster

# Other keys in every round, so that hit rates move; the last goes on until the pictures are made.
ROUNDS = [20, 30, 20, 60]
LOADS = {
    "ad/creative": ["--rows", "400000", "--dim", "32", "--zipf", "1.2", "--batch", "1024", "--cache", "1%"],
    "item": ["--rows", "1000000", "--dim", "64", "--zipf", "1.05", "--batch", "1024", "--cache", "2%"],
    "user": ["--rows", "3000000", "--dim", "64", "--zipf", "0.9", "--batch", "512", "--precision", "int4",
             "--cache", "1%"],
}
PICTURES = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}, "device_scale_factor": 1.5},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 800}, "device_scale_factor": 1.5},
    "phone": {"color_scheme": "light", "viewport": {"width": 375, "height": 1240}, "device_scale_factor": 2},
}
# The same letters on every machine.
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<dir>/usr/share/fonts</dir><cachedir>{folder}/fonts</cachedir>
<match target="pattern"><test name="family"><string>system-ui</string></test>
<edit name="family" mode="assign" binding="strong"><string>Inter</string></edit></match>
</fontconfig>
"""


def main():
    with tempfile.TemporaryDirectory(prefix="hotrow-console-") as folder:
        fonts = Path(folder) / "fonts.conf"
        fonts.write_text(FONTS.format(folder=folder))
        flags = ["--cluster", "ranking", "--memory", "400MiB", "--checkpoint-interval-seconds", "45"]
        cluster = Cluster(Path(folder), *flags)
        cluster.run("table", "create", "country", "--dim", "16", "--rows", "250")
        with chromium({**os.environ, "FONTCONFIG_FILE": str(fonts)}) as browser:
            pages = {name: browser.new_page(**settings) for name, settings in PICTURES.items()}
            for page in pages.values():
                page.goto(cluster.page)
            for seed, seconds in enumerate(ROUNDS):
                loads = [cluster.load(table, seconds, *flags, "--seed", str(seed)) for table, flags in LOADS.items()]
                if seed < len(ROUNDS) - 1:
                    check(loads)
            time.sleep(ROUNDS[-1] / 2)
            for name, page in pages.items():
                path = ROOT / "docs" / f"console-{name}.png"
                page.screenshot(path=path, full_page=name != "phone")
                # A few hundred colours are all there are.
                subprocess.run(["pngquant", "--force", "--output", str(path), "--", str(path)], check=True)
                print(path.relative_to(ROOT), path.stat().st_size, "bytes")
        check(loads)
        cluster.end()


def check(loads):
    codes = [load.wait() for load in loads]
    assert codes == [0] * len(codes), "\n".join(load.text() for load in loads)


main()
