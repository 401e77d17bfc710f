//! Memory for answers, used again and again.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Buffers that are kept.
const KEPT: usize = 64;
/// A larger buffer is given back to the system.
const LARGEST_KEPT: usize = (32 << 20) / 4;

/// Buffers that wait to be used again.
#[derive(Default)]
pub struct Buffers {
    free: Mutex<Vec<Vec<f32>>>,
}

/// A buffer for rows. Aligned for f32, because the engine writes them as such.
pub struct RowBuffer {
    numbers: Vec<f32>,
    bytes: usize,
    home: Arc<Buffers>,
}

impl Buffers {
    /// A buffer of this many bytes, with whatever was in it.
    pub fn take(self: &Arc<Self>, bytes: usize) -> RowBuffer {
        let mut numbers = self.free.lock().pop().unwrap_or_default();
        let needed = bytes.div_ceil(4);
        if numbers.len() < needed {
            numbers.resize(needed, 0.0);
        }
        RowBuffer { numbers, bytes, home: Arc::clone(self) }
    }
}

impl RowBuffer {
    /// The bytes to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.numbers)[..self.bytes]
    }

    /// Hands it on; it comes back when the last reference is gone.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for RowBuffer {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.numbers)[..self.bytes]
    }
}

impl Drop for RowBuffer {
    fn drop(&mut self) {
        if self.numbers.len() <= LARGEST_KEPT {
            let mut free = self.home.free.lock();
            if free.len() < KEPT {
                free.push(std::mem::take(&mut self.numbers));
            }
        }
    }
}
