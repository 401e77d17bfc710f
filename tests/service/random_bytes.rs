//! Whatever bytes come, the server answers with a gRPC status and lives.

use bytes::Bytes;
use hotrow::proto::{
    Pooling, PullRequest, PushRequest, StreamRequest, TablePull, TablePush, stream_request::Request as InStream,
};
use hotrow::{Precision, TableSpec};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use prost::Message as _;

use crate::cluster::{Cluster, packed};
use crate::raw::{Raw, framed};

const METHODS: [&str; 4] = ["Pull", "Push", "Stream", "Touch"];

fn pull() -> PullRequest {
    let rows = TablePull { table: "t".into(), keys: packed(&[1u64, 2, 3]), ..Default::default() };
    let bags = TablePull {
        pooling: Pooling::Sum.into(),
        offsets: packed(&[0u64, 1]),
        weights: packed(&[1.0f32; 3]),
        ..rows.clone()
    };
    PullRequest { tables: vec![rows, bags], format: 4, topology_version: 0 }
}

fn push() -> PushRequest {
    let table = TablePush {
        table: "t".into(),
        keys: packed(&[1u64, 2, 3]),
        gradients: packed(&[0.5f32; 6]),
        learning_rate: Some(0.1),
        step: Some(1),
        pooling: Pooling::Mean.into(),
        offsets: packed(&[0u64, 1, 1]),
        bag_sizes: packed(&[1u32, 2, 3]),
        ..Default::default()
    };
    PushRequest { tables: vec![table], ..Default::default() }
}

/// Messages that are fine.
fn good() -> Vec<Vec<u8>> {
    let in_stream = |request| StreamRequest { id: 1, request: Some(request) }.encode_to_vec();
    let streams = [in_stream(InStream::Pull(pull())), in_stream(InStream::Push(push()))];
    [pull().encode_to_vec(), push().encode_to_vec()].into_iter().chain(streams).collect()
}

/// Bytes without any sense.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

/// A message that is fine but for some of its bytes.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..4u8);
    (prop::sample::select(good()), prop::collection::vec(change, 1..6)).prop_map(|(mut message, changes)| {
        for (place, byte, kind) in changes {
            if message.is_empty() {
                break;
            }
            let place = place.index(message.len());
            match kind {
                0 => message[place] = byte,
                1 => message[place] ^= 1 << (byte % 8),
                2 => message.insert(place, byte),
                _ => drop(message.remove(place)),
            }
        }
        message
    })
}

/// A body of one or more messages, framed well or not.
fn body() -> impl Strategy<Value = Bytes> {
    let whole = || {
        prop::collection::vec(prop_oneof![noise(), mutated(), mutated()], 1..4)
            .prop_map(|messages| messages.iter().flat_map(|message| framed(message)).collect::<Bytes>())
    };
    let cut =
        (whole(), any::<prop::sample::Index>()).prop_map(|(whole, end)| whole.slice(..end.index(whole.len() + 1)));
    prop_oneof![4 => whole(), 1 => cut, 1 => noise().prop_map(Bytes::from)]
}

#[test]
fn any_bytes_are_answered_with_a_status() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut cluster = runtime.block_on(async {
        let cluster = Cluster::start(1, &["--max-request", "64KiB"]).await;
        let spec = TableSpec::dense("t", 256, 2).precision(Precision::F32);
        cluster.client().await.create_table(&spec).await.unwrap();
        cluster
    });
    let mut raw = runtime.block_on(Raw::connect(&cluster.shards[0].address));
    for (method, message) in ["Pull", "Push", "Stream", "Stream"].into_iter().zip(good()) {
        let answer = runtime.block_on(raw.post(&format!("/hotrow.v1.Data/{method}"), &[], framed(&message))).unwrap();
        assert_eq!(answer.status.code(), tonic::Code::Ok, "{method}: {}", answer.status);
    }
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000 * crate::scale()) };
    // A new seed for every run; a failure shows the smallest body that fails.
    let result = TestRunner::new(config).run(&(prop::sample::select(METHODS.to_vec()), body()), |(method, body)| {
        let answer = runtime.block_on(raw.clone().post(&format!("/hotrow.v1.Data/{method}"), &[], body));
        let answer = answer.map_err(TestCaseError::fail)?;
        prop_assert_ne!(answer.status.code(), tonic::Code::Internal, "{}", answer.status);
        prop_assert_ne!(answer.status.code(), tonic::Code::Unknown, "{}", answer.status);
        Ok(())
    });
    cluster.check();
    result.unwrap();
}
