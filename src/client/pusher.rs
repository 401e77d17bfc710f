//! One client's pushes to one shard: one ordered stream, that survives cut connections.
//!
//! Pushes that have no answer yet are kept. When the stream breaks they are sent again, in order, on a new one; the
//! shard recognises those that it has applied.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::backoff::Backoff;
use super::channel;
use super::credentials::Credentials;
use super::error::{Error, Result, is_transient};
use super::push::Finish;
use crate::framing::{Outgoing, Requests};
use crate::proto;
use crate::proto::stream_response::Response;

/// Pushes without an answer.
pub const IN_FLIGHT: usize = 32;
/// How far apart their sequences may be: so many below the highest a shard remembers. Sequences that went to other shards
/// count too, so few pushes can be far apart.
const REMEMBERED: u64 = 64;

const NO_ANSWER: &str = "no answer came";

/// A push on its way.
pub struct Job {
    /// What to send.
    pub request: proto::PushRequest,
    /// When to give up.
    pub deadline: Instant,
    /// When it was begun.
    pub begun: Instant,
    /// Where the outcome goes.
    pub done: oneshot::Sender<Result<bool>>,
    /// Dropped with the job, after the outcome was sent.
    pub _finish: Arc<Finish>,
}

/// A pusher at work. It ends when there is nobody left to send it jobs.
pub struct Started {
    /// Where jobs go.
    pub jobs: mpsc::Sender<Job>,
    /// Ends with the pusher.
    pub task: JoinHandle<()>,
}

/// Who pushes where.
pub struct Pusher {
    /// Which shard.
    pub shard: u32,
    /// Where it is.
    pub address: String,
    /// A connection of its own: pulls use others.
    pub channel: Channel,
    /// What is shown to the shard.
    pub credentials: Credentials,
    /// Who pushes.
    pub client_id: Bytes,
}

impl Pusher {
    /// Starts to push what it is sent.
    pub fn start(self) -> Started {
        let (jobs, queue) = mpsc::channel(IN_FLIGHT);
        let task = tokio::spawn(async move { self.run(queue).await });
        Started { jobs, task }
    }

    async fn run(self, mut queue: mpsc::Receiver<Job>) {
        let mut waiting: VecDeque<Job> = VecDeque::new();
        let mut backoff = Backoff::default();
        let mut open = false;
        // What the shard said last: it tells more than that it says nothing now.
        let mut said: Option<Status> = None;
        loop {
            if waiting.is_empty() {
                match queue.recv().await {
                    Some(job) => waiting.push_back(job),
                    None => break,
                }
            }
            let streamed = self.stream(&mut open, &mut waiting, &mut queue, &mut backoff, &mut said).await;
            let Err(status) = streamed else { continue };
            if status.message() != NO_ANSWER {
                // A final refusal is about one push; only a passing one explains why others wait.
                said = is_transient(&status).then(|| status.clone());
                self.give_up(&mut waiting, &status);
            } else {
                self.give_up(&mut waiting, said.as_ref().unwrap_or(&status));
            }
            if let Some(first) = waiting.front() {
                // Whoever waits is told when the deadline passes, not after the next attempt.
                let _ = tokio::time::timeout_at(first.deadline.into(), backoff.wait()).await;
            }
        }
        if open {
            let request = proto::CloseClientRequest { client_id: self.client_id.clone() };
            // Best effort: a client that is not closed expires.
            let _ = channel::data(self.channel.clone()).close_client(self.credentials.request(request)).await;
        }
    }

