"""The overlays: rendered, held against Kubernetes' schemas, and what they make of a pod started for real."""

import base64
import os
import re
import shlex
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

import dockerfile
import image
from image import HOTROW, ROOT, RUNTIME, Container

OVERLAYS = sorted(path.name for path in (ROOT / "deploy/kubernetes/overlays").iterdir())
NAMESPACE = "hotrow"
# Every version that the package has schemas for and that knows all fields.
VERSIONS = [f"1.{minor}" for minor in range(29, 38)]

# Kinds that Kubernetes itself does not know, as their own documentation has them: the fields that we use, and no others.
NAME = {"type": "string", "minLength": 1}
LABELS = {"type": "object", "additionalProperties": NAME}


def fields(required: dict, optional: dict | None = None) -> dict:
    properties = required | (optional or {})
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


ISSUER = fields({"name": NAME, "kind": {"enum": ["Issuer", "ClusterIssuer"]}}, {"group": NAME})
HOURS = {"type": "string", "pattern": "^[0-9]+h$"}
KEY = fields(
    {"algorithm": {"enum": ["RSA", "ECDSA", "Ed25519"]}},
    {"size": {"enum": [256, 384, 521, 2048, 4096]}, "rotationPolicy": {"enum": ["Always", "Never"]}},
)
USAGES = {"type": "array", "items": {"enum": ["digital signature", "key encipherment", "server auth", "client auth"]}}
RELABELINGS = {
    "type": "array",
    "items": fields({"sourceLabels": {"type": "array", "items": NAME}, "targetLabel": NAME}),
}
SCHEMAS = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): fields(
        {
            "selector": fields({"matchLabels": LABELS}),
            "endpoints": {
                "type": "array",
                "minItems": 1,
                "items": fields({"port": NAME}, {"interval": NAME, "relabelings": RELABELINGS}),
            },
        }
    ),
    ("cert-manager.io/v1", "Issuer"): {
        "oneOf": [fields({"selfSigned": {"type": "object"}}), fields({"ca": fields({"secretName": NAME})})]
    },
    ("cert-manager.io/v1", "Certificate"): fields(
        {"secretName": NAME, "issuerRef": ISSUER},
        {
            "isCA": {"type": "boolean"},
            "commonName": NAME,
            "duration": HOURS,
            "renewBefore": HOURS,
            "privateKey": KEY,
            "dnsNames": {"type": "array", "items": NAME},
            "usages": USAGES,
        },
    ),
}


