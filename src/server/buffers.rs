//! Memory for answers, used again and again.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Buffers that are kept.
const KEPT: usize = 64;
/// A larger buffer is given back to the system.
const LARGEST_KEPT: usize = (32 << 20) / size_of::<Line>();

/// A cache line. Rows that begin with one are written in whole ones.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Buffers that wait to be used again.
#[derive(Default)]
pub struct Buffers {
    free: Mutex<Vec<Vec<Line>>>,
}

/// A buffer for rows.
pub struct RowBuffer {
    lines: Vec<Line>,
    bytes: usize,
    home: Arc<Buffers>,
}

impl Buffers {
    /// A buffer of this many bytes, with whatever was in it.
    pub fn take(self: &Arc<Self>, bytes: usize) -> RowBuffer {
        let mut lines = self.free.lock().pop().unwrap_or_default();
        let needed = bytes.div_ceil(size_of::<Line>());
        if lines.len() < needed {
            lines.resize(needed, Line([0.0; 16]));
        }
        RowBuffer { lines, bytes, home: Arc::clone(self) }
    }
}

impl RowBuffer {
    /// The bytes to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes]
    }

    /// Hands it on; it comes back when the last reference is gone.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for RowBuffer {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes]
    }
}

impl Drop for RowBuffer {
    fn drop(&mut self) {
        if self.lines.len() <= LARGEST_KEPT {
            let mut free = self.home.free.lock();
            if free.len() < KEPT {
                free.push(std::mem::take(&mut self.lines));
            }
        }
    }
}
