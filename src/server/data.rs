//! The data service: pulls, pushes, streams of both.
//!
//! It stands on HTTP requests rather than on generated code so that rows go from the engine's hands to the socket without
//! a copy (`framing.rs`). Requests are turned into the engine's own types here; nothing generated goes further down.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Request, Response};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use super::auth::Role;
use super::gate::{Deadline, Room};
use super::shard::Shard;
use super::status;
use crate::engine::{ClientId, Lsn, Origin, PooledPull, Pooling, Pull, Pushed, RowFormat, Touch, check_bags};
use crate::error::{Error, Result as EngineResult};
use crate::framing::{Answer, Messages, Outer, Outgoing, PULL_RESPONSE_ROWS};
use crate::{proto, wire};

/// A field number of `data.proto`.
const STREAM_RESPONSE_PULL: u32 = 6;

/// Answers of a stream that may wait for the log or the connection: as many as clients have under way.
const STREAM_AHEAD: usize = 32;

/// The data service of a shard.
#[derive(Clone)]
pub struct DataService {
    shard: Arc<Shard>,
}

impl DataService {
    /// That of `shard`.
    pub fn new(shard: Arc<Shard>) -> DataService {
        DataService { shard }
    }
}

impl NamedService for DataService {
    const NAME: &'static str = "hotrow.v1.Data";
}

impl Service<Request<Body>> for DataService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shard = Arc::clone(&self.shard);
        Box::pin(async move { Ok(answer(shard, request).await.unwrap_or_else(Status::into_http)) })
    }
}

async fn answer(shard: Arc<Shard>, request: Request<Body>) -> Result<Response<Body>, Status> {
    let (parts, body) = request.into_parts();
    let deadline = parts.extensions.get().copied().unwrap_or(Deadline(None));
    let role = parts.extensions.get().copied().unwrap_or(Role::Read);
    let room = parts.extensions.get::<Room>().cloned();
    let mut messages = Messages::new(body, shard.max_request);
    let outgoing = match parts.uri.path().strip_prefix("/hotrow.v1.Data/") {
        Some("Stream") => return Ok(stream(shard, messages, role, room)),
        Some("Pull") => {
            let request = decode::<proto::PullRequest>(messages.only().await?)?;
            deadline.check()?;
            let (head, rows) = pull(&shard, &request)?;
            Outgoing::with_payload(&head, PULL_RESPONSE_ROWS, rows, None)
        }
        Some("Push") => {
            let request = decode::<proto::PushRequest>(messages.only().await?)?;
            shard.room_in_log().await;
            deadline.check()?;
            let pushed = push(&shard, &request)?;
            shard.safe(Lsn(pushed.lsn)).await?;
            Outgoing::message(&pushed)
        }
        Some("Touch") => {
            let request = decode::<proto::TouchRequest>(messages.only().await?)?;
            shard.room_in_log().await;
            deadline.check()?;
            let touched = touch(&shard, &request)?;
            shard.safe(Lsn(touched.lsn)).await?;
            Outgoing::message(&touched)
        }
        Some("OpenClient") => {
            let request = decode::<proto::OpenClientRequest>(messages.only().await?)?;
            let client = client_id(&request.client_id)?;
            let lsn = shard.engine.open_client(client).map_err(|e| shard.status(e))?;
            shard.heard_of.insert(client, Instant::now());
            shard.safe(lsn).await?;
            Outgoing::message(&proto::OpenClientResponse { idle_seconds: shard.client_idle.as_secs() })
        }
        Some("CloseClient") => {
            let request = decode::<proto::CloseClientRequest>(messages.only().await?)?;
            let client = client_id(&request.client_id)?;
            let lsn = shard.engine.close_client(client).map_err(|e| shard.status(e))?;
            shard.heard_of.remove(&client);
            shard.safe(lsn).await?;
            Outgoing::message(&proto::CloseClientResponse {})
        }
        _ => return Err(Status::unimplemented("no such method: is the client newer than the server?")),
    };
    Ok(Answer::response(tokio_stream::once(Ok((outgoing, room)))))
}

fn decode<M: prost::Message + Default>(bytes: Bytes) -> Result<M, Status> {
    M::decode(bytes).map_err(|e| Status::invalid_argument(format!("the message cannot be read: {e}")))
}

fn client_id(bytes: &[u8]) -> Result<ClientId, Status> {
    let id: [u8; 16] = bytes
        .try_into()
        .map_err(|_| Status::invalid_argument(format!("client_id has {} bytes, it must have 16", bytes.len())))?;
    Ok(ClientId(u128::from_be_bytes(id)))
}

