//! The machine's limits: the plainest loop over plain arrays that does the same work, with prefetching and AVX2 where
//! the CPU has it. No index, no cache, no locks, no checks of requests.

use hotrow::numeric::WeightFormat;
use hotrow::numeric::format::decode_rows;

const AHEAD: usize = 16;

/// A plain array on huge pages, as the engine's own memory is.
pub struct Array<T> {
    map: memmap2::MmapMut,
    _of: std::marker::PhantomData<T>,
}

impl<T: bytemuck::Pod> Array<T> {
    pub fn new(values: impl ExactSizeIterator<Item = T>) -> Array<T> {
        let len = (values.len() * size_of::<T>()).next_multiple_of(2 << 20);
        let map = memmap2::MmapMut::map_anon(len).unwrap();
        let _ = map.advise(memmap2::Advice::HugePage);
        let mut array = Array { map, _of: std::marker::PhantomData };
        array.as_mut().iter_mut().zip(values).for_each(|(to, value)| *to = value);
        array
    }

    pub fn as_ref(&self) -> &[T] {
        bytemuck::cast_slice(&self.map)
    }

    pub fn as_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.map)
    }
}

#[inline(always)]
fn prefetch(address: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..bytes.div_ceil(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.wrapping_add(64 * line).cast()) };
    }
}

/// Compiles a loop for AVX2 and for the baseline; the limits get the same instructions as the engine.
macro_rules! fastest {
    (fn $name:ident($($arg:ident: $ty:ty),*) $body:block) => {
        pub fn $name($($arg: $ty),*) {
            #[inline(always)]
            fn body($($arg: $ty),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) { body($($arg),*) }
                if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                    // SAFETY: the features were found.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}

fastest! {
    fn gather_f32(table: &[f32], dim: usize, keys: &[u64], out: &mut [f32]) {
        for (i, (&key, out)) in keys.iter().zip(out.chunks_exact_mut(dim)).enumerate() {
            if let Some(&next) = keys.get(i + AHEAD) {
                prefetch(table[next as usize * dim..].as_ptr().cast(), 4 * dim);
            }
            out.copy_from_slice(&table[key as usize * dim..][..dim]);
        }
    }
}

fastest! {
    // Rows of 2 bytes of bf16 scale and `dim` signed bytes.
    fn gather_int8(table: &[u8], dim: usize, keys: &[u64], out: &mut [f32]) {
        let stride = dim + 2;
        for (i, (&key, out)) in keys.iter().zip(out.chunks_exact_mut(dim)).enumerate() {
            if let Some(&next) = keys.get(i + AHEAD) {
                prefetch(table[next as usize * stride..].as_ptr(), stride);
            }
            let row = &table[key as usize * stride..][..stride];
            let scale = f32::from_bits(u32::from(u16::from_le_bytes([row[0], row[1]])) << 16);
            for (out, &q) in out.iter_mut().zip(&row[2..]) {
                *out = f32::from(q as i8) * scale;
            }
        }
    }
}

/// Rows of any format, stored without gaps: gathered in blocks, which are then decoded.
pub fn gather_coded(format: WeightFormat, table: &[u8], dim: usize, keys: &[u64], out: &mut [f32]) {
    const BLOCK: usize = 32;
    let stride = format.bytes(dim);
    let mut block = vec![0; BLOCK * stride];
    for (n, (block_keys, out)) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK * dim)).enumerate() {
        for (i, (&key, row)) in block_keys.iter().zip(block.chunks_exact_mut(stride)).enumerate() {
            if let Some(&next) = keys.get(n * BLOCK + i + AHEAD) {
                prefetch(table[next as usize * stride..].as_ptr(), stride);
            }
            row.copy_from_slice(&table[key as usize * stride..][..stride]);
        }
        decode_rows(format, dim, &block[..block_keys.len() * stride], out);
    }
}

fastest! {
    fn rowwise_adagrad(table: &mut [f32], sums: &mut [f32], dim: usize, keys: &[u64], gradients: &[f32], lr: f32) {
        for (i, (&key, gradient)) in keys.iter().zip(gradients.chunks_exact(dim)).enumerate() {
            if let Some(&next) = keys.get(i + AHEAD) {
                prefetch(table[next as usize * dim..].as_ptr().cast(), 4 * dim);
                prefetch(sums[next as usize..].as_ptr().cast(), 4);
            }
            let mut lanes = [0.0f32; 32];
            let (chunks, tail) = gradient.as_chunks::<32>();
            for chunk in chunks {
                for lane in 0..32 {
                    lanes[lane] += chunk[lane] * chunk[lane];
                }
            }
            for (lane, g) in lanes.iter_mut().zip(tail) {
                *lane += g * g;
            }
            let sum = &mut sums[key as usize];
            *sum += lanes.iter().sum::<f32>() / dim as f32;
            let rate = lr / (sum.sqrt() + 1e-8);
            for (w, g) in table[key as usize * dim..][..dim].iter_mut().zip(gradient) {
                *w -= rate * g;
            }
        }
    }
}

fastest! {
    fn sgd(table: &mut [f32], dim: usize, keys: &[u64], gradients: &[f32], lr: f32) {
        for (i, (&key, gradient)) in keys.iter().zip(gradients.chunks_exact(dim)).enumerate() {
            if let Some(&next) = keys.get(i + AHEAD) {
                prefetch(table[next as usize * dim..].as_ptr().cast(), 4 * dim);
            }
            for (w, g) in table[key as usize * dim..][..dim].iter_mut().zip(gradient) {
                *w -= lr * g;
            }
        }
    }
}
