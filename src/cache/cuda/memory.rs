//! Memory of the GPU, and host memory that it can reach.
//!
//! `unsafe` lives here because the driver hands out addresses. It is sound because each is freed once, by its owner, and
//! host memory is only reached through the owner's borrow.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, sys};

/// Memory of the GPU.
pub struct Buffer {
    address: u64,
    context: Arc<CudaContext>,
}

impl Buffer {
    /// So many bytes, with anything in them.
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Buffer, DriverError> {
        context.bind_to_thread()?;
        // SAFETY: the address is freed below, and by nobody else.
        let address = unsafe { result::malloc_sync(bytes.max(1)) }?;
        Ok(Buffer { address, context: Arc::clone(context) })
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // An error shows at the next call: the context keeps it.
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: allocated in `new`, and whoever drops it has waited for the work that uses it.
        self.context.record_err(unsafe { result::free_sync(self.address) });
    }
}

/// Host memory that the GPU copies from and to by itself.
pub struct Pinned {
    start: NonNull<u8>,
    bytes: usize,
    context: Arc<CudaContext>,
}

// SAFETY: it owns its memory, which no thread is tied to.
unsafe impl Send for Pinned {}
// SAFETY: as above; it is only changed through `&mut`.
unsafe impl Sync for Pinned {}

/// What pinned memory is for.
#[derive(Clone, Copy)]
pub enum Direction {
    /// The host only writes it: it need not go through the host's caches.
    Up,
    /// The host reads it.
    Down,
}

impl Pinned {
    /// So many bytes of zero.
    pub fn new(context: &Arc<CudaContext>, bytes: usize, direction: Direction) -> Result<Pinned, DriverError> {
        context.bind_to_thread()?;
        let flags = match direction {
            Direction::Up => sys::CU_MEMHOSTALLOC_WRITECOMBINED,
            Direction::Down => 0,
        };
        // SAFETY: the memory is freed below, and by nobody else.
        let start = unsafe { result::malloc_host(bytes, flags) }?.cast::<u8>();
        let start = NonNull::new(start).ok_or(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
        // SAFETY: so many bytes were allocated there; until now they held anything.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes, context: Arc::clone(context) })
    }

    /// All of it.
    pub fn get(&self) -> &[u8] {
        // SAFETY: so many bytes are there, and were initialised in `new`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// All of it, to change.
    pub fn get_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: allocated in `new`, and whoever drops a tray has waited for its work.
        self.context.record_err(unsafe { result::free_host(self.start.as_ptr().cast()) });
    }
}