/// Answers the messages of a stream, one after the other. Where there is no room the stream waits, and through it its
/// caller: to refuse one push and take the next would change their order.
fn stream(shard: Arc<Shard>, mut messages: Messages, role: Role, room: Option<Room>) -> Response<Body> {
    let (answers, body) = mpsc::channel(STREAM_AHEAD);
    let logged = Arc::clone(&shard);
    let room_of_answers = room.clone();
    tokio::spawn(async move {
        let _room = room;
        let mut draining = shard.draining.subscribe();
        loop {
            let message = tokio::select! {
                biased;
                message = messages.next() => message,
                _ = draining.wait_for(|draining| *draining) => Err(status::draining()),
            };
            let answer = match message {
                Ok(None) => return,
                Err(status) => Err(status),
                Ok(Some(message)) => match decode::<proto::StreamRequest>(message) {
                    Err(status) => Err(status),
                    Ok(request) => {
                        let permit = Arc::clone(&shard.in_flight).acquire_owned().await;
                        let permit = permit.expect("the semaphore is never closed");
                        shard.room_in_log().await;
                        let done = answer_one(&shard, request, role);
                        // Rows take room until they have left. An answer to a push takes none: it may wait for the disk.
                        let permit = done.change.is_none().then_some(permit);
                        Ok((done, permit))
                    }
                },
            };
            let last = answer.is_err();
            if answers.send(answer).await.is_err() || last {
                return;
            }
        }
    });
    // A push is answered when it is safe; those behind it are applied meanwhile, so that one sync serves many.
    let body = ReceiverStream::new(body).then(move |answer| {
        let (shard, room) = (Arc::clone(&logged), room_of_answers.clone());
        async move {
            let _room = room;
            let (done, permit): (Done, _) = answer?;
            let answer = match (done.answer, done.change) {
                (Ok(answer), Some(change)) => shard.safe(change).await.map(|()| answer),
                (answer, _) => answer,
            };
            let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
            shard.metrics.finished(done.method, code, done.begun.elapsed());
            match answer {
                Ok(answer) => Ok((answer, permit)),
                // The shard cannot go on: the stream ends, and its client tries again.
                Err(status) if status.code() == Code::Unavailable => Err(status),
                Err(status) => Ok((in_band(done.id, &status), permit)),
            }
        }
    });
    Answer::response(Box::pin(body))
}

/// What became of one message of a stream.
struct Done {
    id: u64,
    method: &'static str,
    begun: Instant,
    answer: Result<Outgoing, Status>,
    /// The change that must be safe before the answer is sent.
    change: Option<Lsn>,
}

fn answer_one(shard: &Shard, request: proto::StreamRequest, role: Role) -> Done {
    use proto::stream_request::Request;
    use proto::stream_response::Response;
    let begun = Instant::now();
    let id = request.id;
    let mut change = None;
    let (method, answer) = match &request.request {
        Some(Request::Pull(request)) => {
            let answer = pull(shard, request).map(|(head, rows)| {
                let before = &proto::StreamResponse { id, ..Default::default() };
                let outer = Some(Outer { before, tag: STREAM_RESPONSE_PULL });
                Outgoing::with_payload(&head, PULL_RESPONSE_ROWS, rows, outer)
            });
            ("Data/Stream.Pull", answer)
        }
        Some(Request::Push(request)) => {
            let answer = role.require(Role::Write).and_then(|()| push(shard, request)).map(|response| {
                change = Some(Lsn(response.lsn));
                let response = Some(Response::Push(response));
                Outgoing::message(&proto::StreamResponse { id, response, ..Default::default() })
            });
            ("Data/Stream.Push", answer)
        }
        None => ("Data/Stream", Err(Status::invalid_argument("the message holds neither a pull nor a push"))),
    };
    Done { id, method, begun, answer, change }
}

/// A refusal that does not end the stream.
fn in_band(id: u64, status: &Status) -> Outgoing {
    let version = status.metadata().get(status::TOPOLOGY_VERSION).and_then(|v| v.to_str().ok()?.parse().ok());
    Outgoing::message(&proto::StreamResponse {
        id,
        code: status.code() as i32,
        message: status.message().into(),
        topology_version: version.unwrap_or(0),
        response: None,
    })
}

/// A table's part of a pull, ready for the engine.
enum Part<'a> {
    Rows { table: &'a str, keys: Cow<'a, [u64]> },
    Bags { table: &'a str, keys: Cow<'a, [u64]>, bags: Bags<'a> },
}

/// How keys make bags.
struct Bags<'a> {
    pooling: Pooling,
    offsets: Cow<'a, [u64]>,
    weights: Option<Cow<'a, [f32]>>,
}

