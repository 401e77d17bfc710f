"""The Dockerfile: linted, its commands carried out, its image started."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import dockerfile
import image
from image import ROOT, RUNTIME, STAGES

NVRTC = Path(os.environ["TARGET"]) / "tools/cuda/nvidia/cuda_nvrtc/lib"


def run(command: list[str], **more: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def sources(stage: dockerfile.Stage) -> list[str]:
    """What a stage copies from the project."""
    copies = [copy.words()[:-1] for copy in stage.all("COPY") if "from" not in copy.flags]
    return [source for copy in copies for source in copy]


def test_the_linter_has_nothing_to_say() -> None:
    run(["hadolint", "--failure-threshold", "style", str(ROOT / "deploy/Dockerfile")])


def test_what_is_copied_is_there_and_is_let_through() -> None:
    needed = {source for stage in STAGES.values() for source in sources(stage)}
    everything, *let_through = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert everything == "*"
    assert {line.removeprefix("!") for line in let_through} == needed
    for source in needed:
        tracked = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", source], cwd=ROOT)
        assert tracked, f"{source} is not in the project"


def test_what_the_program_includes_is_copied() -> None:
    copied = [ROOT / source for source in sources(STAGES["build"])]
    found = 0
    for file in (ROOT / "src").rglob("*.rs"):
        program = file.read_text().split("#[cfg(test)]")[0]
        for path in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', program):
            included = (file.parent / path).resolve()
            assert any(included.is_relative_to(place) for place in copied), f"{file} needs {included}"
            found += 1
    assert found > 0


def test_what_comes_from_other_stages_is_made_there() -> None:
    for stage in STAGES.values():
        for copy in stage.all("COPY"):
            if "from" not in copy.flags:
                continue
            commands = " ".join(run.text for run in STAGES[copy.flags["from"]].all("RUN"))
            for source in copy.words()[:-1]:
                made = source in commands or source.split("/")[1] == "nvrtc" and "--target /nvrtc" in commands
                assert made or source == "/etc/ssl/certs/ca-certificates.crt", source


def test_labels_and_versions_are_the_projects() -> None:
    package = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]
    [labels] = RUNTIME.all("LABEL")
    labels = {word.split("=", 1)[0].rpartition(".")[2]: word.split("=", 1)[1] for word in labels.words()}
    for name, key in {
        "title": "name",
        "description": "description",
        "licenses": "license",
        "version": "version",
    }.items():
        assert labels[name] == package[key]
    # The toolchain is new enough, and linked against the same Debian as the image has.
    tag = STAGES["build"].base.removeprefix("rust:")
    assert tag == f"{package['rust-version']}-bookworm"
    assert RUNTIME.base == "debian:bookworm-slim"
    assert list(STAGES)[-1] == "host" and STAGES["host"].base == STAGES["cuda"].base == "runtime"
    assert not STAGES["host"].instructions, "the image is the runtime stage"


def test_nvrtc_is_the_one_that_is_tested() -> None:
    pinned = [line for line in (ROOT / "deploy/nvrtc.txt").read_text().splitlines() if not line.startswith("#")]
    assert set(pinned) < set((ROOT / "tests/cuda/requirements.txt").read_text().splitlines())
    # The files that the image takes are those that tests/cuda finds in the package.
    [copy] = STAGES["cuda"].all("COPY")
    fetch = (ROOT / "tests/cuda/fetch").read_text()
    for source in copy.words()[:-1]:
        assert source.removeprefix("/nvrtc/") in fetch, source
    named = dockerfile.environment(STAGES["cuda"])["HOTROW_NVRTC"]
    assert named == copy.words()[-1] + "libnvrtc.so.12"


def carry_out(folder: Path, cargo: str | None, **env: str) -> None:
    """The build stage, in a folder. `cargo` stands in for `cargo build`."""
    env = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"} | env
    for instruction in STAGES["build"].instructions:
        if instruction.name == "COPY":
            *copied, target = instruction.words()
            for source in copied:
                place = folder / target
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, place, dirs_exist_ok=True)
                else:
                    place.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / source, place)
        elif instruction.name == "RUN":
            command = instruction.text
            assert command.count("cargo build") == 1
            if cargo is not None:
                command = command.replace("cargo build", cargo).split(" && strip")[0]
            run(["/bin/sh", "-c", command.replace(" /hotrow ", f" {folder}/hotrow ")], cwd=folder, env=env)


def test_cargo_takes_the_build_commands(tmp_path: Path) -> None:
    """Everything but compiling: manifests, the lock file, sources that have to be there."""
    # The unit graph is what cargo would compile; asking for it is not stable.
    asked = "cargo build -Zunstable-options --unit-graph >graph"
    carry_out(tmp_path, asked, RUSTC_BOOTSTRAP="1", CARGO_NET_OFFLINE="true")
    graph = json.loads((tmp_path / "graph").read_text())
    [top] = graph["roots"]
    unit = graph["units"][top]
    assert (unit["target"]["name"], unit["target"]["kind"], unit["mode"]) == ("hotrow", ["bin"], "build")
    assert unit["profile"]["name"] == "release"
    packages = {re.split(r"[#@]", unit["pkg_id"])[-2].rpartition("/")[2] for unit in graph["units"]}
    assert "object_store" in packages and not packages & {"pyo3", "criterion", "emulated-driver"}


def test_the_empty_sources_pass_the_projects_lints(tmp_path: Path) -> None:
    [make, cargo] = STAGES["build"].all("RUN")[0].text.split(" && cargo build ")
    run(["/bin/sh", "-c", make], cwd=tmp_path)
    lints = tomllib.loads((ROOT / "Cargo.toml").read_text())["lints"]["rust"]
    flags = [f"--{level}={lint}" for lint, level in lints.items()]
    for source in ("build.rs", "src/lib.rs", "src/main.rs"):
        kind = "lib" if source.endswith("lib.rs") else "bin"
        # Dead code is warned of, which is fine.
        command = ["rustc", "--edition=2024", f"--crate-type={kind}", "--emit=metadata", *flags, source]
        run(command, cwd=tmp_path)
    assert "--bin hotrow" in cargo


@pytest.mark.skipif(not os.environ["BUILD"], reason="minutes of compiling: tests/deploy/run --build")
def test_the_build_stage_makes_a_program_that_runs_in_the_image(tmp_path: Path) -> None:
    carry_out(tmp_path, None)
    assert "serve" in run([str(tmp_path / "hotrow"), "--help"]), "the program of the empty sources says nothing"
    if image.INSIDE:
        image.build(tmp_path / "root", tmp_path / "hotrow")
        with image.Container(tmp_path / "root", ["health"], {}, {}) as container:
            code, said = container.ended()
        assert code == 1 and "does not answer" in said


def test_the_image_serves_as_its_user_with_a_root_that_nobody_can_write(root: Path, volumes: dict[str, Path]) -> None:
    [command] = RUNTIME.all("CMD")
    # Nobody has said yet that plain text is fine here.
    with image.Container(root, command.words(), {}, volumes) as container:
        code, said = container.ended()
    assert code == 1 and "--allow-plaintext" in said and "0.0.0.0:7700" in said
    settings = {"HOTROW_ALLOW_PLAINTEXT": "true"}
    for start in ("the first", "the second, from what the first has saved"):
        with image.Container(root, command.words(), settings, volumes) as container:
            image.healthy(root, container, {})
            status = Path(f"/proc/{container.process.pid}/status").read_text()
            assert re.search(r"^Uid:\s+10001\s+10001\s", status, re.M), status
            if start == "the first":
                with image.Container(root, ["table", "create", "item", "--dim", "4", "--rows", "1000"], {}, {}) as made:
                    assert made.ended()[0] == 0
            with image.Container(root, ["push", "item", "3", "--fill", "0.1"], {}, {}) as pushed:
                assert pushed.ended()[0] == 0
            code, said = container.stop()
        assert code == 0 and "drained" in said, said
    assert {path.name for path in volumes["/var/lib/hotrow/data"].iterdir()} >= {"log", "identity.toml"}
    assert any(volumes["/var/lib/hotrow/checkpoints"].iterdir())


def test_the_image_has_the_libraries_that_the_program_needs(root: Path) -> None:
    # ldd would answer for this machine; the image's own loader answers for the image.
    loader = "/lib64/ld-linux-x86-64.so.2"
    listed = run(["chroot", str(root), loader, "--list", "/usr/local/bin/hotrow"])
    assert "not found" not in listed and "libc.so.6" in listed, listed


@pytest.mark.skipif(not NVRTC.exists(), reason="NVRTC is not here: tests/cuda/fetch, or make cuda, fetches it")
def test_the_image_has_the_libraries_that_nvrtc_needs(root: Path) -> None:
    for copy in STAGES["cuda"].all("COPY"):
        for source in copy.words()[:-1]:
            dynamic = run(["readelf", "--dynamic", str(NVRTC / Path(source).name)])
            for library in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
                there = [*root.glob(f"lib*/**/{library}"), *root.glob(f"usr/lib/**/{library}")]
                assert there, f"{source} needs {library}"


def test_every_port_and_volume_is_declared() -> None:
    settings = tomllib.loads((ROOT / "deploy/container.toml").read_text())
    ports = {settings["server"][key].rpartition(":")[2] for key in ("listen", "http")}
    assert {port for expose in RUNTIME.all("EXPOSE") for port in expose.words()} == ports
    [volume] = RUNTIME.all("VOLUME")
    assert set(volume.words()) == {settings["durability"]["data_dir"], settings["checkpoint"]["url"]}
