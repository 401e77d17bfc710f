//! Bad input gets the right code and a message that helps, changes nothing, and does the server no harm.

use std::time::Duration;

use bytes::Bytes;
use hotrow::client::{Client, Credentials, Options};
use hotrow::proto::{
    AssignRowsRequest, CloseClientRequest, CreateTableRequest, DropTableRequest, InspectRowRequest, OpenClientRequest,
    Pooling, PullRequest, PushRequest, ScanKeysRequest, StreamRequest, TablePull, TablePush, TableSpec as ProtoSpec,
    TableTouch, TouchRequest, WireFormat, stream_request,
};
use hotrow::{Precision, Pull, TableSpec};
use prost::Message as _;
use tempfile::TempDir;
use tonic::{Code, Request, Status};

use crate::cluster::{Cluster, packed};
use crate::raw::{Raw, framed};

const DIM: usize = 2;
const CLIENT: [u8; 16] = [9; 16];

/// Two shards with tokens and small limits, and a table with some rows pushed.
struct Setup {
    cluster: Cluster,
    client: Client,
    raw: Raw,
    _folder: TempDir,
}

/// What must not change.
#[derive(Debug, PartialEq)]
struct State {
    lsns: Vec<u64>,
    open_clients: Vec<u64>,
    memory: Vec<u64>,
    tables: usize,
    rows: Vec<u32>,
    row: hotrow::Row,
}

impl Setup {
    async fn new() -> Setup {
        let folder = tempfile::tempdir().unwrap();
        let (tokens, token) = (folder.path().join("tokens"), folder.path().join("token"));
        std::fs::write(&tokens, "read rrr\nwrite www\nadmin aaa\n").unwrap();
        std::fs::write(&token, "aaa\n").unwrap();
        let (tokens, token) = (tokens.to_str().unwrap(), token.to_str().unwrap());
        let limits = ["--max-request", "64KiB", "--max-response", "32KiB"];
        let flags = [&["--tokens", tokens, "--cluster-token-file", token][..], &limits].concat();
        let cluster = Cluster::start(2, &flags).await;
        let options = Options { credentials: Credentials::default().token("aaa").unwrap(), ..Options::default() };
        let client = cluster.client_with(options).await;
        client.create_table(&TableSpec::dense("t", 256, DIM).precision(Precision::F32)).await.unwrap();
        let open = with_token("www", OpenClientRequest { client_id: CLIENT.to_vec().into() });
        cluster.shards[0].data().open_client(open).await.unwrap();
        cluster.shards[0].data().push(with_token("www", push(|_| {}))).await.unwrap();
        let raw = Raw::connect(&cluster.shards[0].address).await;
        Setup { cluster, client, raw, _folder: folder }
    }

    async fn state(&self) -> State {
        let stats = self.client.stats().await.unwrap();
        let keys: Vec<u64> = (0..256).collect();
        let rows = self.client.pull(&[Pull { table: "t", keys: &keys }]).await.unwrap();
        State {
            lsns: stats.iter().map(|stats| stats.last_lsn).collect(),
            open_clients: stats.iter().map(|stats| stats.open_clients).collect(),
            memory: stats.iter().map(|stats| stats.memory_used).collect(),
            tables: self.client.list_tables().await.unwrap().len(),
            rows: rows.iter().map(|number| number.to_bits()).collect(),
            row: self.client.inspect("t", 1).await.unwrap(),
        }
    }

