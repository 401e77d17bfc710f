"""compose.yaml: held against the specification, and what it gives a shard taken by the server."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import compose_spec
import yaml

import image
from image import HOTROW, ROOT, RUNTIME

PLACE = ROOT / "deploy"
TEXT = (PLACE / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SHARDS = {name: service for name, service in COMPOSE["services"].items() if name.startswith("shard-")}


def seconds(text: str) -> int:
    return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


def test_it_is_what_the_specification_says() -> None:
    parsed = compose_spec.PyOptions(apply_merge=True).from_yaml(TEXT).to_spec()
    assert set(parsed.services) == {"shard-0", "shard-1", "prometheus", "grafana"}


def test_what_is_named_is_there() -> None:
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", [])) <= set(COMPOSE["services"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source.startswith("./") or source in COMPOSE["volumes"], volume
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), "nothing is published beyond this host"
    for service in SHARDS.values():
        context = (PLACE / service["build"]["context"]).resolve()
        assert context == ROOT and (context / service["build"]["dockerfile"]).exists()
        assert service["image"] == "hotrow"


def test_the_server_takes_what_a_shard_is_given() -> None:
    addresses = set()
    for number, (name, service) in enumerate(SHARDS.items()):
        assert service["hostname"] == name == f"shard-{number}" and service["read_only"]
        settings = service["environment"]
        env = settings | {"HOSTNAME": name, "HOTROW_CONFIG": str(PLACE / "container.toml")}
        done = subprocess.run([HOTROW, "serve", "--print-config"], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        used = tomllib.loads(done.stdout)
        assert used["cluster"]["shard"] == "auto" and used["server"]["allow_plaintext"]
        port = used["server"]["listen"].rpartition(":")[2]
        assert f"127.0.0.1:{port}:{port}" in service["ports"], "trainers outside use the ports that shards announce"
        assert used["cluster"]["shards"][number] == f"{name}:{port}"
        addresses.add(tuple(used["cluster"]["shards"]))
        mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in service["volumes"]}
        assert mounted[used["durability"]["data_dir"]] == name, "a folder of its own"
        assert mounted[used["checkpoint"]["url"]] == "checkpoints", "a place for all"
        assert seconds(service["stop_grace_period"]) > 2 * used["server"]["drain_seconds"]
    assert len(addresses) == 1


def test_prometheus_and_grafana_find_what_they_need() -> None:
    for name in ("prometheus", "grafana"):
        for volume in COMPOSE["services"][name]["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith("./") or (PLACE / source).exists(), source
    jobs = yaml.safe_load((PLACE / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in jobs for static in job.get("static_configs", []) for target in static["targets"]}
    assert {f"{name}:7780" for name in SHARDS} <= targets


def test_two_shards_run_and_one_is_restarted(root: Path, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 shard-0 shard-1\n")
    (root / "etc/hosts").touch()
    (tmp_path / "checkpoints").mkdir()
    os.chown(tmp_path / "checkpoints", 10001, 10001)

    def start(number: int) -> image.Container:
        name = f"shard-{number}"
        data = tmp_path / name
        data.mkdir(exist_ok=True)
        os.chown(data, 10001, 10001)
        # In one network here, where each would have one of its own.
        env = SHARDS[name]["environment"] | {"HOTROW_HTTP": f"127.0.0.1:{7780 + number}"}
        mounts = {
            "/var/lib/hotrow/data": data,
            "/var/lib/hotrow/checkpoints": tmp_path / "checkpoints",
            "/etc/hosts": hosts,
        }
        shard = image.Container(root, RUNTIME.all("CMD")[0].words(), env, mounts, name)
        image.healthy(root, shard, {"HOTROW_HTTP": env["HOTROW_HTTP"]})
        return shard

    def client(*command: str) -> str:
        with image.Container(root, [*command], {"HOTROW_ENDPOINT": "shard-0:7700"}, {"/etc/hosts": hosts}) as asked:
            code, said = asked.ended()
        assert code == 0, said
        return said

    shards = [start(0), start(1)]
    try:
        client("table", "create", "item", "--dim", "4", "--rows", "1000")
        keys = [str(key) for key in range(0, 1000, 50)]
        client("push", "item", *keys, "--fill", "0.1")
        before = client("pull", "item", *keys)
        code, said = shards[1].stop()
        assert code == 0 and "saving before the end" in said, said
        shards[1] = start(1)
        assert client("pull", "item", *keys) == before
    finally:
        for shard in shards:
            shard.__exit__()
