"""The image without an engine: its base extracted from Debian's packages, its instructions carried out with chroot."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import dockerfile

ROOT = Path(__file__).resolve().parents[2]
STAGES = dockerfile.parse(ROOT / "deploy/Dockerfile")
RUNTIME = STAGES["runtime"]
HOTROW = os.environ["HOTROW_BIN"]
# Whether this process may enter it.
INSIDE = bool(os.environ["INSIDE"])

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Read-only but for volumes, as the user of the image.
START = """
root=$1 host=$2 user=$3; shift 3
hostname "$host"
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; shift 2; done; shift
mount -o remount,bind,ro "$root"
exec chroot --userspec="$user" "$root" env -- "$@"
"""


def build(root: Path, program: Path) -> None:
    """Makes the runtime stage in a folder, with a program that was built elsewhere."""
    subprocess.run(["cp", "-a", os.environ["BASE"], root], check=True)
    # What the build stage has; its certificates are this machine's.
    built = {"/hotrow": program, "/etc/ssl/certs/ca-certificates.crt": Path("/etc/ssl/certs/ca-certificates.crt")}
    for instruction in RUNTIME.instructions:
        if instruction.name == "RUN":
            subprocess.run(["chroot", root, "/bin/sh", "-c", instruction.text], env={"PATH": PATH}, check=True)
        elif instruction.name == "COPY":
            source, target = instruction.words()
            place = root / target.lstrip("/")
            if target.endswith("/"):
                place /= Path(source).name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(built[source] if "from" in instruction.flags else ROOT / source, place)


class Container:
    """One that runs: a server, or a command in the same network."""

    def __init__(self, root: Path, arguments: list[str], env: dict[str, str], mounts: dict[str, Path], host: str = "x"):
        [user], [entry] = (RUNTIME.all(name)[0].words() for name in ("USER", "ENTRYPOINT"))
        variables = {"PATH": PATH, "HOSTNAME": host, **dockerfile.environment(RUNTIME), **env}
        binds = [str(part) for target, source in mounts.items() for part in (source, target)]
        settings = [f"{name}={value}" for name, value in variables.items()]
        command = ["unshare", "--mount", "--uts", "bash", "-euc", START, "start", str(root), host, user, *binds, "--"]
        self.process = subprocess.Popen(
            [*command, *settings, entry, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def ended(self) -> tuple[int, str]:
        """Exit code, and what it said."""
        said, _ = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def stop(self) -> tuple[int, str]:
        """What an engine does."""
        self.process.terminate()
        return self.ended()


def healthy(root: Path, container: Container, env: dict[str, str]) -> None:
    """Waits for the image's HEALTHCHECK to succeed, as an engine does."""
    [check] = RUNTIME.all("HEALTHCHECK")
    assert check.text.startswith("CMD ")
    program, *arguments = dockerfile.json.loads(check.text.removeprefix("CMD "))
    assert [program] == RUNTIME.all("ENTRYPOINT")[0].words()
    begun = time.monotonic()
    while True:
        with Container(root, arguments, env, {}) as asked:
            code, said = asked.ended()
        if code == 0:
            assert said == "ready\n"
            return
        assert container.process.poll() is None, f"the server has ended: {container.ended()}"
        assert time.monotonic() < begun + 30, f"never healthy: {said}"
        time.sleep(0.1)