    /// Posts a framed message to the data service, with a token that may write.
    async fn post(&mut self, method: &str, headers: &[(&'static str, &str)], body: Bytes) -> Status {
        let headers = [&[("authorization", "Bearer www")], headers].concat();
        self.raw.post(&format!("/hotrow.v1.Data/{method}"), &headers, body).await.unwrap().status
    }
}

fn with_token<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

/// A push to shard 0 that would be fine, but for what `spoil` does to it.
fn push(spoil: impl FnOnce(&mut PushRequest)) -> PushRequest {
    let gradients = packed(&[1.0f32; 2 * DIM]);
    let table = TablePush { table: "t".into(), keys: packed(&[1u64, 2]), gradients, ..Default::default() };
    let mut request =
        PushRequest { tables: vec![table], client_id: CLIENT.to_vec().into(), sequence: 1, ..Default::default() };
    spoil(&mut request);
    request
}

/// A pull from shard 0 that would be fine, but for what `spoil` does to it.
fn pull(spoil: impl FnOnce(&mut TablePull)) -> PullRequest {
    let mut table = TablePull { table: "t".into(), keys: packed(&[1u64, 2, 1]), ..Default::default() };
    spoil(&mut table);
    PullRequest { tables: vec![table], ..Default::default() }
}

/// A push of bags, spoilt.
fn bags(spoil: impl FnOnce(&mut TablePush)) -> PushRequest {
    push(|request| {
        let table = &mut request.tables[0];
        table.pooling = Pooling::Sum.into();
        table.offsets = packed(&[0u64, 1]);
        spoil(table);
        request.sequence = 2;
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_and_pushes_that_make_no_sense() {
    use Code::{FailedPrecondition, InvalidArgument, NotFound, OutOfRange, Unimplemented};
    let mut setup = Setup::new().await;
    let before = setup.state().await;
    let pulls: Vec<(&str, PullRequest, Code, &str)> = vec![
        ("unknown table", pull(|t| t.table = "x".into()), NotFound, "unknown table 'x': create it"),
        ("no table", pull(|t| t.table = "".into()), NotFound, "unknown table ''"),
        (
            "odd keys",
            pull(|t| t.keys = vec![0; 9].into()),
            InvalidArgument,
            "keys has 9 bytes, which is not a multiple of 8",
        ),
        (
            "key out of range",
            pull(|t| t.keys = packed(&[256u64])),
            OutOfRange,
            "key 256 is out of range, the table has keys 0 to 255",
        ),
        ("another shard's key", pull(|t| t.keys = packed(&[100u64])), FailedPrecondition, "refresh the topology"),
        ("pooling that does not exist", pull(|t| t.pooling = 9), InvalidArgument, "unknown pooling 9"),
        (
            "offsets without pooling",
            pull(|t| t.offsets = packed(&[0u64])),
            InvalidArgument,
            "offsets and weights go with pooling",
        ),
        ("weights without pooling", pull(|t| t.weights = packed(&[1.0f32; 3])), InvalidArgument, "go with pooling"),
        (
            "offsets that start late",
            pull(|t| (t.pooling, t.offsets) = (1, packed(&[1u64]))),
            InvalidArgument,
            "offsets must start with 0",
        ),
        ("no offsets", pull(|t| t.pooling = 1), InvalidArgument, "offsets must start with 0"),
        (
            "offsets that decrease",
            pull(|t| (t.pooling, t.offsets) = (1, packed(&[0u64, 2, 1]))),
            InvalidArgument,
            "offsets must not decrease",
        ),
        (
            "offsets beyond keys",
            pull(|t| (t.pooling, t.offsets) = (2, packed(&[0u64, 4]))),
            InvalidArgument,
            "not exceed the number of keys, 3",
        ),
        ("huge offsets", pull(|t| (t.pooling, t.offsets) = (2, packed(&[0, u64::MAX]))), InvalidArgument, "not exceed"),
        (
            "odd offsets",
            pull(|t| (t.pooling, t.offsets) = (2, vec![0; 12].into())),
            InvalidArgument,
            "offsets has 12 bytes",
        ),
        (
            "weights with mean",
            pull(|t| (t.pooling, t.offsets, t.weights) = (2, packed(&[0u64]), packed(&[1.0f32; 3]))),
            InvalidArgument,
            "weights go with sum pooling only",
        ),
        (
            "too few weights",
            pull(|t| (t.pooling, t.offsets, t.weights) = (1, packed(&[0u64]), packed(&[1.0f32; 2]))),
            InvalidArgument,
            "weights has 2 elements, expected 3",
        ),
        (
            "odd weights",
            pull(|t| (t.pooling, t.offsets, t.weights) = (1, packed(&[0u64]), vec![0; 13].into())),
            InvalidArgument,
            "weights has 13 bytes",
        ),
        (
            "a weight that is no number",
            pull(|t| (t.pooling, t.offsets, t.weights) = (1, packed(&[0u64]), packed(&[1.0, f32::NAN, 1.0]))),
            InvalidArgument,
            "NaN",
        ),
        ("unknown format", PullRequest { format: 77, ..pull(|_| {}) }, InvalidArgument, "unknown wire format 77"),
        (
            "answer too large",
            pull(|t| t.keys = packed(&[1u64; 5_000])),
            InvalidArgument,
            "the answer would have 40000 bytes, more than the 32768 allowed",
        ),
        (
            "answer of many bags too large",
            pull(|t| (t.pooling, t.offsets) = (1, packed(&[0u64; 5_000]))),
            InvalidArgument,
            "server.max_response",
        ),
        (
            "stale topology",
            PullRequest { topology_version: 5, ..pull(|_| {}) },
            FailedPrecondition,
            "routed by topology 5",
        ),
    ];
    let nan = packed(&[1.0, f32::NAN, 1.0, 1.0]);
    let infinite = packed(&[1.0, f32::NEG_INFINITY, 1.0, 1.0]);
    let half_infinite: Bytes = vec![0, 0, 0, 0x7c, 0, 0, 0, 0].into();
    let pushes: Vec<(&str, PushRequest, Code, &str)> = vec![
        ("unknown table", push(|p| p.tables[0].table = "x".into()), NotFound, "unknown table 'x'"),
        ("a table twice", push(|p| p.tables.push(p.tables[0].clone())), InvalidArgument, "named twice"),
        ("odd keys", push(|p| p.tables[0].keys = vec![0; 15].into()), InvalidArgument, "keys has 15 bytes"),
        (
            "odd gradients",
            push(|p| p.tables[0].gradients = vec![0; 15].into()),
            InvalidArgument,
            "gradients has 15 bytes, expected 16",
        ),
        (
            "too few gradients",
            push(|p| p.tables[0].gradients = packed(&[1.0f32; 3])),
            InvalidArgument,
            "2 keys of dim 2 as f32",
        ),
        (
            "too many gradients",
            push(|p| p.tables[0].gradients = packed(&[1.0f32; 6])),
            InvalidArgument,
            "gradients has 24 bytes, expected 16",
        ),
        (
            "gradients of another format",
            push(|p| p.format = WireFormat::F16.into()),
            InvalidArgument,
            "expected 8: 2 keys of dim 2 as f16",
        ),
        (
            "int8 gradients",
            push(|p| (p.format, p.tables[0].gradients) = (4, vec![0; 8].into())),
            InvalidArgument,
            "int8 would lose the small ones",
        ),
        ("unknown format", push(|p| p.format = -3), InvalidArgument, "unknown wire format -3"),
        (
            "a gradient that is no number",
            push(|p| (p.sequence, p.tables[0].gradients) = (2, nan)),
            InvalidArgument,
            "gradients holds a NaN or an infinity",
        ),
        (
            "an infinite gradient",
            push(|p| (p.sequence, p.tables[0].gradients) = (2, infinite)),
            InvalidArgument,
            "NaN or an infinity",
        ),
        (
            "an infinite f16 gradient",
            push(|p| (p.sequence, p.format, p.tables[0].gradients) = (2, 2, half_infinite)),
            InvalidArgument,
            "NaN or an infinity",
        ),
        ("key out of range", push(|p| p.tables[0].keys = packed(&[1, u64::MAX])), OutOfRange, "is out of range"),
        (
            "another shard's key",
            push(|p| p.tables[0].keys = packed(&[1u64, 100])),
            FailedPrecondition,
            "not owned here",
        ),
        (
            "negative learning rate",
            push(|p| p.tables[0].learning_rate = Some(-1.0)),
            InvalidArgument,
            "learning rate must be finite",
        ),
        ("stale topology", push(|p| p.topology_version = u64::MAX), FailedPrecondition, "ask for the topology again"),
        ("unknown client", push(|p| p.client_id = vec![1; 16].into()), FailedPrecondition, "is not open here"),
        (
            "short client id",
            push(|p| p.client_id = vec![9; 15].into()),
            InvalidArgument,
            "client_id has 15 bytes, it must have 16",
        ),
        ("long client id", push(|p| p.client_id = vec![9; 17].into()), InvalidArgument, "client_id has 17 bytes"),
        ("no sequence", push(|p| p.sequence = 0), FailedPrecondition, "push 0 is too old"),
        (
            "bags that start late",
            bags(|t| t.offsets = packed(&[1u64, 2])),
            InvalidArgument,
            "offsets must start with 0",
        ),
        (
            "bags that decrease",
            bags(|t| (t.offsets, t.gradients) = (packed(&[0u64, 2, 1]), packed(&[1.0f32; 6]))),
            InvalidArgument,
            "offsets must not decrease",
        ),
        (
            "bags beyond keys",
            bags(|t| t.offsets = packed(&[0u64, 3])),
            InvalidArgument,
            "not exceed the number of keys, 2",
        ),
        (
            "weights with mean",
            bags(|t| (t.pooling, t.weights) = (2, packed(&[1.0f32; 2]))),
            InvalidArgument,
            "weights go with sum pooling only",
        ),
        (
            "infinite weight",
            bags(|t| t.weights = packed(&[1.0, f32::INFINITY])),
            InvalidArgument,
            "weights holds a NaN or an infinity",
        ),
        (
            "overflow by weight",
            bags(|t| (t.weights, t.gradients) = (packed(&[1e30f32; 2]), packed(&[1e30f32; 4]))),
            InvalidArgument,
            "NaN or an infinity",
        ),
        ("bag sizes with sum", bags(|t| t.bag_sizes = packed(&[1u32, 1])), InvalidArgument, "bag_sizes go with MEAN"),
        ("bag size 0", bags(|t| (t.pooling, t.bag_sizes) = (2, packed(&[1u32, 0]))), InvalidArgument, "none of them 0"),
        (
            "too few bag sizes",
            bags(|t| (t.pooling, t.bag_sizes) = (2, packed(&[1u32]))),
            InvalidArgument,
            "one for each bag",
        ),
        (
            "odd bag sizes",
            bags(|t| (t.pooling, t.bag_sizes) = (2, vec![0; 6].into())),
            InvalidArgument,
            "bag_sizes has 6 bytes",
        ),
        ("a gradient per key for bags", bags(|t| t.offsets = packed(&[0u64])), InvalidArgument, "1 bags of dim 2"),
    ];

    // Everything by itself, and as a message of a stream, which goes on.
    let mut in_stream = Vec::new();
    for (name, request, code, fragment) in pulls {
        let status = setup.cluster.shards[0].data().pull(with_token("rrr", request.clone())).await.unwrap_err();
        expect(&format!("pull, {name}"), &status, code, fragment);
        in_stream.push((name, stream_request::Request::Pull(request), code, fragment));
    }
    for (name, request, code, fragment) in pushes {
        let status = setup.cluster.shards[0].data().push(with_token("www", request.clone())).await.unwrap_err();
        expect(&format!("push, {name}"), &status, code, fragment);
        let told = status.metadata().contains_key("hotrow-topology-version");
        assert_eq!(told, name.contains("topology") || name.contains("another shard"), "{name}");
        in_stream.push((name, stream_request::Request::Push(request), code, fragment));
    }
    let messages =
        in_stream.iter().zip(1..).map(|((_, request, ..), id)| StreamRequest { id, request: Some(request.clone()) });
    let messages: Vec<StreamRequest> = messages.chain([StreamRequest { id: 999, request: None }]).collect();
    let stream = setup.cluster.shards[0].data().stream(with_token("www", futures_util::stream::iter(messages))).await;
    let mut answers = stream.unwrap().into_inner();
    for ((name, _, code, fragment), id) in in_stream.iter().zip(1..) {
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!((answer.id, Code::from(answer.code)), (id, *code), "{name}");
        assert!(answer.message.contains(fragment), "{name}: {}", answer.message);
        assert_eq!(answer.topology_version != 0, name.contains("topology") || name.contains("another shard"));
    }
    let last = answers.message().await.unwrap().unwrap();
    assert_eq!((last.id, Code::from(last.code)), (999, InvalidArgument));
    assert!(answers.message().await.unwrap().is_none());

    let touch = |table: &str, keys: Bytes| {
        let request = TouchRequest { tables: vec![TableTouch { table: table.into(), keys }], topology_version: 0 };
        with_token("www", request)
    };
    let mut data = setup.cluster.shards[0].data();
    let status = data.touch(touch("x", packed(&[1u64]))).await.unwrap_err();
    expect("touch, unknown table", &status, NotFound, "unknown table");
    let status = data.touch(touch("t", vec![1].into())).await.unwrap_err();
    expect("touch, odd keys", &status, InvalidArgument, "keys has 1 bytes");
    let status = data.touch(touch("t", packed(&[100u64]))).await.unwrap_err();
    expect("touch, another shard's key", &status, FailedPrecondition, "refresh the topology");
    let open = with_token("www", OpenClientRequest { client_id: vec![1; 3].into() });
    expect("open, short id", &data.open_client(open).await.unwrap_err(), InvalidArgument, "it must have 16");
    let close = with_token("www", CloseClientRequest { client_id: Bytes::new() });
    expect("close, no id", &data.close_client(close).await.unwrap_err(), InvalidArgument, "has 0 bytes");

    let mut admin = setup.cluster.shards[0].admin();
    let status = admin.inspect_row(with_token("aaa", InspectRowRequest { table: "t".into(), key: 100 })).await;
    expect("inspect another shard's row", &status.unwrap_err(), FailedPrecondition, "refresh the topology");
    let assign = AssignRowsRequest {
        table: "t".into(),
        keys: packed(&[1u64]),
        weights: vec![0; 7].into(),
        ..Default::default()
    };
    let status = admin.assign_rows(with_token("aaa", assign)).await.unwrap_err();
    expect("assign odd weights", &status, InvalidArgument, "weights has 7 bytes");
    let weights = packed(&[1.0, f32::NAN]);
    let assign = AssignRowsRequest { table: "t".into(), keys: packed(&[1u64]), weights, ..Default::default() };
    let status = admin.assign_rows(with_token("aaa", assign)).await.unwrap_err();
    expect("assign NaN", &status, InvalidArgument, "NaN");
    let scan = ScanKeysRequest { table: "t".into(), cursor: vec![1; 3].into(), limit: 0 };
    let status = admin.scan_keys(with_token("aaa", scan)).await.unwrap_err();
    expect("scan from nowhere", &status, InvalidArgument, "cursor");
    let cursor = packed(&[u32::MAX, u32::MAX]);
    let scan = ScanKeysRequest { table: "t".into(), cursor, limit: 5 };
    // Whether it is refused or has no more keys, it does no harm.
    let _ = admin.scan_keys(with_token("aaa", scan)).await;
    let spec = |name: &str, dim| Some(ProtoSpec { name: name.into(), dim, rows: 10, ..Default::default() });
    let mut tables = setup.cluster.shards[0].tables();
    for (name, spec, code, fragment) in [
        ("no spec", None, InvalidArgument, "spec is missing"),
        ("no dim", spec("new", 0), InvalidArgument, "dim"),
        ("bad name", spec("a b", 4), InvalidArgument, "name"),
        ("another spec", spec("t", 7), Code::AlreadyExists, "different spec"),
    ] {
        let status = tables.create(with_token("aaa", CreateTableRequest { spec, local: false })).await.unwrap_err();
        expect(&format!("create, {name}"), &status, code, fragment);
    }
    let status = setup.post("Pool", &[], framed(b"")).await;
    expect("unknown method", &status, Unimplemented, "no such method");

    assert_eq!(setup.state().await, before);
    setup.cluster.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_what_they_should_be() {
    use Code::{DeadlineExceeded, InvalidArgument, OutOfRange, Unimplemented};
    let mut setup = Setup::new().await;
    let before = setup.state().await;
    let good = framed(&push(|p| p.sequence = 2).encode_to_vec());
    let cut = good.slice(..good.len() - 3);
    let compressed: Bytes = [&[1], &good[1..]].concat().into();
    let large = framed(&push(|p| p.tables[0].keys = vec![0; 80_000].into()).encode_to_vec());
    // It says how long it is; nobody waits for the rest.
    let boast: Bytes = [0u8, 0xff, 0xff, 0xff, 0xff, 1, 2, 3].to_vec().into();
    let cases = [
        ("malformed", framed(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 1]), InvalidArgument, "the message cannot be read"),
        ("not protobuf", framed(&[0xff; 40]), InvalidArgument, "the message cannot be read"),
        ("compressed", compressed, Unimplemented, "compressed messages are not supported"),
        ("cut off", cut, InvalidArgument, "the request ends in the middle of a message"),
        ("cut off in the prefix", good.slice(..3), InvalidArgument, "the request ends in the middle of a message"),
        ("nothing", Bytes::new(), InvalidArgument, "the request has no message"),
        (
            "too large",
            large,
            OutOfRange,
            "more than the 65536 allowed: send fewer rows at a time, or raise server.max_request",
        ),
        ("said to be too large", boast, OutOfRange, "the request has 4294967295 bytes"),
    ];
    for (name, body, code, fragment) in cases {
        for method in ["Pull", "Push", "Touch", "OpenClient", "CloseClient"] {
            let status = setup.post(method, &[], body.clone()).await;
            expect(&format!("{method}, {name}"), &status, code, fragment);
        }
        if name != "nothing" {
            let status = setup.post("Stream", &[], body).await;
            expect(&format!("Stream, {name}"), &status, code, fragment);
        }
    }
    // The other services, which are generated.
    for method in ["Admin/Stats", "Tables/Describe"] {
        let headers = [("authorization", "Bearer aaa")];
        let answer = setup.raw.post(&format!("/hotrow.v1.{method}"), &headers, framed(&[0xff; 9])).await.unwrap();
        assert_ne!(answer.status.code(), Code::Ok, "{method}");
    }
    // A deadline that has passed.
    for timeout in ["0n", "1n"] {
        let status = setup.post("Push", &[("grpc-timeout", timeout)], good.clone()).await;
        expect("deadline", &status, DeadlineExceeded, "the deadline passed");
    }
    let status = setup.post("Push", &[("grpc-timeout", "soon")], good.clone()).await;
    expect("bad timeout", &status, InvalidArgument, "grpc-timeout");
    // A request that is abandoned half-way.
    let (sender, body) = tokio::sync::mpsc::channel(1);
    sender.send(good.slice(..good.len() - 5)).await.unwrap();
    let mut raw = setup.raw.clone();
    let abandoned = tokio::spawn(async move {
        let body = tokio_stream::wrappers::ReceiverStream::new(body);
        raw.post_slowly("/hotrow.v1.Data/Push", &[("authorization", "Bearer www")], body).await.map(|_| ())
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    abandoned.abort();
    let _ = abandoned.await;
    // Methods that do not exist.
    for path in ["/hotrow.v1.Data/Nothing", "/hotrow.v1.Data/", "/hotrow.v1.Data/x/Push", "/hotrow.v2.Data/Push", "/"] {
        let headers = [("authorization", "Bearer aaa")];
        let status = setup.raw.post(path, &headers, good.clone()).await.unwrap().status;
        assert_eq!(status.code(), Unimplemented, "{path}: {status}");
    }
    assert_eq!(setup.state().await, before);
    // All the time it was the bytes that were wrong.
    assert_eq!(setup.post("Push", &[("grpc-timeout", "99999999H")], good).await.code(), Code::Ok);
    assert_ne!(setup.state().await, before);
    setup.cluster.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_without_the_right() {
    use Code::{PermissionDenied, Unauthenticated};
    let mut setup = Setup::new().await;
    let before = setup.state().await;
    let mut data = setup.cluster.shards[0].data();
    let mut tables = setup.cluster.shards[0].tables();
    let good = || push(|p| p.sequence = 2);

    let status = data.push(good()).await.unwrap_err();
    expect("push without a token", &status, Unauthenticated, "authorization: Bearer TOKEN");
    let status = data.pull(pull(|_| {})).await.unwrap_err();
    expect("pull without a token", &status, Unauthenticated, "a token is needed");
    for token in ["", "r", "rrrr", "RRR", "aaa "] {
        let headers = [("authorization", &*format!("Bearer {token}"))];
        let body = framed(&pull(|_| {}).encode_to_vec());
        let answer = setup.raw.post("/hotrow.v1.Data/Pull", &headers, body).await.unwrap();
        // White space around a header's value is no part of it.
        if token != "aaa " {
            assert_eq!(answer.status.code(), Unauthenticated, "token '{token}'");
        }
    }
    for scheme in ["aaa", "bearer", "Basic aaa", "Bearer  aaa"] {
        let answer = setup.raw.post("/hotrow.v1.Data/Pull", &[("authorization", scheme)], framed(b"")).await.unwrap();
        assert_eq!(answer.status.code(), Unauthenticated, "'{scheme}'");
    }
    data.pull(with_token("rrr", pull(|_| {}))).await.unwrap();
    let status = data.push(with_token("rrr", good())).await.unwrap_err();
    expect("push that may only read", &status, PermissionDenied, "this token has the role read, this call needs write");
    let touch =
        TouchRequest { tables: vec![TableTouch { table: "t".into(), keys: packed(&[1u64]) }], topology_version: 0 };
    let status = data.touch(with_token("rrr", touch)).await.unwrap_err();
    expect("touch that may only read", &status, PermissionDenied, "needs write");
    let open = with_token("rrr", OpenClientRequest { client_id: vec![1; 16].into() });
    expect("open that may only read", &data.open_client(open).await.unwrap_err(), PermissionDenied, "needs write");

    // In a stream that may read, pulls are answered and pushes are not.
    let messages = vec![
        StreamRequest { id: 1, request: Some(stream_request::Request::Push(good())) },
        StreamRequest { id: 2, request: Some(stream_request::Request::Pull(pull(|_| {}))) },
    ];
    let stream = data.stream(with_token("rrr", futures_util::stream::iter(messages))).await;
    let mut answers = stream.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    assert_eq!(Code::from(answer.code), PermissionDenied);
    assert!(answer.message.contains("this call needs write"), "{}", answer.message);
    assert_eq!(answers.message().await.unwrap().unwrap().code, 0);
    let stream = data.stream(futures_util::stream::iter(Vec::<StreamRequest>::new())).await;
    assert_eq!(stream.unwrap_err().code(), Unauthenticated);

    let spec = Some(ProtoSpec { name: "new".into(), dim: 4, rows: 10, ..Default::default() });
    for local in [false, true] {
        let create = with_token("www", CreateTableRequest { spec: spec.clone(), local });
        let status = tables.create(create).await.unwrap_err();
        expect("create that may only write", &status, PermissionDenied, "has the role write, this call needs admin");
        let drop = with_token("www", DropTableRequest { table: "t".into(), local });
        expect("drop that may only write", &tables.drop(drop).await.unwrap_err(), PermissionDenied, "needs admin");
    }
    let mut admin = setup.cluster.shards[0].admin();
    let drain = with_token("www", hotrow::proto::DrainRequest {});
    expect("drain that may only write", &admin.drain(drain).await.unwrap_err(), PermissionDenied, "needs admin");
    let status = admin.stats(hotrow::proto::StatsRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Unauthenticated);
    let status = admin.topology(hotrow::proto::TopologyRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Unauthenticated);
    // The health of a server is no secret.
    let answer = setup.raw.post("/grpc.health.v1.Health/Check", &[], framed(b"")).await.unwrap();
    assert_eq!(answer.status.code(), Code::Ok, "{}", answer.status);

    // The client says so too.
    let options = Options {
        credentials: Credentials::default().token("rrr").unwrap(),
        timeout: Duration::from_secs(5),
        ..Options::default()
    };
    let reader = setup.cluster.client_with(options).await;
    reader.pull(&[Pull { table: "t", keys: &[1, 200] }]).await.unwrap();
    let gradients = [1.0; 2 * DIM];
    let push = hotrow::Push { table: "t", keys: &[1, 200], gradients: &gradients, ..Default::default() };
    let error = reader.push(&[push]).await.unwrap_err().to_string();
    assert!(error.contains("has the role read, this call needs write"), "{error}");
    assert_eq!(setup.state().await, before);
    setup.cluster.check();
}

/// Fails unless a status has this code, and a message that says this.
fn expect(name: &str, status: &Status, code: Code, fragment: &str) {
    assert_eq!(status.code(), code, "{name}: {status}");
    assert!(status.message().contains(fragment), "{name}: {}", status.message());
}
