//! Connections to shards.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::Stream;
use http::HeaderValue;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};
use tower::{Service as _, ServiceExt as _};

use super::credentials::Credentials;
use super::error::{Error, Result};
use crate::framing::{Messages, Outgoing, Requests};
use crate::proto::admin_client::AdminClient;
use crate::proto::data_client::DataClient;
use crate::tcp;

/// The largest HTTP/2 frame that is taken: large ones cost less per byte.
const FRAME: u32 = 1 << 20;
/// What may be under way on a connection before the sender waits.
const WINDOW: u32 = 16 << 20;
/// The largest answer.
const LARGEST: usize = 2 << 30;

/// A connection that is made when it is first used. `address` is `host:port`, or `unix:path`.
pub fn connect_shard(address: &str, credentials: &Credentials) -> Result<Channel> {
    let bad =
        |reason: String| Error::Setup(format!("'{address}' is not an address: {reason}; use host:port or unix:path"));
    let tls = credentials.tls();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let bare = address.trim_start_matches("http://").trim_start_matches("https://");
    let unix = bare.strip_prefix("unix:");
    let uri = if unix.is_some() { "http://localhost".to_string() } else { format!("{scheme}://{bare}") };
    let endpoint = Endpoint::from_shared(uri)
        .map_err(|e| bad(e.to_string()))?
        .connect_timeout(Duration::from_secs(5))
        .max_frame_size(FRAME)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(4 * WINDOW)
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true);
    if let Some(path) = unix {
        let path = path.trim_start_matches("//").to_string();
        return Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
        })));
    }
    if endpoint.uri().port().is_none() {
        return Err(bad("there is no port".into()));
    }
    if let Some(tls) = tls {
        let secure = endpoint.tls_config(tls).map_err(|e| Error::Setup(format!("certificates: {e:?}")))?;
        return Ok(secure.tcp_nodelay(true).connect_lazy());
    }
    let connected = HttpConnector::new().map_response(|io| {
        tcp::set_up(io.inner());
        io
    });
    Ok(endpoint.connect_with_connector_lazy(connected))
}

/// Several connections to one shard, taken in turn: one connection is one thread's work at either end.
pub struct Connections {
    /// Where the shard is.
    pub address: String,
    channels: Vec<Channel>,
    next: AtomicUsize,
}

impl Connections {
    /// `count` connections.
    pub fn new(address: &str, credentials: &Credentials, count: usize) -> Result<Connections> {
        let channels = (0..count.max(1)).map(|_| connect_shard(address, credentials)).collect::<Result<_>>()?;
        Ok(Connections { address: address.into(), channels, next: AtomicUsize::new(0) })
    }

    /// The next connection.
    pub fn channel(&self) -> Channel {
        self.channels[self.next.fetch_add(1, Ordering::Relaxed) % self.channels.len()].clone()
    }

    /// The data service on the next connection.
    pub fn data(&self) -> DataClient<Channel> {
        data(self.channel())
    }
}

/// The data service on a connection.
pub fn data(channel: Channel) -> DataClient<Channel> {
    DataClient::new(channel).max_decoding_message_size(LARGEST).max_encoding_message_size(LARGEST)
}

/// The admin service on a connection, for answers with many rows or keys.
pub fn admin(channel: Channel) -> AdminClient<Channel> {
    AdminClient::new(channel).max_decoding_message_size(LARGEST)
}

/// Sends a request on HTTP itself, for the data plane: what it carries goes to the socket without a copy, and the answer
/// is in the pieces in which it came.
pub async fn send<S>(
    mut channel: Channel,
    path: &'static str,
    body: Requests<S>,
    credentials: &Credentials,
    timeout: Option<Duration>,
) -> std::result::Result<Messages, Status>
where
    S: Stream<Item = Outgoing> + Send + Unpin + 'static,
{
    let mut request = http::Request::new(Body::new(body));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = http::Uri::from_static(path);
    *request.version_mut() = http::Version::HTTP_2;
    let headers = request.headers_mut();
    headers.insert(http::header::TE, HeaderValue::from_static("trailers"));
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    if let Some(timeout) = timeout {
        // At most eight digits.
        let milliseconds = timeout.as_millis().clamp(1, 99_999_999);
        let value = format!("{milliseconds}m").try_into().expect("digits are fine in a header");
        headers.insert("grpc-timeout", value);
    }
    credentials.add_to(headers);
    let failed = |error: tonic::transport::Error| Status::from_error(Box::new(error));
    let response = channel.ready().await.map_err(failed)?.call(request).await.map_err(failed)?;
    // What stands between may answer in place of the shard.
    match response.status().as_u16() {
        200 => {}
        code @ (429 | 502..=504) => return Err(Status::unavailable(format!("HTTP status {code}"))),
        code => return Err(Status::unknown(format!("HTTP status {code}: is this address a hotrow server?"))),
    }
    if let Some(status) = Status::from_header_map(response.headers())
        && status.code() != Code::Ok
    {
        return Err(status);
    }
    Ok(Messages::new(response.into_body(), LARGEST))
}
