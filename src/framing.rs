//! gRPC messages to and from HTTP/2 bodies, by hand for the data plane: rows go from the buffer that the engine wrote to
//! the socket without a copy, and gradients likewise. On the wire it is what any gRPC library writes.

mod pieces;

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::Stream;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use prost::Message as _;
use tonic::body::Body;
use tonic::{Code, Status};

pub use self::pieces::Pieces;
use crate::proto;

/// Compressed or not, and the length.
const PREFIX: usize = 5;

/// The messages of a request.
pub struct Messages {
    body: Body,
    /// What has come and was not used.
    rest: Bytes,
    /// A message of which a part has come: its length, and that part.
    begun: Option<(usize, BytesMut)>,
    limit: usize,
    trailers: Option<HeaderMap>,
}

impl Messages {
    /// Those of a body, each of at most `limit` bytes.
    pub fn new(body: Body, limit: usize) -> Messages {
        Messages { body, rest: Bytes::new(), begun: None, limit, trailers: None }
    }

    /// The only message of a request that has one.
    pub async fn only(&mut self) -> Result<Bytes, Status> {
        self.next().await?.ok_or_else(|| Status::invalid_argument("the request has no message"))
    }

    /// The next message, or `None` at the end. Can be given up half-way and called again: nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if self.begun.is_none() && self.rest.len() >= PREFIX {
                let len = self.begin()?;
                if self.rest.len() >= len {
                    return Ok(Some(self.rest.split_to(len)));
                }
                let mut message = BytesMut::with_capacity(len);
                message.put(std::mem::take(&mut self.rest));
                self.begun = Some((len, message));
            }
            let Some(mut more) = self.data().await? else {
                return match self.begun.is_none() && self.rest.is_empty() {
                    true => Ok(None),
                    false => Err(cut_off()),
                };
            };
            match &mut self.begun {
                None => self.rest = join(std::mem::take(&mut self.rest), more),
                Some((len, message)) => {
                    message.put(more.split_to(more.len().min(*len - message.len())));
                    self.rest = more;
                    if message.len() == *len {
                        return Ok(self.begun.take().map(|(_, message)| message.freeze()));
                    }
                }
            }
        }
    }

    /// The bytes in field `tag` of the only message of an answer, in the pieces in which they came. `arrived` is called
    /// whenever more of them have come, and may take what it can use; what it leaves is returned. The status, which comes
    /// last, may still make the whole an error.
    pub async fn answer(mut self, tag: u32, mut arrived: impl FnMut(&mut Pieces)) -> Result<Pieces, Status> {
        let mut pieces = Pieces::default();
        let (mut len, mut taken) = (0, 0);
        while let Some(more) = self.data().await? {
            len += more.len();
            if len > self.limit {
                return Err(Status::out_of_range(format!("the answer has more than {} bytes", self.limit)));
            }
            pieces.push(more);
            if taken == 0
                && let Some((head, whole)) = head_of_last_field(pieces.chunk(), tag)
            {
                pieces.advance(head);
                taken = whole;
            }
            if taken > 0 {
                arrived(&mut pieces);
            }
        }
        match self.status() {
            Some(status) if status.code() == Code::Ok => {}
            Some(status) => return Err(status),
            None => return Err(Status::unknown("the answer ends without a status")),
        }
        let other_length = || Status::internal("the answer is not one message of the length that it says");
        if taken > 0 {
            return if taken == len { Ok(pieces) } else { Err(other_length()) };
        }
        let mut prefix = [0; PREFIX];
        pieces.try_copy_to_slice(&mut prefix).map_err(|_| cut_off())?;
        if prefix[0] != 0 || (&prefix[1..]).get_u32() as usize != pieces.remaining() {
            return Err(other_length());
        }
        let mut payload = pieces.payload(tag)?;
        arrived(&mut payload);
        Ok(payload)
    }

    /// Takes the prefix of a message, and gives its length.
    fn begin(&mut self) -> Result<usize, Status> {
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
        Ok(len)
    }

    /// The status at the end of an answer.
    pub fn status(&self) -> Option<Status> {
        Status::from_header_map(self.trailers.as_ref()?)
    }

    async fn data(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => return Ok(Some(data)),
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
                Some(Err(status)) => return Err(status),
            }
        }
    }
}