impl<'a> Bags<'a> {
    fn read(table: &str, pooling: i32, offsets: &'a [u8], weights: &'a [u8]) -> EngineResult<Option<Bags<'a>>> {
        let pooling = match proto::Pooling::try_from(pooling) {
            Ok(proto::Pooling::None) => None,
            Ok(proto::Pooling::Sum) => Some(Pooling::Sum),
            Ok(proto::Pooling::Mean) => Some(Pooling::Mean),
            Err(_) => return Err(invalid(table, format!("unknown pooling {pooling}"))),
        };
        let Some(pooling) = pooling else {
            if !offsets.is_empty() || !weights.is_empty() {
                return Err(invalid(table, "offsets and weights go with pooling: set it to SUM or MEAN".into()));
            }
            return Ok(None);
        };
        let offsets = wire::numbers(table, "offsets", offsets)?;
        let weights = (!weights.is_empty()).then(|| wire::numbers(table, "weights", weights)).transpose()?;
        Ok(Some(Bags { pooling, offsets, weights }))
    }
}

fn invalid(table: &str, reason: String) -> Error {
    Error::InvalidRequest { table: table.into(), reason }
}

fn pull(shard: &Shard, request: &proto::PullRequest) -> Result<(proto::PullResponse, Bytes), Status> {
    shard.check_topology(request.topology_version)?;
    read(shard, request).map_err(|e| shard.status(e))
}

/// Refuses a request whose answer would be too large.
pub(super) fn check_response(shard: &Shard, table: &str, bytes: usize) -> EngineResult<()> {
    let most = shard.max_response;
    if bytes <= most {
        return Ok(());
    }
    let reason = format!(
        "the answer would have {bytes} bytes, more than the {most} allowed: ask for fewer rows at a time, or raise server.max_response"
    );
    Err(invalid(table, reason))
}

fn read(shard: &Shard, request: &proto::PullRequest) -> EngineResult<(proto::PullResponse, Bytes)> {
    let format = wire::row_format(request.format)?;
    let mut parts = Vec::with_capacity(request.tables.len());
    let mut dims = Vec::with_capacity(request.tables.len());
    let mut sizes = Vec::with_capacity(request.tables.len());
    for pull in &request.tables {
        let table = pull.table.as_str();
        let dim = shard.engine.dim(table)?;
        let keys = wire::numbers(table, "keys", &pull.keys)?;
        let (part, rows) = match Bags::read(table, pull.pooling, &pull.offsets, &pull.weights)? {
            None => {
                let rows = keys.len();
                (Part::Rows { table, keys }, rows)
            }
            Some(bags) => {
                let rows = bags.offsets.len();
                (Part::Bags { table, keys, bags }, rows)
            }
        };
        parts.push(part);
        dims.push(dim as u32);
        sizes.push(rows.saturating_mul(format.row_bytes(dim)));
    }
    let bytes = sizes.iter().fold(0usize, |sum, &size| sum.saturating_add(size));
    check_response(shard, request.tables.first().map_or("", |pull| &pull.table), bytes)?;
    let mut buffer = shard.buffers.take(bytes);
    let mut rest = buffer.bytes_mut();
    // Neighbours of the same kind go to the engine together.
    let mut first = 0;
    while first < parts.len() {
        let kind = std::mem::discriminant(&parts[first]);
        let count = parts[first..].iter().take_while(|part| std::mem::discriminant(*part) == kind).count();
        let (out, others) = rest.split_at_mut(sizes[first..first + count].iter().sum());
        rest = others;
        read_alike(shard, format, &parts[first..first + count], out)?;
        first += count;
    }
    Ok((proto::PullResponse { rows: Bytes::new(), dims }, buffer.freeze()))
}

/// Parts of one kind.
fn read_alike(shard: &Shard, format: RowFormat, parts: &[Part<'_>], out: &mut [u8]) -> EngineResult<()> {
    let (mut pulls, mut pooled) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Part::Rows { table, keys } => pulls.push(Pull { table, keys }),
            Part::Bags { table, keys, bags } => pooled.push(PooledPull {
                table,
                keys,
                offsets: &bags.offsets,
                weights: bags.weights.as_deref(),
                pooling: bags.pooling,
            }),
        }
    }
    match pooled.is_empty() {
        true => shard.engine.pull_as(format, &pulls, out),
        false => shard.engine.pull_pooled_as(format, &pooled, out),
    }
}

fn push(shard: &Shard, request: &proto::PushRequest) -> Result<proto::PushResponse, Status> {
    shard.check_topology(request.topology_version)?;
    let origin = match request.client_id.is_empty() {
        true => None,
        false => Some(Origin { client: client_id(&request.client_id)?, sequence: request.sequence }),
    };
    if let Some(origin) = origin {
        // Before it is applied, so that it is not forgotten meanwhile; only clients that are open are kept.
        shard.heard_of.alter(&origin.client, |_, _| Instant::now());
    }
    let pushed = write(shard, request, origin).map_err(|e| shard.status(e))?;
    Ok(proto::PushResponse { lsn: pushed.lsn.0, duplicate: pushed.duplicate })
}

