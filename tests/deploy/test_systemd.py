"""The systemd unit: verified, installed into a folder, and its commands run as it has them."""

import configparser
import os
import re
import shlex
import signal
import socket
import subprocess
import tomllib
from pathlib import Path

import pytest

from image import HOTROW, ROOT

PLACE = ROOT / "deploy/systemd"


def install(folder: Path) -> None:
    command = [str(PLACE / "install"), HOTROW]
    done = subprocess.run(command, env=os.environ | {"DESTDIR": str(folder)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def unit(*names: str) -> configparser.ConfigParser:
    # A key may stand twice in a unit.
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str
    parser.read([PLACE / name for name in names])
    return parser


def verify(folder: Path) -> str:
    installed = str(folder / "etc/systemd/system/hotrow.service")
    text = Path(installed).read_text().replace("/usr/local/bin/hotrow", f"{folder}/usr/local/bin/hotrow")
    Path(installed).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", installed], capture_output=True, text=True
    )
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    install(tmp_path)
    assert verify(tmp_path) == ""
    installed = tmp_path / "etc/systemd/system/hotrow.service"
    installed.write_text(installed.read_text() + "\n[Service]\nTimeoutStopSecs=1\n")
    assert "TimeoutStopSecs" in verify(tmp_path), "a mistake is found"


def test_it_is_hardened() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(PLACE / "hotrow.service")]
    done = subprocess.run(command, capture_output=True, text=True)
    # Of 100; 20 is what systemd calls OK.
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_installation_keeps_the_settings_that_are_there(tmp_path: Path) -> None:
    install(tmp_path)
    settings = tmp_path / "etc/hotrow/hotrow.toml"
    assert settings.read_text() == (PLACE / "hotrow.toml").read_text()
    settings.write_text("# mine")
    install(tmp_path)
    assert settings.read_text() == "# mine"
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {
        "usr/local/bin/hotrow",
        "etc/systemd/system/hotrow.service",
        "usr/lib/sysusers.d/hotrow.conf",
        "etc/hotrow/hotrow.toml",
    }


def test_the_shell_scripts_have_no_mistakes() -> None:
    scripts = [PLACE / "install", ROOT / "tests/deploy/run"]
    done = subprocess.run(["shellcheck", *map(str, scripts)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_the_units_commands_start_a_server_and_wait_for_it(tmp_path: Path) -> None:
    service = unit("hotrow.service")["Service"]
    settings = tomllib.loads((PLACE / "hotrow.toml").read_text())
    # Whatever the settings name is a folder that systemd makes.
    folders = {f"/var/lib/{name}" for name in service["StateDirectory"].split()} | {
        f"/run/{service['RuntimeDirectory']}"
    }
    assert {
        settings["durability"]["data_dir"],
        settings["checkpoint"]["url"],
        os.path.dirname(settings["server"]["unix"]),
    } <= folders
    assert os.path.dirname(settings["cache"]["kernel_cache"]) in folders
    assert service["WorkingDirectory"] in folders
    minutes = int(re.fullmatch(r"(\d+)min", service["TimeoutStopSec"])[1])
    reference = tomllib.loads((ROOT / "deploy/hotrow.toml").read_text())
    assert 60 * minutes > 2 * reference["server"]["drain_seconds"]
    assert int(service["LimitNOFILE"]) > 2 * reference["server"]["max_connections"]

    # The same commands, with places and ports that are free.
    moved = {
        "/usr/local/bin/hotrow": HOTROW,
        "/etc/hotrow/hotrow.toml": str(tmp_path / "hotrow.toml"),
        "/var/lib/hotrow": str(tmp_path),
        "/run/hotrow": str(tmp_path),
    }
    moved |= {f"127.0.0.1:{port}": f"127.0.0.1:{free_port()}" for port in (7700, 7780)}

    def here(text: str) -> str:
        return re.sub("|".join(map(re.escape, moved)), lambda match: moved[match[0]], text)

    (tmp_path / "hotrow.toml").write_text(here((PLACE / "hotrow.toml").read_text()))
    # Nobody there: the wait ends with the process, and the unit has failed.
    waiting = shlex.split(here(service["ExecStartPost"]))
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = subprocess.run(
        waiting, env=os.environ | {"MAINPID": str(gone.pid)}, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1 and "does not answer" in done.stderr

    log = tmp_path / "log.txt"
    with log.open("w") as output:
        server = subprocess.Popen(shlex.split(here(service["ExecStart"])), stderr=output)
    try:
        done = subprocess.run(
            waiting, env=os.environ | {"MAINPID": str(server.pid)}, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0 and done.stdout == "ready\n", log.read_text()
        server.send_signal(getattr(signal, service["KillSignal"]))
        assert server.wait(timeout=60) == 0
        assert "drained" in log.read_text()
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


@pytest.mark.parametrize("key", ["PrivateDevices", "MemoryDenyWriteExecute"])
def test_a_gpu_is_not_hidden_where_there_is_one(key: str) -> None:
    assert unit("hotrow.service")["Service"][key] == "yes"
    assert unit("hotrow.service", "gpu.conf")["Service"][key] == "no"
