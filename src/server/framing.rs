//! gRPC messages to and from HTTP/2 bodies, by hand for the data plane: a payload of rows goes from the buffer that the
//! engine wrote to the socket without a copy. On the wire it is what any gRPC library writes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::Stream;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use prost::Message as _;
use tonic::Status;
use tonic::body::Body;

use crate::proto;

/// Compressed or not, and the length.
const PREFIX: usize = 5;

/// The messages of a request.
pub struct Messages {
    body: Body,
    /// What has come and was not used.
    rest: Bytes,
    limit: usize,
}

impl Messages {
    /// Those of a body, each of at most `limit` bytes.
    pub fn new(body: Body, limit: usize) -> Messages {
        Messages { body, rest: Bytes::new(), limit }
    }

    /// The only message of a request that has one.
    pub async fn only(&mut self) -> Result<Bytes, Status> {
        self.next().await?.ok_or_else(|| Status::invalid_argument("the request has no message"))
    }

    /// The next message, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        while self.rest.len() < PREFIX {
            let Some(more) = self.data().await? else {
                return match self.rest.is_empty() {
                    true => Ok(None),
                    false => Err(cut_off()),
                };
            };
            self.rest = join(std::mem::take(&mut self.rest), more);
        }
        let compressed = self.rest.get_u8();
        let len = self.rest.get_u32() as usize;
        if compressed != 0 {
            return Err(Status::unimplemented("compressed messages are not supported: rows do not compress"));
        }
        if len > self.limit {
            let text = format!(
                "the request has {len} bytes, more than the {} allowed: send fewer rows at a time, or raise server.max_request",
                self.limit
            );
            return Err(Status::out_of_range(text));
        }
        if self.rest.len() >= len {
            return Ok(Some(self.rest.split_to(len)));
        }
        let mut message = BytesMut::with_capacity(len);
        message.put(std::mem::take(&mut self.rest));
        while message.len() < len {
            let mut more = self.data().await?.ok_or_else(cut_off)?;
            message.put(more.split_to(more.len().min(len - message.len())));
            self.rest = more;
        }
        Ok(Some(message.freeze()))
    }

    async fn data(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(status)) => return Err(status),
            }
        }
    }
}

fn join(a: Bytes, b: Bytes) -> Bytes {
    if a.is_empty() {
        return b;
    }
    let mut joined = BytesMut::with_capacity(a.len() + b.len());
    joined.put(a);
    joined.put(b);
    joined.freeze()
}

fn cut_off() -> Status {
    Status::invalid_argument("the request ends in the middle of a message")
}

/// A message that is not yet framed: its first fields, and then perhaps one long `bytes` field that is not copied.
pub struct Outgoing {
    head: BytesMut,
    payload: Bytes,
}

/// A message around another.
pub struct Outer<'a> {
    /// Its fields, but the one with the inner message.
    pub before: &'a proto::StreamResponse,
    /// The number of that one.
    pub tag: u32,
}

impl Outgoing {
    /// A whole message.
    pub fn message(message: &impl prost::Message) -> Outgoing {
        let mut head = BytesMut::with_capacity(PREFIX + message.encoded_len());
        head.put_bytes(0, PREFIX);
        message.encode(&mut head).expect("the buffer was made for it");
        Outgoing { head, payload: Bytes::new() }.framed()
    }

    /// The fields of `message`, and then its field `tag` with `payload`; nested in another message if `outer` says so.
    pub fn with_payload(message: &impl prost::Message, tag: u32, payload: Bytes, outer: Option<Outer<'_>>) -> Outgoing {
        let field_head = |buf: &mut BytesMut, tag: u32, len: usize| {
            prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, buf);
            prost::encoding::encode_varint(len as u64, buf);
        };
        let mut fields = BytesMut::with_capacity(message.encoded_len() + 16);
        message.encode(&mut fields).expect("the buffer grows");
        field_head(&mut fields, tag, payload.len());
        let mut head = BytesMut::with_capacity(PREFIX + fields.len() + 64);
        head.put_bytes(0, PREFIX);
        if let Some(outer) = outer {
            outer.before.encode(&mut head).expect("the buffer grows");
            field_head(&mut head, outer.tag, fields.len() + payload.len());
        }
        head.put(fields);
        Outgoing { head, payload }.framed()
    }

    fn framed(mut self) -> Outgoing {
        let len = (self.head.len() - PREFIX + self.payload.len()) as u32;
        self.head[1..PREFIX].copy_from_slice(&len.to_be_bytes());
        self
    }
}

/// The body of an answer: messages, then a status. `G` is what is held until a message is handed to the connection.
pub struct Answer<S, G> {
    messages: S,
    ready: VecDeque<Bytes>,
    held: Option<G>,
    ended: bool,
}

impl<S, G> Answer<S, G>
where
    S: Stream<Item = Result<(Outgoing, Option<G>), Status>> + Send + Unpin + 'static,
    G: Send + Unpin + 'static,
{
    /// The response whose body are these messages.
    pub fn response(messages: S) -> Response<Body> {
        let body = Body::new(Answer { messages, ready: VecDeque::with_capacity(2), held: None, ended: false });
        let mut response = Response::new(body);
        response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}

impl<S, G> http_body::Body for Answer<S, G>
where
    S: Stream<Item = Result<(Outgoing, Option<G>), Status>> + Unpin,
    G: Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if let Some(data) = this.ready.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        // The connection comes back for more when it has taken what it had.
        this.held = None;
        if this.ended {
            return Poll::Ready(None);
        }
        let trailers = match std::task::ready!(Pin::new(&mut this.messages).poll_next(cx)) {
            Some(Ok((message, held))) => {
                this.held = held;
                if !message.payload.is_empty() {
                    this.ready.push_back(message.payload);
                }
                return Poll::Ready(Some(Ok(Frame::data(message.head.freeze()))));
            }
            Some(Err(status)) => {
                let mut trailers = HeaderMap::new();
                // Only fails for a message that is no header value, and messages are percent-encoded.
                let _ = status.add_header(&mut trailers);
                trailers
            }
            None => {
                HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))])
            }
        };
        this.ended = true;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}