fn write(shard: &Shard, request: &proto::PushRequest, origin: Option<Origin>) -> EngineResult<Pushed> {
    let format = wire::row_format(request.format)?;
    let mut numbers = Vec::with_capacity(request.tables.len());
    for push in &request.tables {
        let keys = wire::numbers(&push.table, "keys", &push.keys)?;
        let gradients = gradients(shard, format, push, &keys)?;
        numbers.push((keys, gradients));
    }
    let pushes = wire::pushes(&request.tables, &numbers);
    match origin {
        Some(origin) => shard.engine.push_once(origin, &pushes),
        None => Ok(Pushed { lsn: shard.engine.push(&pushes)?, duplicate: false }),
    }
}

/// One gradient per key at f32, from what came over the wire.
fn gradients<'a>(
    shard: &Shard,
    format: RowFormat,
    push: &'a proto::TablePush,
    keys: &[u64],
) -> EngineResult<Cow<'a, [f32]>> {
    let table = push.table.as_str();
    let dim = shard.engine.dim(table)?;
    let bags = Bags::read(table, push.pooling, &push.offsets, &push.weights)?;
    let rows = bags.as_ref().map_or(keys.len(), |bags| bags.offsets.len());
    let expected = rows.saturating_mul(format.row_bytes(dim));
    if push.gradients.len() != expected {
        let actual = push.gradients.len();
        let what = if bags.is_some() { "bags" } else { "keys" };
        let reason =
            format!("gradients has {actual} bytes, expected {expected}: {rows} {what} of dim {dim} as {format}");
        return Err(invalid(table, reason));
    }
    let sent = match format {
        RowFormat::F32 => wire::numbers(table, "gradients", &push.gradients)?,
        RowFormat::F16 | RowFormat::Bf16 => {
            let mut numbers = vec![0.0; rows * dim];
            format.decode(&push.gradients, dim, &mut numbers);
            Cow::Owned(numbers)
        }
        RowFormat::Int8 => {
            return Err(invalid(table, "gradients travel as f32, f16 or bf16: int8 would lose the small ones".into()));
        }
    };
    let Some(bags) = bags else {
        if !push.bag_sizes.is_empty() {
            return Err(invalid(table, "bag_sizes go with pooling: set it to MEAN".into()));
        }
        return Ok(sent);
    };
    check_bags(table, keys.len(), &bags.offsets, bags.weights.as_deref(), bags.pooling)?;
    let sizes: Cow<'_, [u32]> = wire::numbers(table, "bag_sizes", &push.bag_sizes)?;
    if !sizes.is_empty() && (bags.pooling != Pooling::Mean || sizes.len() != rows || sizes.contains(&0)) {
        return Err(invalid(table, "bag_sizes go with MEAN pooling: one for each bag, none of them 0".into()));
    }
    let mut expanded = vec![0.0f32; keys.len() * dim];
    for bag in 0..rows {
        let start = bags.offsets[bag] as usize;
        let end = bags.offsets.get(bag + 1).map_or(keys.len(), |&end| end as usize);
        let gradient = &sent[bag * dim..][..dim];
        let size = sizes.get(bag).map_or((end - start) as f32, |&size| size as f32);
        for key in start..end {
            let out = &mut expanded[key * dim..][..dim];
            match (bags.pooling, bags.weights.as_deref()) {
                (Pooling::Mean, _) => out.iter_mut().zip(gradient).for_each(|(out, g)| *out = g / size),
                (Pooling::Sum, Some(weights)) => {
                    out.iter_mut().zip(gradient).for_each(|(out, g)| *out = g * weights[key]);
                }
                (Pooling::Sum, None) => out.copy_from_slice(gradient),
            }
        }
    }
    Ok(Cow::Owned(expanded))
}

fn touch(shard: &Shard, request: &proto::TouchRequest) -> Result<proto::TouchResponse, Status> {
    shard.check_topology(request.topology_version)?;
    let touch = || -> EngineResult<u64> {
        let keys = request
            .tables
            .iter()
            .map(|touch| wire::numbers::<u64>(&touch.table, "keys", &touch.keys))
            .collect::<EngineResult<Vec<_>>>()?;
        let touches: Vec<Touch<'_>> =
            request.tables.iter().zip(&keys).map(|(touch, keys)| Touch { table: &touch.table, keys }).collect();
        Ok(shard.engine.touch(&touches)?.0)
    };
    Ok(proto::TouchResponse { lsn: touch().map_err(|e| shard.status(e))? })
}
