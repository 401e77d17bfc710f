//! What can go wrong for a client.

use tonic::{Code, Status};

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The client was set up wrongly.
    #[error("{0}")]
    Setup(String),
    /// The request makes no sense; it was not sent.
    #[error(transparent)]
    Invalid(#[from] crate::error::Error),
    /// A shard refused the request. It changed nothing there.
    #[error("shard {shard} ({address}) refused: {message} [{code:?}]")]
    Refused {
        /// Which shard.
        shard: u32,
        /// Where it is.
        address: String,
        /// The gRPC code.
        code: Code,
        /// What it said.
        message: String,
    },
    /// A shard could not be reached in time, or did not answer. A push may or may not have been applied there:
    /// [`super::Client::push_again`] with its sequence finds out.
    #[error("shard {shard} ({address}) did not answer within {seconds:.1} s: {last}")]
    TimedOut {
        /// Which shard.
        shard: u32,
        /// Where it is.
        address: String,
        /// How long was waited.
        seconds: f64,
        /// What the last attempt said.
        last: String,
    },
    /// The shards changed their topology; the client has to ask for it again, and does.
    #[error("the topology has changed")]
    StaleTopology,
    /// A push failed on one shard or more.
    #[error("push {sequence} failed: {cause}; push_again({sequence}, ..) tries again and applies nothing twice")]
    Push {
        /// The push.
        sequence: u64,
        /// The first failure.
        cause: Box<Error>,
    },
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Whether trying again may help.
pub(super) fn is_transient(status: &Status) -> bool {
    match status.code() {
        // `Unknown` is what a connection that was cut in the middle looks like, and tonic's own timeout is `Cancelled`.
        // Every error of a server has a code of its own.
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Unknown => true,
        // A stream that was reset is `Internal`, with its cause; what a server says itself has none.
        Code::Internal => std::error::Error::source(status).is_some(),
        Code::ResourceExhausted => status.metadata().contains_key("grpc-retry-pushback-ms"),
        _ => false,
    }
}

/// Whether a shard says that it has another topology.
pub(super) fn is_stale(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.metadata().contains_key("hotrow-topology-version")
}
