//! What every request passes first: the drain, the token, the limit, the deadline; and what is measured of it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Response};
use tokio::sync::OwnedSemaphorePermit;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};

use super::auth::{Role, Tokens};
use super::reload::Reloaded;
use super::shard::Shard;
use super::status;

/// When the caller stops waiting.
#[derive(Clone, Copy)]
pub struct Deadline(pub Option<Instant>);

impl Deadline {
    /// Refuses work that nobody waits for any more.
    pub fn check(self) -> Result<(), Status> {
        match self.0 {
            Some(deadline) if Instant::now() >= deadline => {
                Err(Status::deadline_exceeded("the deadline passed before the request was begun: nothing was done"))
            }
            _ => Ok(()),
        }
    }
}

/// Room for one request, given back when the last copy is gone: when the answer has left.
#[derive(Clone)]
pub struct Room(#[allow(dead_code)] Arc<OwnedSemaphorePermit>);

/// Puts a [`Gate`] before a service.
#[derive(Clone)]
pub struct GateLayer {
    /// The shard behind it.
    pub shard: Arc<Shard>,
    /// Who may do what; `None`: everybody everything.
    pub tokens: Option<Arc<Reloaded<Tokens>>>,
}

impl<S> Layer<S> for GateLayer {
    type Service = Gate<S>;

    fn layer(&self, inner: S) -> Gate<S> {
        Gate { inner, layer: self.clone() }
    }
}

/// A service behind the gate.
#[derive(Clone)]
pub struct Gate<S> {
    inner: S,
    layer: GateLayer,
}

impl GateLayer {
    /// Lets a request in, or says why not.
    fn admit(&self, request: &mut Request<Body>) -> Result<Option<Room>, Status> {
        let path = request.uri().path();
        let needed = Role::needed(path);
        let role = match (&self.tokens, needed) {
            (None, _) => Role::Admin,
            (Some(_), None) => Role::Read,
            (Some(tokens), Some(needed)) => {
                let role = tokens.get().role(request.headers())?;
                role.require(needed)?;
                role
            }
        };
        // Looking after a shard must work when it is busy or ending; so must its health.
        let is_data = path.starts_with("/hotrow.v1.Data/");
        let is_stream = path == "/hotrow.v1.Data/Stream";
        let changes = matches!(
            path,
            "/hotrow.v1.Admin/AssignRows"
                | "/hotrow.v1.Admin/RemoveRows"
                | "/hotrow.v1.Tables/Create"
                | "/hotrow.v1.Tables/Alter"
                | "/hotrow.v1.Tables/Drop"
        );
        if (is_data || changes) && *self.shard.draining.borrow() {
            return Err(status::draining());
        }
        let room = match is_data {
            false => None,
            true => {
                let room = if is_stream { &self.shard.streams } else { &self.shard.in_flight };
                match Arc::clone(room).try_acquire_owned() {
                    Ok(permit) => Some(Room(Arc::new(permit))),
                    Err(_) => {
                        self.shard.metrics.shed.inc();
                        return Err(status::overloaded(self.shard.max_in_flight));
                    }
                }
            }
        };
        let deadline = Deadline(timeout(request.headers())?.map(|timeout| Instant::now() + timeout));
        request.extensions_mut().insert(deadline);
        request.extensions_mut().insert(role);
        if let Some(room) = &room {
            request.extensions_mut().insert(room.clone());
        }
        Ok(room)
    }
}

impl<S> Service<Request<Body>> for Gate<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let begun = Instant::now();
        let method = method_label(request.uri().path());
        let admitted = self.layer.admit(&mut request);
        let deadline = request.extensions().get::<Deadline>().copied().unwrap_or(Deadline(None));
        let shard = Arc::clone(&self.layer.shard);
        let id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_string();
        // The service that was polled to be ready is the one to call.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let room = match admitted {
                Ok(room) => room,
                Err(status) => {
                    shard.metrics.finished(method, status.code(), begun.elapsed());
                    tracing::debug!(method, id, code = ?status.code(), "refused: {}", status.message());
                    return Ok(status.into_http());
                }
            };
            let response = match deadline.0 {
                None => inner.call(request).await?,
                Some(deadline) => match tokio::time::timeout_at(deadline.into(), inner.call(request)).await {
                    Ok(response) => response?,
                    Err(_) => Status::deadline_exceeded("the deadline passed before there was an answer").into_http(),
                },
            };
            drop(room);
            let code = response.headers().get("grpc-status").map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()));
            shard.metrics.finished(method, code, begun.elapsed());
            tracing::debug!(method, id, ?code, micros = begun.elapsed().as_micros() as u64, "request");
            Ok(response)
        })
    }
}

/// A method's name for metrics. Only methods that exist have one, so that callers cannot make up labels.
fn method_label(path: &str) -> &'static str {
    const METHODS: [&str; 24] = [
        "hotrow.v1.Data/Pull",
        "hotrow.v1.Data/Push",
        "hotrow.v1.Data/Touch",
        "hotrow.v1.Data/OpenClient",
        "hotrow.v1.Data/CloseClient",
        "hotrow.v1.Data/Stream",
        "hotrow.v1.Tables/Create",
        "hotrow.v1.Tables/Alter",
        "hotrow.v1.Tables/Describe",
        "hotrow.v1.Tables/List",
        "hotrow.v1.Tables/Drop",
        "hotrow.v1.Admin/Stats",
        "hotrow.v1.Admin/Topology",
        "hotrow.v1.Admin/Flush",
        "hotrow.v1.Admin/Drain",
        "hotrow.v1.Admin/AssignRows",
        "hotrow.v1.Admin/RemoveRows",
        "hotrow.v1.Admin/ScanKeys",
        "hotrow.v1.Admin/ReadRows",
        "hotrow.v1.Admin/InspectRow",
        "hotrow.v1.Checkpoints/Save",
        "hotrow.v1.Checkpoints/SaveShard",
        "hotrow.v1.Checkpoints/SettleShard",
        "grpc.health.v1.Health/Check",
    ];
    let path = path.trim_start_matches('/');
    let known = METHODS.iter().find(|method| **method == path);
    known.map_or("other", |method| method.rsplit_once('.').map_or(*method, |(_, method)| method))
}

/// `grpc-timeout`: up to eight digits and a unit.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let bad = || Status::invalid_argument("grpc-timeout is not up to eight digits and one of H, M, S, m, u, n");
    let text = value.to_str().map_err(|_| bad())?;
    let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(bad)?;
    if digits.is_empty() || digits.len() > 8 {
        return Err(bad());
    }
    let count: u64 = digits.parse().map_err(|_| bad())?;
    Ok(Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return Err(bad()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        let read =
            |text: &str| timeout(&HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]));
        assert_eq!(read("250m").unwrap(), Some(Duration::from_millis(250)));
        assert_eq!(read("99999999H").unwrap(), Some(Duration::from_secs(99_999_999 * 3600)));
        for bad in ["", "5", "m", "123456789m", "-1m", "1x"] {
            assert_eq!(read(bad).unwrap_err().code(), Code::InvalidArgument, "{bad}");
        }
    }
}
