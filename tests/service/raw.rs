//! Requests below gRPC libraries: any bytes, any headers.

use std::convert::Infallible;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, Request};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tonic::{Code, Status};

/// A message with its prefix: not compressed, and its length.
pub fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put(message);
    frame.freeze()
}

/// An HTTP/2 connection.
#[derive(Clone)]
pub struct Raw {
    sender: SendRequest<BoxBody<Bytes, Infallible>>,
}

/// What came back.
pub struct Answer {
    /// The status, from headers or trailers.
    pub status: Status,
    /// Everything in the body.
    pub body: Bytes,
}

impl Raw {
    /// Connects.
    pub async fn connect(address: &str) -> Raw {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Raw { sender }
    }

    /// Posts bytes.
    pub async fn post(&mut self, path: &str, headers: &[(&'static str, &str)], body: Bytes) -> Result<Answer, String> {
        self.send(path, headers, Full::new(body).boxed()).await
    }

    /// Posts bytes that come bit by bit.
    pub async fn post_slowly(
        &mut self,
        path: &str,
        headers: &[(&'static str, &str)],
        body: impl Stream<Item = Bytes> + Send + Sync + 'static,
    ) -> Result<Answer, String> {
        let body = StreamBody::new(body.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes))));
        self.send(path, headers, BodyExt::boxed(body)).await
    }

    async fn send(
        &mut self,
        path: &str,
        headers: &[(&'static str, &str)],
        body: BoxBody<Bytes, Infallible>,
    ) -> Result<Answer, String> {
        let mut request = Request::post(format!("http://shard{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.sender.ready().await.map_err(|e| e.to_string())?;
        let response = self.sender.send_request(request.body(body).unwrap()).await.map_err(|e| e.to_string())?;
        let (parts, body) = response.into_parts();
        answer(parts.headers, body).await
    }
}

async fn answer(headers: HeaderMap, body: Incoming) -> Result<Answer, String> {
    if let Some(status) = Status::from_header_map(&headers) {
        return Ok(Answer { status, body: Bytes::new() });
    }
    let body = body.collect().await.map_err(|e| e.to_string())?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    let status = Status::from_header_map(&trailers).ok_or("there is no status")?;
    if status.code() == Code::Unknown && !trailers.contains_key("grpc-status") {
        return Err("there is no status".into());
    }
    Ok(Answer { status, body: body.to_bytes() })
}
