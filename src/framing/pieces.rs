//! An answer as it came from the connection, read without putting it together.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tonic::Status;

/// Bytes in the pieces in which they came.
#[derive(Debug, Default)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Pieces {
    /// The bytes in field `tag` of a message, without copying them. Other fields are passed over.
    pub fn payload(mut self, tag: u32) -> Result<Pieces, Status> {
        use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
        let unreadable = |why: &str| Status::internal(format!("the answer cannot be read: {why}"));
        let mut payload = Pieces::default();
        while self.has_remaining() {
            let (field, kind) = decode_key(&mut self).map_err(|e| unreadable(&e.to_string()))?;
            if field != tag || kind != WireType::LengthDelimited {
                let context = DecodeContext::default();
                skip_field(kind, field, &mut self, context).map_err(|e| unreadable(&e.to_string()))?;
                continue;
            }
            let len = decode_varint(&mut self).map_err(|e| unreadable(&e.to_string()))?;
            if len > self.len as u64 {
                return Err(unreadable("a field is longer than the message"));
            }
            payload = self.split_to(len as usize);
        }
        Ok(payload)
    }

    /// Hands out the first `count` rows of `row_bytes` each, in order, as many at a time as lie side by side. `false` if
    /// there are not so many.
    pub fn rows(&mut self, row_bytes: usize, count: usize, mut take: impl FnMut(&[u8])) -> bool {
        if count.checked_mul(row_bytes).is_none_or(|bytes| bytes > self.len) {
            return false;
        }
        let mut left = count;
        while left > 0 {
            let whole = (self.chunk().len() / row_bytes).min(left);
            let rows = match whole {
                // A row that lies in more than one piece.
                0 => self.copy_to_bytes(row_bytes),
                _ => self.copy_to_bytes(whole * row_bytes),
            };
            take(&rows);
            left -= whole.max(1);
        }
        true
    }

    /// Adds what has come.
    pub fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    fn split_to(&mut self, len: usize) -> Pieces {
        let mut taken = Pieces::default();
        while taken.len < len {
            let piece = self.chunk().len().min(len - taken.len);
            taken.push(self.copy_to_bytes(piece));
        }
        taken
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "cannot advance beyond the end");
        self.len -= count;
        while count > 0 {
            let piece = &mut self.pieces[0];
            let here = count.min(piece.len());
            piece.advance(here);
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            count -= here;
        }
    }

    /// Without a copy where they are of one piece.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        if self.chunk().len() >= count {
            let bytes = self.pieces.front().map_or_else(Bytes::new, |piece| piece.slice(..count));
            self.advance(count);
            return bytes;
        }
        let mut bytes = BytesMut::with_capacity(count);
        bytes.put(self.take(count));
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::framing::PULL_RESPONSE_ROWS;
    use crate::proto;

    fn bytes(len: usize) -> Bytes {
        (0..len).map(|i| i as u8).collect()
    }

    proptest! {
        #[test]
        fn rows_are_found_however_an_answer_was_cut(
            row_bytes in 1usize..40,
            count in 0usize..50,
            cuts in prop::collection::vec(0usize..2000, 0..8),
            dims in prop::collection::vec(any::<u32>(), 0..3),
        ) {
            let rows = bytes(row_bytes * count);
            // The other field comes last here, and first in what a shard writes.
            let mut message = proto::PullResponse { rows: rows.clone(), dims: Vec::new() }.encode_to_vec();
            proto::PullResponse { rows: Bytes::new(), dims }.encode(&mut message).unwrap();
            let whole = Bytes::from(message);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(whole.len())).collect();
            cuts.sort_unstable();
            cuts.push(whole.len());
            let mut pieces = Pieces::default();
            let mut from = 0;
            for cut in cuts {
                pieces.push(whole.slice(from..cut));
                from = cut;
            }
            let mut payload = pieces.payload(PULL_RESPONSE_ROWS).unwrap();
            let mut read = Vec::new();
            let enough = payload.rows(row_bytes, count, |some| {
                assert!(!some.is_empty() && some.len() % row_bytes == 0, "not whole rows");
                read.extend_from_slice(some);
            });
            prop_assert!(enough);
            prop_assert_eq!(&read[..], &rows[..]);
            prop_assert!(!payload.rows(row_bytes, 1, |_| {}), "there is one row too many");
        }
    }

    #[test]
    fn an_answer_that_is_cut_short_is_not_read() {
        let whole = Bytes::from(proto::PullResponse { rows: bytes(100), dims: vec![5] }.encode_to_vec());
        for len in 1..whole.len() {
            let mut pieces = Pieces::default();
            pieces.push(whole.slice(..len));
            // A message may end between two fields: before `dims` there is a whole one.
            assert_eq!(pieces.payload(PULL_RESPONSE_ROWS).is_ok(), len == 102, "{len} bytes");
        }
    }
}