/// Where the bytes of field `tag` begin in a framed message, and how long that is, if they are the last of it. `None` too
/// where `begun`, the first of it that has come, does not tell.
fn head_of_last_field(begun: &[u8], tag: u32) -> Option<(usize, usize)> {
    use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
    let mut rest = begun;
    let plain = rest.try_get_u8().ok()? == 0;
    let whole = PREFIX + rest.try_get_u32().ok().filter(|_| plain)? as usize;
    loop {
        let (field, kind) = decode_key(&mut rest).ok()?;
        if (field, kind) == (tag, WireType::LengthDelimited) {
            let len = decode_varint(&mut rest).ok()? as usize;
            let head = begun.len() - rest.len();
            return (head.checked_add(len) == Some(whole)).then_some((head, whole));
        }
        skip_field(kind, field, &mut rest, DecodeContext::default()).ok()?;
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

/// A framed message, in pieces: long `bytes` fields are not copied.
#[derive(Clone)]
pub struct Outgoing {
    pieces: VecDeque<Bytes>,
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
        Outgoing::framed(head, VecDeque::new())
    }

    /// The fields of `message`, and then its field `tag` with `payload`; nested in another message if `outer` says so.
    pub fn with_payload(message: &impl prost::Message, tag: u32, payload: Bytes, outer: Option<Outer<'_>>) -> Outgoing {
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
        Outgoing::framed(head, VecDeque::from([payload]))
    }

    /// A push for a stream. The gradients are not copied, and start at multiples of four in the message, so that the
    /// shard needs not copy them either.
    pub fn push(id: u64, push: &proto::PushRequest) -> Outgoing {
        let mut paddings = vec![0; push.tables.len()];
        let mut layout = push_layout(id, push, &paddings);
        // A padding can make a length longer, and so move what follows: once more then, and if that was not enough the
        // shard copies.
        for _ in 0..3 {
            let moved = layout.starts.iter().scan(0, |moved, start| {
                let padding = (4 - (start + *moved) % 4) % 4;
                *moved += padding;
                Some(padding)
            });
            let needed: Vec<usize> = moved.collect();
            if needed.iter().all(|&padding| padding == 0) {
                break;
            }
            paddings.iter_mut().zip(needed).for_each(|(padding, more)| *padding = (*padding + more) % 4);
            layout = push_layout(id, push, &paddings);
        }
        let mut heads = layout.heads.into_iter();
        let first = heads.next().unwrap_or_default();
        let mut pieces = VecDeque::with_capacity(2 * push.tables.len());
        for (table, head) in push.tables.iter().zip(heads) {
            pieces.push_back(table.gradients.clone());
            pieces.push_back(head.freeze());
        }
        Outgoing::framed(first, pieces)
    }

    /// Writes the length of all pieces into the first.
    fn framed(mut head: BytesMut, mut pieces: VecDeque<Bytes>) -> Outgoing {
        let len = head.len() - PREFIX + pieces.iter().map(Bytes::len).sum::<usize>();
        head[1..PREFIX].copy_from_slice(&(len as u32).to_be_bytes());
        pieces.push_front(head.freeze());
        pieces.retain(|piece| !piece.is_empty());
        Outgoing { pieces }
    }
}

/// What stands before the bytes of a field.
pub fn field_head(buf: &mut impl BufMut, tag: u32, len: usize) {
    prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, buf);
    prost::encoding::encode_varint(len as u64, buf);
}

/// What stands before, between and after the gradients of a push, and where each table's gradients start.
struct PushLayout {
    heads: Vec<BytesMut>,
    starts: Vec<usize>,
}

/// Field numbers of `data.proto`.
pub const PULL_RESPONSE_ROWS: u32 = 1;
const STREAM_REQUEST_PUSH: u32 = 3;
const PUSH_TABLES: u32 = 1;
const TABLE_GRADIENTS: u32 = 3;
const TABLE_PADDING: u32 = 15;

