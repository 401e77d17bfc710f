"""Who is compared with whom, by which names."""

from __future__ import annotations

from dataclasses import dataclass

PULL, PUSH = "pull", "push"
# The largest number of the table; a step of int8 is a 127th of it at most.
LARGEST = 0.00999
INT8_STEP = LARGEST / 127


@dataclass(frozen=True)
class System:
    """A worker. `module` is that of a peer; without one the Rust worker knows the name."""

    name: str
    module: str = ""
    does: tuple[str, ...] = (PULL, PUSH)
    # How far the mean of the numbers may be off, beside rounding of f32: what low precision explains.
    tolerance: float = 0.0
    # Whose rate is its limit, where that is not the group's; "none": nobody's.
    limit: str = ""
    # What a push does to the rows: sgd, adagrad, overwrite, or nothing that a sum can tell.
    effect: str = ""


@dataclass(frozen=True)
class Ratio:
    """`ours` over `theirs` in rows per second."""

    name: str
    what: str
    ours: str
    theirs: str


@dataclass(frozen=True)
class Group:
    """Systems that take turns, and what is said about them. `limits` has who is the limit of a pull and a push."""

    name: str
    systems: tuple[System, ...]
    ratios: tuple[Ratio, ...]
    limits: dict[str, str]

    def layer_of(self, system: str) -> str:
        if system == "hotrow-python":
            return "Python"
        return "service" if self.name == "service" else "engine"


CODEC = Group(
    "codec",
    (
        System("codec-int8", tolerance=INT8_STEP / 10),
        System("fbgemm-codec", "fbgemm_codec", tolerance=INT8_STEP / 10),
    ),
    (
        Ratio("codec.encode_int8_over_fbgemm", PUSH, "codec-int8", "fbgemm-codec"),
        Ratio("codec.decode_int8_over_fbgemm", PULL, "codec-int8", "fbgemm-codec"),
    ),
    {},
)

ENGINE = Group(
    "engine",
    (
        System("limit-gather-f32", does=(PULL,)),
        System("limit-update", does=(PUSH,)),
        System("engine-f32", effect="adagrad"),
        System("engine-f32-sum20", does=(PULL,), limit="none"),
        System("fbgemm-f32", "fbgemm", effect="adagrad"),
        System("fbgemm-f32-sum1", "fbgemm", effect="adagrad"),
        System("fbgemm-f32-sum20", "fbgemm", does=(PULL,), limit="none"),
        # 11 bits, of numbers of which the mean is half the largest.
        System("fbgemm-f16", "fbgemm", tolerance=LARGEST / 2**12),
    ),
    (
        Ratio("engine.pull.f32_over_fbgemm", PULL, "engine-f32", "fbgemm-f32"),
        Ratio("engine.pull.f32_over_fbgemm_sum1", PULL, "engine-f32", "fbgemm-f32-sum1"),
        Ratio("engine.pull.f32_over_fbgemm_f16", PULL, "engine-f32", "fbgemm-f16"),
        Ratio("engine.pull.sum20_over_fbgemm", PULL, "engine-f32-sum20", "fbgemm-f32-sum20"),
        Ratio("engine.push.rowwise_adagrad_over_fbgemm", PUSH, "engine-f32", "fbgemm-f32"),
        Ratio("engine.push.rowwise_adagrad_over_fbgemm_sum1", PUSH, "engine-f32", "fbgemm-f32-sum1"),
        Ratio("engine.pull.f32_over_gather", PULL, "engine-f32", "limit-gather-f32"),
        Ratio("engine.push.f32_over_update", PUSH, "engine-f32", "limit-update"),
    ),
    {PULL: "limit-gather-f32", PUSH: "limit-update"},
)

# Each peer's word in the names of ratios.
PEERS = {
    "redis": "redis",
    "redis-rmw": "redis_rmw",
    "memcached": "memcached",
    "grpcio-numpy": "grpcio",
    "torch-rpc": "torch_rpc",
    "bare-tcp": "bare_tcp",
}

SERVICE = Group(
    "service",
    (
        System("bare-tcp", effect="sgd"),
        System("bare-unix", effect="sgd", limit="bare-unix"),
        System("hotrow-f32", effect="sgd"),
        # The table and the wire both round.
        System("hotrow-int8-wire", tolerance=INT8_STEP / 5),
        System("hotrow-unix", effect="sgd", limit="bare-unix"),
        System("hotrow-python", "hotrow_python", effect="sgd"),
        System("redis", "redis", effect="overwrite"),
        System("redis-rmw", "redis", does=(PUSH,), effect="sgd"),
        System("memcached", "memcached", effect="overwrite"),
        System("grpcio-numpy", "grpcio_numpy", effect="sgd"),
        System("torch-rpc", "torch_rpc", effect="sgd"),
    ),
    (
        *(
            Ratio(f"service.{what}.f32_over_{word}", what, "hotrow-f32", peer)
            for what in (PULL, PUSH)
            for peer, word in PEERS.items()
            if (what, peer) != (PULL, "redis-rmw")
        ),
        Ratio("service.pull.int8_wire_over_bare_tcp", PULL, "hotrow-int8-wire", "bare-tcp"),
        Ratio("service.pull.int8_over_grpcio", PULL, "hotrow-int8-wire", "grpcio-numpy"),
        Ratio("service.pull.int8_over_torch_rpc", PULL, "hotrow-int8-wire", "torch-rpc"),
        Ratio("service.push.int8_table_over_bare_tcp", PUSH, "hotrow-int8-wire", "bare-tcp"),
        Ratio("service.pull.unix_over_bare_unix", PULL, "hotrow-unix", "bare-unix"),
        Ratio("service.push.unix_over_bare_unix", PUSH, "hotrow-unix", "bare-unix"),
        Ratio("service.pull.unix_over_tcp", PULL, "hotrow-unix", "hotrow-f32"),
        Ratio("service.push.unix_over_tcp", PUSH, "hotrow-unix", "hotrow-f32"),
        *(
            Ratio(f"python.{what}.f32_over_{PEERS[peer]}", what, "hotrow-python", peer)
            for what in (PULL, PUSH)
            for peer in ("bare-tcp", "grpcio-numpy", "torch-rpc")
        ),
    ),
    {PULL: "bare-tcp", PUSH: "bare-tcp"},
)

GROUPS = {group.name: group for group in (CODEC, ENGINE, SERVICE)}
