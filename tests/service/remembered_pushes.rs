//! What a shard remembers of a client: a duplicate is not applied again, and a retry that is too old is refused.

use hotrow::proto::data_client::DataClient;
use hotrow::proto::{
    CloseClientRequest, InspectRowRequest, OpenClientRequest, PushRequest, PushResponse, StreamRequest, TablePush,
    stream_request, stream_response,
};
use hotrow::{Initializer, Optimizer, Precision, TableSpec};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::cluster::{Cluster, packed};

const CLIENT: [u8; 16] = [7; 16];

fn request(sequence: u64) -> PushRequest {
    let gradients = packed(&[-1.0f32]);
    let table = TablePush { table: "t".into(), keys: packed(&[3u64]), gradients, ..Default::default() };
    PushRequest { tables: vec![table], client_id: CLIENT.to_vec().into(), sequence, ..Default::default() }
}

async fn push(data: &mut DataClient<Channel>, sequence: u64) -> Result<PushResponse, Status> {
    data.push(request(sequence)).await.map(tonic::Response::into_inner)
}

async fn cluster(flags: &[&str]) -> Cluster {
    let cluster = Cluster::start(1, flags).await;
    let spec = TableSpec::dense("t", 10, 1)
        .precision(Precision::F32)
        .optimizer(Optimizer::Sgd, 1.0)
        .initializer(Initializer::Zeros);
    cluster.client().await.create_table(&spec).await.unwrap();
    let open = OpenClientRequest { client_id: CLIENT.to_vec().into() };
    cluster.shards[0].data().open_client(open).await.unwrap();
    cluster
}

/// How many pushes the row has seen.
async fn applied(cluster: &Cluster) -> f32 {
    let request = InspectRowRequest { table: "t".into(), key: 3 };
    let row = cluster.shards[0].admin().inspect_row(request).await.unwrap().into_inner();
    bytemuck::pod_read_unaligned(&row.weights)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_is_not_applied_twice() {
    let cluster = cluster(&[]).await;
    let mut data = cluster.shards[0].data();
    let first = push(&mut data, 1).await.unwrap();
    let again = push(&mut data, 1).await.unwrap();
    assert_eq!((first.duplicate, again.duplicate), (false, true));
    assert_eq!(applied(&cluster).await, 1.0);
    // Opening the client again does not forget.
    data.open_client(OpenClientRequest { client_id: CLIENT.to_vec().into() }).await.unwrap();
    assert!(push(&mut data, 1).await.unwrap().duplicate);
    // Nor does it matter whether a push comes by itself or in a stream.
    let messages: Vec<_> = [1, 2, 2]
        .map(|sequence| StreamRequest { id: sequence, request: Some(stream_request::Request::Push(request(sequence))) })
        .into();
    let mut answers = data.stream(futures_util::stream::iter(messages)).await.unwrap().into_inner();
    for expected in [true, false, true] {
        let answer = answers.message().await.unwrap().unwrap();
        let Some(stream_response::Response::Push(pushed)) = answer.response else { panic!("{answer:?}") };
        assert_eq!(pushed.duplicate, expected);
    }
    assert_eq!(applied(&cluster).await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_beyond_the_window_is_refused() {
    let cluster = cluster(&[]).await;
    let mut data = cluster.shards[0].data();
    for sequence in (1..=100).filter(|sequence| ![7, 35, 36].contains(sequence)) {
        assert!(!push(&mut data, sequence).await.unwrap().duplicate);
    }
    assert_eq!(applied(&cluster).await, 97.0);
    // Those that were never applied, and those that were: nobody can tell any more.
    for old in [7, 35, 1, 0] {
        let status = push(&mut data, old).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains(&format!("push {old} is too old")), "{status}");
        assert!(status.message().contains("not applied"), "{status}");
        assert!(!status.metadata().contains_key("hotrow-topology-version"), "it is not the topology's fault");
    }
    assert_eq!(applied(&cluster).await, 97.0);
    // The oldest that is remembered.
    assert!(!push(&mut data, 36).await.unwrap().duplicate);
    assert!(push(&mut data, 36).await.unwrap().duplicate);
    assert_eq!(applied(&cluster).await, 98.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_gone_is_refused() {
    let cluster = cluster(&["--client-idle-seconds", "1"]).await;
    let mut data = cluster.shards[0].data();
    push(&mut data, 1).await.unwrap();
    data.close_client(CloseClientRequest { client_id: CLIENT.to_vec().into() }).await.unwrap();
    let status = push(&mut data, 1).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("is not open here"), "{status}");
    assert_eq!(applied(&cluster).await, 1.0);

    // One that says nothing for too long is forgotten; one that pushes is not.
    data.open_client(OpenClientRequest { client_id: CLIENT.to_vec().into() }).await.unwrap();
    for sequence in 2..10 {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        push(&mut data, sequence).await.unwrap();
    }
    crate::until("the client is forgotten", async || {
        let stats = cluster.shards[0].admin().stats(hotrow::proto::StatsRequest::default()).await.unwrap();
        stats.into_inner().open_clients == 0
    })
    .await;
    assert_eq!(push(&mut data, 10).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(applied(&cluster).await, 9.0);
}
