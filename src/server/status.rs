//! The one table from what went wrong to a gRPC status.

use tonic::{Code, Status};

use crate::error::Error;

/// Metadata that carries the shard's topology version beside FAILED_PRECONDITION.
pub const TOPOLOGY_VERSION: &str = "hotrow-topology-version";
/// Metadata that says, in milliseconds, when to try again, beside RESOURCE_EXHAUSTED. gRPC's own name for it.
pub const RETRY_AFTER: &str = "grpc-retry-pushback-ms";
/// What it says.
pub const RETRY_AFTER_MS: u64 = 50;

/// The code of an error.
pub fn code(error: &Error) -> Code {
    match error {
        Error::InvalidSpec { .. }
        | Error::TableTwice(_)
        | Error::WrongLength { .. }
        | Error::NotFinite { .. }
        | Error::InvalidRequest { .. } => Code::InvalidArgument,
        Error::KeyOutOfRange { .. } => Code::OutOfRange,
        Error::UnknownTable(_) => Code::NotFound,
        Error::SaveUnderWay => Code::Aborted,
        Error::TableExists(_) => Code::AlreadyExists,
        Error::NotOwned { .. } | Error::UnknownClient(_) | Error::SequenceForgotten { .. } => Code::FailedPrecondition,
        Error::OutOfMemory { .. }
        | Error::OutOfDeviceMemory { .. }
        | Error::System(_)
        | Error::TooManyClients(_)
        | Error::NotOrdered(_) => Code::ResourceExhausted,
        Error::InvalidConfig(_) | Error::NoDevice(_) | Error::NotRestored(_) => Code::Internal,
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        Status::new(code(&error), error.to_string())
    }
}

/// The refusal of a request that was routed by another topology.
pub fn stale_topology(theirs: u64, ours: u64) -> Status {
    let text =
        format!("the request was routed by topology {theirs}, this shard has {ours}: ask for the topology again");
    with_topology(Status::failed_precondition(text), ours)
}

/// Adds the shard's topology version.
pub fn with_topology(mut status: Status, version: u64) -> Status {
    status.metadata_mut().insert(TOPOLOGY_VERSION, version.into());
    status
}

/// The refusal of a request that there is no room for.
pub fn overloaded(limit: usize) -> Status {
    let text = format!("{limit} requests are under way, as many as there may be: try again in {RETRY_AFTER_MS} ms");
    let mut status = Status::resource_exhausted(text);
    status.metadata_mut().insert(RETRY_AFTER, RETRY_AFTER_MS.into());
    status
}

/// The refusal of a request that comes while the shard is ending.
pub fn draining() -> Status {
    Status::unavailable("this shard is draining: try again, it or its successor will be back")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_the_code_that_clients_act_on() {
        let table = || "t".to_string();
        let cases = [
            (Error::UnknownTable(table()), Code::NotFound),
            (Error::TableExists(table()), Code::AlreadyExists),
            (Error::KeyOutOfRange { table: table(), key: 9, rows: 9 }, Code::OutOfRange),
            (Error::NotOwned { key: 1, partition: 1 }, Code::FailedPrecondition),
            (Error::SequenceForgotten { sequence: 1, oldest: 2 }, Code::FailedPrecondition),
            (Error::OutOfMemory { needed: 2, free: 1, limit: 3 }, Code::ResourceExhausted),
            (Error::OutOfDeviceMemory { device: 0, needed: 2, free: 1, limit: 3 }, Code::ResourceExhausted),
            (Error::NotFinite { table: table(), what: "gradients" }, Code::InvalidArgument),
            (Error::WrongLength { table: table(), what: "gradients", expected: 1, actual: 2 }, Code::InvalidArgument),
        ];
        for (error, code) in cases {
            let status = Status::from(error.clone());
            assert_eq!(status.code(), code);
            assert_eq!(status.message(), error.to_string());
        }
    }
}