@cache
def render(overlay: str) -> list[dict]:
    command = [*os.environ["KUSTOMIZE"].split(), str(ROOT / "deploy/kubernetes/overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def one(overlay: str, kind: str, name: str | None = None) -> dict:
    [found] = [o for o in render(overlay) if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    return found


def pod(overlay: str) -> dict:
    return one(overlay, "StatefulSet")["spec"]["template"]


def container(overlay: str) -> dict:
    [only] = pod(overlay)["spec"]["containers"]
    return only


def environment(overlay: str) -> dict[str, str]:
    """The image's variables and the pod's, with what Kubernetes fills in."""
    filled = {"metadata.namespace": NAMESPACE}
    stage = image.STAGES["cuda" if container(overlay)["image"].endswith(":cuda") else "runtime"]
    made = dockerfile.environment(RUNTIME) | dockerfile.environment(stage)
    for variable in container(overlay)["env"]:
        made[variable["name"]] = variable.get("value") or filled[variable["valueFrom"]["fieldRef"]["fieldPath"]]
    return made


def arguments(overlay: str) -> list[str]:
    env = environment(overlay)
    return [re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], text) for text in container(overlay)["args"]]


def settings(overlay: str, ordinal: int, folder: Path) -> dict:
    """What the server makes of a pod's arguments, variables and file."""
    file = folder / "hotrow.toml"
    file.write_text(one(overlay, "ConfigMap")["data"]["hotrow.toml"])
    moved = [text.replace("/etc/hotrow/hotrow.toml", str(file)) for text in arguments(overlay)]
    assert moved != arguments(overlay), "the file is named"
    env = environment(overlay) | {"HOTROW_CONFIG": "", "HOSTNAME": f"hotrow-{ordinal}"}
    done = subprocess.run([HOTROW, *moved, "--print-config"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout)


def bytes_of(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMGT])i?B?", text).groups()
    return int(number) << 10 * (1 + "KMGT".index(unit))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_one_that_kubernetes_takes(overlay: str) -> None:
    for thing in render(overlay):
        kind = thing["apiVersion"], thing["kind"]
        if kind in SCHEMAS:
            jsonschema.validate(thing["spec"], SCHEMAS[kind])
            assert set(thing) == {"apiVersion", "kind", "metadata", "spec"}
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(thing, version, strict=True)


def test_what_kubernetes_does_not_take_is_found() -> None:
    wrong = yaml.safe_load(yaml.safe_dump(one("cpu", "StatefulSet")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_files_are_tidy() -> None:
    rules = "line-length: {max: 140}, document-start: disable, braces: {max-spaces-inside: 1}, octal-values: disable"
    places = [str(ROOT / "deploy" / name) for name in ("kubernetes", "compose.yaml")]
    done = subprocess.run(
        ["yamllint", "--strict", "-d", f"{{extends: default, rules: {{{rules}}}}}", *places],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_all_overlays_that_were_promised_are_there() -> None:
    assert OVERLAYS == ["cpu", "gpu", "tls"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_named_is_there(overlay: str) -> None:
    things = render(overlay)
    for thing in things:
        assert thing["metadata"].get("namespace", NAMESPACE) == NAMESPACE
        assert thing["kind"] == "Namespace" or "namespace" in thing["metadata"], thing
    labels, ports = (
        pod(overlay)["metadata"]["labels"],
        {port["name"]: port["containerPort"] for port in container(overlay)["ports"]},
    )
    stateful = one(overlay, "StatefulSet")["spec"]
    headless = one(overlay, "Service", stateful["serviceName"])
    assert headless["spec"]["clusterIP"] == "None" and headless["spec"]["publishNotReadyAddresses"] is True
    for service in (headless, one(overlay, "Service", "hotrow-client")):
        assert service["spec"]["selector"].items() <= labels.items()
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    assert stateful["selector"]["matchLabels"].items() <= labels.items()
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        assert one(overlay, kind)["spec"][key]["matchLabels"].items() <= labels.items()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container(overlay)[probe]["httpGet"]["port"] in ports
    monitor = one(overlay, "ServiceMonitor")["spec"]
    chosen = [
        s
        for s in things
        if s["kind"] == "Service" and monitor["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()
    ]
    assert [service["metadata"]["name"] for service in chosen] == ["hotrow"], "each shard is scraped once"
    assert {endpoint["port"] for endpoint in monitor["endpoints"]} <= {
        port["name"] for port in chosen[0]["spec"]["ports"]
    }

    made = {"PersistentVolumeClaim": set(), "ConfigMap": set(), "Secret": {"hotrow-tokens"}}
    for thing in things:
        made.setdefault(thing["kind"], set()).add(thing["metadata"]["name"])
        if thing["kind"] == "Certificate":
            made["Secret"].add(thing["spec"]["secretName"])
    mounted = {mount["name"] for mount in container(overlay)["volumeMounts"]}
    volumes = {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]}
    for volume in pod(overlay)["spec"]["volumes"]:
        volumes.add(volume["name"])
        for key, field, kind in (
            ("configMap", "name", "ConfigMap"),
            ("secret", "secretName", "Secret"),
            ("persistentVolumeClaim", "claimName", "PersistentVolumeClaim"),
        ):
            if key in volume:
                assert volume[key][field] in made[kind], volume
    assert mounted == volumes
    # A token file that must be made by hand is one that the page says how to make.
    assert "kubectl -n hotrow create secret generic hotrow-tokens" in (ROOT / "deploy/README.md").read_text()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_clients_get_through_and_nobody_else(overlay: str) -> None:
    policy = one(overlay, "NetworkPolicy")["spec"]
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    [data, metrics] = policy["ingress"]
    assert [port["port"] for port in data["ports"]] == ["grpc"] and [port["port"] for port in metrics["ports"]] == [
        "http"
    ]
    # Labels of the shards themselves must not be asked of clients.
    assert data["from"][1]["podSelector"] == {"matchLabels": {"hotrow-client": "true"}}
    assert all(
        peer.get("podSelector") or peer.get("namespaceSelector") for rule in policy["ingress"] for peer in rule["from"]
    )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_server_takes_what_a_pod_gives_it(overlay: str, tmp_path: Path) -> None:
    stateful, spec = one(overlay, "StatefulSet")["spec"], pod(overlay)["spec"]
    mounts = {mount["mountPath"] for mount in container(overlay)["volumeMounts"]}
    ports = {port["name"]: port["containerPort"] for port in container(overlay)["ports"]}
    for ordinal in range(stateful["replicas"]):
        used = settings(overlay, ordinal, tmp_path)
        server, cluster = used["server"], used["cluster"]
        assert server["listen"] == f"0.0.0.0:{ports['grpc']}" and server["http"] == f"0.0.0.0:{ports['http']}"
        [pattern] = cluster["shards"]
        assert (cluster["shard"], pattern) == (
            "auto",
            f"hotrow-{{0..{stateful['replicas'] - 1}}}.{stateful['serviceName']}.{NAMESPACE}.svc:{ports['grpc']}",
        )
        assert used["durability"]["mode"] == "log" and used["durability"]["data_dir"] in mounts
        assert used["checkpoint"]["url"] in mounts and used["checkpoint"]["on_drain"]
        assert spec["terminationGracePeriodSeconds"] > 2 * server["drain_seconds"]
        assert bytes_of(used["engine"]["memory"]) <= 0.8 * bytes_of(container(overlay)["resources"]["limits"]["memory"])
        for file in (
            used["tls"]["cert"],
            used["tls"]["key"],
            cluster["ca"],
            cluster["token_file"],
            used["auth"]["tokens"],
        ):
            assert (os.path.dirname(file) in mounts) == (overlay == "tls"), file
        assert server["allow_plaintext"] == (overlay != "tls")
        assert used["cache"]["pool"] == ("cuda" if overlay == "gpu" else "auto")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_is_as_restricted_as_the_namespace_asks(overlay: str) -> None:
    assert one(overlay, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    spec, own = pod(overlay)["spec"], container(overlay)["securityContext"]
    user = RUNTIME.all("USER")[0].text.split(":")
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"] == {
        "type": "RuntimeDefault"
    }
    assert [str(spec["securityContext"][key]) for key in ("runAsUser", "runAsGroup")] == user
    assert own == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


def test_an_overlay_of_ones_own_has_both_tls_and_gpus(tmp_path: Path) -> None:
    def place(name: str) -> str:
        return os.path.relpath(ROOT / "deploy/kubernetes" / name, tmp_path.resolve())

    components = [place("components/tls"), place("components/gpu")]
    own = {"namespace": NAMESPACE, "resources": [place("base")], "components": components}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
    done = subprocess.run([*os.environ["KUSTOMIZE"].split(), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    [stateful] = [thing for thing in yaml.safe_load_all(done.stdout) if thing["kind"] == "StatefulSet"]
    [only] = stateful["spec"]["template"]["spec"]["containers"]
    names = {variable["name"] for variable in only["env"]}
    assert "--pool=cuda" in only["args"] and "HOTROW_TLS_CERT" in names and "HOTROW_ALLOW_PLAINTEXT" not in names


def test_a_gpu_is_asked_for_where_there_is_one() -> None:
    assert container("gpu")["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert (
        container("gpu")["image"] == "hotrow:cuda"
        and container("cpu")["image"] == container("tls")["image"] == "hotrow"
    )


def mounts(overlay: str, folder: Path, volumes: dict[str, Path]) -> dict[str, Path]:
    """The volumes of a pod as folders."""
    config = folder / "config"
    config.mkdir()
    (config / "hotrow.toml").write_text(one(overlay, "ConfigMap")["data"]["hotrow.toml"])
    return volumes | {"/etc/hotrow": config}


def test_a_pod_runs_and_its_probes_answer(root: Path, tmp_path: Path, volumes: dict[str, Path]) -> None:
    given = mounts("cpu", tmp_path, volumes)
    env = environment("cpu")
    with Container(root, arguments("cpu"), env, given, "hotrow-1") as started:
        image.healthy(root, started, env)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = container("cpu")[probe]["httpGet"]["path"]
            asked = subprocess.run(["curl", "-sf", f"http://127.0.0.1:7780{path}"], capture_output=True, text=True)
            assert asked.returncode == 0 and asked.stdout in ("ok\n", "ready\n"), path
        code, said = started.stop()
    assert code == 0 and "serves shard 1 of 3" in said, said


def test_a_pod_with_a_gpu_lacks_nothing_but_the_gpu(root: Path, tmp_path: Path, volumes: dict[str, Path]) -> None:
    given = mounts("gpu", tmp_path, volumes)
    with Container(root, arguments("gpu"), environment("gpu"), given, "hotrow-0") as started:
        code, said = started.ended()
    assert code == 1 and "there is no NVIDIA driver here" in said, said


def certificates(folder: Path) -> Path:
    """What cert-manager would put into the Secret: a chain as the objects ask for it."""
    [names] = [c["spec"]["dnsNames"] for c in render("tls") if c["kind"] == "Certificate" and "dnsNames" in c["spec"]]
    made = folder / "tls"
    made.mkdir()
    curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ",".join(f"DNS:{name}" for name in names)
    for command in (
        f"req -x509 {curve} -subj /CN=hotrow-ca -keyout ca.key -out ca.crt",
        f"req -x509 {curve} -subj /CN=hotrow -keyout tls.key -out tls.crt -CA ca.crt -CAkey ca.key "
        f"-addext subjectAltName={names} -addext basicConstraints=critical,CA:FALSE",
    ):
        subprocess.run(["openssl", *shlex.split(command)], cwd=made, check=True, capture_output=True)
    (made / "tls.key").chmod(0o444)
    return made


def test_shards_with_tls_and_tokens_work_together(root: Path, tmp_path: Path, volumes: dict[str, Path]) -> None:
    """Three pods of the tls overlay, each with an address of its own in place of 0.0.0.0."""
    given = mounts("tls", tmp_path, volumes)
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    token = {role: base64.b16encode(os.urandom(16)).decode() for role in ("write", "admin")}
    (tokens / "tokens").write_text("".join(f"{role} {text}\n" for role, text in token.items()))
    (tokens / "cluster-token").write_text(token["admin"])
    given |= {"/etc/hotrow-tls": certificates(tmp_path), "/etc/hotrow-tokens": tokens}
    replicas = one("tls", "StatefulSet")["spec"]["replicas"]
    hosts = tmp_path / "hosts"
    names = [f"127.0.0.{2 + n} hotrow-{n}.hotrow.{NAMESPACE}.svc" for n in range(replicas)]
    hosts.write_text("\n".join([*names, f"127.0.0.2 hotrow-client.{NAMESPACE}.svc", ""]))
    (root / "etc/hosts").touch()
    given["/etc/hosts"] = hosts
    shards = []
    try:
        for ordinal in range(replicas):
            own = tmp_path / f"data-{ordinal}"
            own.mkdir()
            os.chown(own, 10001, 10001)
            address = f"127.0.0.{2 + ordinal}"
            here = [*arguments("tls"), f"--listen={address}:7700", f"--http={address}:7780"]
            shards.append(
                Container(root, here, environment("tls"), given | {"/var/lib/hotrow/data": own}, f"hotrow-{ordinal}")
            )
            image.healthy(root, shards[-1], {"HOTROW_HTTP": f"{address}:7780"})

        def client(role: str | None, *command: str) -> tuple[int, str]:
            env = {
                "HOTROW_ENDPOINT": f"hotrow-client.{NAMESPACE}.svc:7700",
                "HOTROW_CA": "/etc/hotrow-tls/ca.crt",
                "HOTROW_TIMEOUT": "5",
            }
            if role:
                env["HOTROW_TOKEN"] = token[role]
            with Container(
                root, [*command], env, {target: given[target] for target in ("/etc/hotrow-tls", "/etc/hosts")}
            ) as asked:
                return asked.ended()

        create = ["table", "create", "item", "--dim", "4", "--rows", "1000"]
        assert client(None, *create)[0] == 1 and client("write", *create)[0] == 1
        # The shard that is asked asks the others: by their names, over TLS, with its token.
        code, said = client("admin", *create)
        assert code == 0, said
        code, said = client("write", "push", "item", *map(str, range(0, 1000, 50)), "--fill", "0.1")
        assert code == 0, said
        code, said = client("write", "stats")
        assert code == 0 and all(f"shard {n}:" in said for n in range(replicas)), said
        for shard in shards:
            code, said = shard.stop()
            assert code == 0 and '"saving before the end"' in said, said
    finally:
        for shard in shards:
            shard.__exit__()
