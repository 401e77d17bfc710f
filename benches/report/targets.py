"""What each ratio is a ratio to, and what it must come to: the one place for both."""

from __future__ import annotations

from dataclasses import dataclass

AT_LEAST, AT_MOST = "at least", "at most"

GATHER = "a plain loop that gathers and dequantizes"
UPDATE = "a plain loop that updates f32 rows in place"
BARE = "a bare TCP server doing the same work"
UNIX = "a bare Unix socket server doing the same work"
FBGEMM = "fbgemm's table-batched embeddings, no pooling"
FBGEMM_SUM1 = "fbgemm with bags of one key"
REDIS = "Redis, C client, MGET / MSET"
GRPCIO = "the NumPy server on grpcio"
TORCH = "torch.distributed.rpc"


@dataclass(frozen=True)
class Line:
    """Of the report: what a ratio's limit is, and its target where it has one."""

    limit: str
    sense: str = AT_LEAST
    target: float | None = None

    def met(self, value: float) -> bool | None:
        """None where nothing is asked for."""
        if self.target is None:
            return None
        return value >= self.target if self.sense == AT_LEAST else value <= self.target


LINES = {
    # The engine on one thread beside plain loops.
    "engine.pull.int8": Line(GATHER, target=0.7),
    "engine.push.rowwise_adagrad": Line(UPDATE, target=0.6),
    "engine.pull.cost_1e8_over_1e6": Line("the cost of a row at 10^6 rows (int4, dim 16)", AT_MOST, 2.0),
    "engine.push.cost_1e8_over_1e6": Line("the cost of a row at 10^6 rows (int4, dim 16)", AT_MOST, 2.0),
    "engine.pull.f32_over_gather": Line("a plain loop that gathers"),
    "engine.push.f32_over_update": Line(UPDATE),
    # The engine beside fbgemm, in process, one thread each.
    "codec.encode_int8_over_fbgemm": Line("fbgemm's row-wise quantizer, to nearest", target=1.0),
    "codec.decode_int8_over_fbgemm": Line("fbgemm's row-wise dequantizer", target=1.0),
    "engine.pull.f32_over_fbgemm": Line(f"{FBGEMM}: forward", target=1.5),
    "engine.pull.sum20_over_fbgemm": Line("fbgemm, sum pooling of 20: forward", target=1.5),
    "engine.push.rowwise_adagrad_over_fbgemm": Line(f"{FBGEMM}: backward", target=3.0),
    "engine.pull.f32_over_fbgemm_sum1": Line(f"{FBGEMM_SUM1}: forward"),
    "engine.push.rowwise_adagrad_over_fbgemm_sum1": Line(f"{FBGEMM_SUM1}: backward"),
    "engine.pull.f32_over_fbgemm_f16": Line("fbgemm with f16 weights, no pooling: forward"),
    # The service beside sockets without a protocol.
    "service.pull.f32_over_bare_tcp": Line(BARE, target=0.75),
    "service.push.f32_over_bare_tcp": Line(BARE, target=0.7),
    "service.pull.int8_wire_over_bare_tcp": Line(f"{BARE}, in f32", target=1.8),
    "service.push.int8_table_over_bare_tcp": Line(f"{BARE}, in f32"),
    "service.pull.unix_over_bare_unix": Line(UNIX),
    "service.push.unix_over_bare_unix": Line(UNIX),
    "service.pull.unix_over_tcp": Line("hotrow over TCP"),
    "service.push.unix_over_tcp": Line("hotrow over TCP"),
    # The service beside its peers.
    "service.pull.f32_over_redis": Line(REDIS, target=8.0),
    "service.push.f32_over_redis": Line(f"{REDIS}, which overwrites", target=8.0),
    "service.push.f32_over_redis_rmw": Line("Redis: MGET, SGD in the client, MSET"),
    "service.pull.f32_over_memcached": Line("memcached, C client"),
    "service.push.f32_over_memcached": Line("memcached, C client, which overwrites"),
    "service.pull.f32_over_grpcio": Line(GRPCIO, target=2.4),
    "service.push.f32_over_grpcio": Line(GRPCIO, target=4.5),
    "service.pull.int8_over_grpcio": Line(f"{GRPCIO}, in f32", target=5.0),
    "service.pull.f32_over_torch_rpc": Line(TORCH, target=2.4),
    "service.push.f32_over_torch_rpc": Line(TORCH, target=4.5),
    "service.pull.int8_over_torch_rpc": Line(f"{TORCH}, in f32", target=5.0),
    "service.latency.p99_over_p50": Line("its p50: 1,024-row pulls at half of the peak load", AT_MOST, 5.0),
    "service.latency.bare_tcp_p99_over_p50": Line("its p50: the same pulls at the same times from a bare TCP server"),
    # The service beside a bare server again, in benches/service.rs: batch after batch, one of each in turn.
    "service.pull.f32": Line(BARE),
    "service.push.f32": Line(BARE),
    "service.pull.int8_over_bare_f32": Line(f"{BARE}, in f32"),
    "service.pull.int8_table.f32_wire": Line(BARE),
    "service.push.int8_table": Line(BARE),
    # Python.
    "python.pull.over_rust": Line("the Rust client"),
    "python.pull.new_arrays": Line("the Rust client"),
    "python.pull.f32_over_bare_tcp": Line(BARE),
    "python.push.f32_over_bare_tcp": Line(BARE),
    "python.pull.f32_over_grpcio": Line(GRPCIO),
    "python.push.f32_over_grpcio": Line(GRPCIO),
    "python.pull.f32_over_torch_rpc": Line(TORCH),
    "python.push.f32_over_torch_rpc": Line(TORCH),
}