fn push_layout(id: u64, push: &proto::PushRequest, paddings: &[usize]) -> PushLayout {
    // From the inside out: each table up to its gradients, which come last.
    let tables: Vec<BytesMut> = push
        .tables
        .iter()
        .zip(paddings)
        .map(|(table, &padding)| {
            let fields = proto::TablePush { gradients: Bytes::new(), ..table.clone() };
            let mut head = BytesMut::with_capacity(fields.encoded_len() + 32);
            fields.encode(&mut head).expect("the buffer grows");
            field_head(&mut head, TABLE_PADDING, padding);
            head.put_bytes(0, padding);
            field_head(&mut head, TABLE_GRADIENTS, table.gradients.len());
            head
        })
        .collect();
    let rest = proto::PushRequest { tables: Vec::new(), ..push.clone() }.encode_to_vec();
    let mut body: Vec<BytesMut> = Vec::with_capacity(tables.len() + 1);
    for (head, table) in tables.into_iter().zip(&push.tables) {
        let mut framed = BytesMut::with_capacity(head.len() + 16);
        field_head(&mut framed, PUSH_TABLES, head.len() + table.gradients.len());
        framed.put(head);
        body.push(framed);
    }
    body.push(BytesMut::from(&rest[..]));
    let gradients: usize = push.tables.iter().map(|table| table.gradients.len()).sum();
    let len = body.iter().map(BytesMut::len).sum::<usize>() + gradients;
    let mut first = BytesMut::with_capacity(64 + body[0].len());
    first.put_bytes(0, PREFIX);
    proto::StreamRequest { id, request: None }.encode(&mut first).expect("the buffer grows");
    field_head(&mut first, STREAM_REQUEST_PUSH, len);
    first.put(std::mem::take(&mut body[0]));
    body[0] = first;
    let mut at = 0;
    let starts = body
        .iter()
        .zip(&push.tables)
        .map(|(head, table)| {
            at += head.len();
            let start = at - PREFIX;
            at += table.gradients.len();
            start
        })
        .collect();
    PushLayout { heads: body, starts }
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
                this.ready = message.pieces;
                let first = this.ready.pop_front().expect("a message has at least its length");
                return Poll::Ready(Some(Ok(Frame::data(first))));
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

/// The body of a request: messages, and no status.
pub struct Requests<S> {
    messages: S,
    ready: VecDeque<Bytes>,
}

impl<S: Stream<Item = Outgoing> + Unpin> Requests<S> {
    /// A body of these messages.
    pub fn new(messages: S) -> Requests<S> {
        Requests { messages, ready: VecDeque::new() }
    }
}

impl<S: Stream<Item = Outgoing> + Unpin> http_body::Body for Requests<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            if let Some(data) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            match std::task::ready!(Pin::new(&mut this.messages).poll_next(cx)) {
                Some(message) => this.ready = message.pieces,
                None => return Poll::Ready(None),
            }
        }
    }

    /// So that the last frame says that it is, and no empty one follows.
    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.messages.size_hint() == (0, Some(0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(len: usize) -> Bytes {
        (0..len).map(|i| i as u8).collect()
    }

    proptest! {
        #[test]
        fn a_push_in_pieces_is_the_push_and_its_gradients_are_aligned(
            id in any::<u64>(),
            sequence in any::<u64>(),
            tables in prop::collection::vec(("[a-z]{1,9}", 0usize..300, 0usize..300), 1..5),
        ) {
            let tables = tables.into_iter().map(|(table, keys, gradients)| proto::TablePush {
                table,
                keys: bytes(8 * keys),
                gradients: bytes(4 * gradients),
                step: Some(3),
                ..Default::default()
            });
            let push = proto::PushRequest { tables: tables.collect(), sequence, client_id: bytes(16), ..Default::default() };
            let message = Outgoing::push(id, &push);
            let whole: Vec<u8> = message.pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            let body = Bytes::copy_from_slice(&whole[PREFIX..]);
            prop_assert_eq!(u32::from_be_bytes(whole[1..PREFIX].try_into().unwrap()) as usize, body.len());
            let mut read = proto::StreamRequest::decode(body.clone()).unwrap();
            prop_assert_eq!(read.id, id);
            let Some(proto::stream_request::Request::Push(got)) = &mut read.request else { panic!("not a push") };
            for table in &mut got.tables {
                if !table.gradients.is_empty() {
                    let start = table.gradients.as_ptr() as usize - body.as_ptr() as usize;
                    prop_assert_eq!(start % 4, 0);
                }
                table.padding.clear();
            }
            prop_assert_eq!(&*got, &push);
        }
    }

    #[tokio::test]
    async fn messages_are_found_however_the_body_is_cut() {
        let push = proto::PushRequest { sequence: 7, client_id: bytes(500), ..Default::default() };
        let whole: Vec<u8> =
            (0..3).flat_map(|id| Outgoing::push(id, &push).pieces.into_iter().flatten().collect::<Vec<_>>()).collect();
        for cut in [1, 2, 4, 5, 6, 100, 505, 2000] {
            let pieces: Vec<_> =
                whole.chunks(cut).map(|c| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(c)))).collect();
            let mut ready = false;
            let mut pieces = pieces.into_iter();
            let pieces = futures_util::stream::poll_fn(move |cx| {
                ready = !ready;
                if ready {
                    return Poll::Ready(pieces.next());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            });
            let body = Body::new(http_body_util::StreamBody::new(pieces));
            let mut messages = Messages::new(body, 1 << 20);
            for id in 0..3 {
                // Given up after every poll that was not enough.
                let message = loop {
                    if let Some(message) = futures_util::FutureExt::now_or_never(messages.next()) {
                        break message.unwrap().unwrap();
                    }
                };
                assert_eq!(proto::StreamRequest::decode(message).unwrap().id, id);
            }
            assert!(messages.next().await.unwrap().is_none());
        }
    }

    /// An answer in pieces of `cut` bytes, with this status.
    fn answer_of(whole: &[u8], cut: usize, status: &'static str) -> Messages {
        let trailers =
            HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static(status))]);
        let pieces = whole.chunks(cut).map(|c| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(c))));
        let frames: Vec<_> = pieces.chain([Ok(Frame::trailers(trailers))]).collect();
        Messages::new(Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(frames))), 1 << 20)
    }

    #[tokio::test]
    async fn rows_are_taken_as_they_come_however_an_answer_is_cut() {
        let rows = bytes(1200);
        let framed = |message: Outgoing| message.pieces.into_iter().flatten().collect::<Vec<u8>>();
        let head = proto::PullResponse { rows: Bytes::new(), dims: vec![3, 300] };
        // As a shard writes it; and with the other field last, which is only read when all has come.
        let rows_last = framed(Outgoing::with_payload(&head, PULL_RESPONSE_ROWS, rows.clone(), None));
        let rows_first = framed(Outgoing::message(&proto::PullResponse { rows: rows.clone(), ..head }));
        for (whole, early) in [(&rows_last, true), (&rows_first, false)] {
            for cut in [1, 3, 20, 100, 700, 5000] {
                let (mut taken, mut times) = (Vec::new(), 0);
                let rest = answer_of(whole, cut, "0").answer(PULL_RESPONSE_ROWS, |pieces| {
                    times += 1;
                    let some = pieces.remaining() / 12;
                    assert!(pieces.rows(12, some, |rows| taken.extend_from_slice(rows)));
                });
                assert!(!rest.await.unwrap().has_remaining());
                assert_eq!(taken, rows, "in pieces of {cut}");
                // A head that is cut itself is read at the end.
                assert_eq!(times > 1, early && (20..1000).contains(&cut), "{times} times in pieces of {cut}");
            }
            for (whole, status) in [(&whole[..whole.len() - 1], "0"), (&whole[..], "14")] {
                assert!(answer_of(whole, 100, status).answer(PULL_RESPONSE_ROWS, |_| {}).await.is_err());
            }
            let more: Vec<u8> = whole.iter().copied().chain([0]).collect();
            assert!(answer_of(&more, 100, "0").answer(PULL_RESPONSE_ROWS, |_| {}).await.is_err());
        }
    }
}