    /// Opens a stream, sends what waits, and goes on until the stream ends or nothing waits and the queue is closed.
    async fn stream(
        &self,
        open: &mut bool,
        waiting: &mut VecDeque<Job>,
        queue: &mut mpsc::Receiver<Job>,
        backoff: &mut Backoff,
        said: &mut Option<Status>,
    ) -> std::result::Result<(), Status> {
        let mut data = channel::data(self.channel.clone());
        let no_answer = || Status::deadline_exceeded(NO_ANSWER);
        // The first deadline; those of later pushes are later.
        let deadline = waiting[0].deadline.into();
        if !*open {
            let request = proto::OpenClientRequest { client_id: self.client_id.clone() };
            let opening = data.open_client(self.credentials.request(request));
            tokio::time::timeout_at(deadline, opening).await.map_err(|_| no_answer())??;
            *open = true;
        }
        let (sender, body) = mpsc::channel(IN_FLIGHT);
        // How many of those that wait were sent. One that is too far from another waits until that one is answered: if the
        // answer were lost, the shard could not tell any more whether it has applied the earlier one.
        let mut sent = 0;
        let send = |waiting: &VecDeque<Job>, sent: &mut usize| {
            while let Some(job) = waiting.get(*sent) {
                let sequence = job.request.sequence;
                if waiting.iter().take(*sent).any(|other| other.request.sequence.abs_diff(sequence) > REMEMBERED) {
                    return;
                }
                // There is room for as many as may wait.
                let _ = sender.try_send(Outgoing::push(sequence, &job.request));
                *sent += 1;
            }
        };
        send(waiting, &mut sent);
        let body = Requests::new(ReceiverStream::new(body));
        let beginning = channel::send(self.channel.clone(), "/hotrow.v1.Data/Stream", body, &self.credentials, None);
        let mut answers = tokio::time::timeout_at(deadline, beginning).await.map_err(|_| no_answer())??;
        let mut closed = false;
        loop {
            let deadline = waiting.front().map(|job| job.deadline.into());
            tokio::select! {
                answer = answers.next() => {
                    let Some(answer) = answer? else {
                        let ended = || Status::unavailable("the shard has ended the stream");
                        return Err(answers.status().filter(|status| status.code() != Code::Ok).unwrap_or_else(ended));
                    };
                    let answer = proto::StreamResponse::decode(answer)
                        .map_err(|e| Status::unknown(format!("the answer cannot be read: {e}")))?;
                    if let Some(place) = waiting.iter().take(sent).position(|job| job.request.sequence == answer.id) {
                        backoff.reset();
                        *said = None;
                        let job = waiting.remove(place).expect("the place was found");
                        sent -= 1;
                        // Whoever no longer waits for it does not mind.
                        let _ = job.done.send(self.outcome(answer));
                    }
                }
                () = sleep_until(deadline) => return Err(no_answer()),
                job = queue.recv(), if waiting.len() < IN_FLIGHT && !closed => match job {
                    Some(job) => waiting.push_back(job),
                    None => closed = true,
                },
            }
            send(waiting, &mut sent);
            if closed && waiting.is_empty() {
                return Ok(());
            }
        }
    }

    fn outcome(&self, answer: proto::StreamResponse) -> Result<bool> {
        match (answer.code, answer.response) {
            (0, Some(Response::Push(pushed))) => Ok(pushed.duplicate),
            (0, _) => Err(self.refused(Code::Internal, "the answer is not one to a push".into())),
            _ if answer.topology_version != 0 => Err(Error::StaleTopology),
            (code, _) => Err(self.refused(Code::from(code), answer.message)),
        }
    }

    fn refused(&self, code: Code, message: String) -> Error {
        Error::Refused { shard: self.shard, address: self.address.clone(), code, message }
    }

    /// Ends those that waiting longer does not help.
    fn give_up(&self, waiting: &mut VecDeque<Job>, status: &Status) {
        let now = Instant::now();
        let hopeless = !is_transient(status);
        // The shard answers in order, so a message that it cannot take is the first without an answer. Who may not push
        // at all may not push the others either.
        let all = matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented);
        if hopeless
            && !all
            && let Some(job) = waiting.pop_front()
        {
            let _ = job.done.send(Err(self.refused(status.code(), status.message().into())));
        }
        let mut kept = VecDeque::new();
        for job in waiting.drain(..) {
            if hopeless && all {
                let _ = job.done.send(Err(self.refused(status.code(), status.message().into())));
            } else if now >= job.deadline {
                let error = Error::TimedOut {
                    shard: self.shard,
                    address: self.address.clone(),
                    seconds: (now - job.begun).as_secs_f64(),
                    last: describe(status),
                };
                let _ = job.done.send(Err(error));
            } else {
                kept.push_back(job);
            }
        }
        *waiting = kept;
    }
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// A status with what caused it.
pub fn describe(status: &Status) -> String {
    let mut text = status.message().to_string();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
