// Kernels for the tests of this crate: some right, some wrong in one way each.
struct Launch {
    const float *in;
    float *out;
    u32 count;
    u32 offset;
};

DEVICE u32 index_of(u32 block, u32 thread) { return block * THREADS + thread; }

// out[i] = 2 * in[i], within `count`.
KERNEL(planted_double) {
    EACH_THREAD {
        u32 i = index_of(BLOCK, THREAD);
        if (i >= launch.count) continue;
        launch.out[i] = mul(launch.in[i], 2.0f);
    }
}

// out[i] = in[i] + 1: with planted_double, order shows in the result.
KERNEL(planted_increment) {
    EACH_THREAD {
        u32 i = index_of(BLOCK, THREAD);
        if (i < launch.count) launch.out[i] = add(launch.in[i], 1.0f);
    }
}

// out[i] = out[i] + 1: it reads what it writes.
KERNEL(planted_add_one) {
    EACH_THREAD {
        u32 i = index_of(BLOCK, THREAD);
        if (i < launch.count) launch.out[i] = add(launch.out[i], 1.0f);
    }
}

// One sum per block, through shared memory and a tree.
KERNEL(planted_sum) {
    SHARED float partial[THREADS];
    EACH_THREAD {
        u32 i = index_of(BLOCK, THREAD);
        partial[THREAD] = i < launch.count ? launch.in[i] : 0.0f;
    }
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        EACH_THREAD {
            if (THREAD < half) partial[THREAD] = add(partial[THREAD], partial[THREAD + half]);
        }
    }
    EACH_THREAD {
        if (THREAD == 0) launch.out[BLOCK] = partial[0];
    }
}

// Wrong: reads in[offset + i], wherever that is.
KERNEL(planted_read_at) {
    EACH_THREAD {
        u32 i = index_of(BLOCK, THREAD);
        if (i < launch.count) launch.out[i] = launch.in[launch.offset + i];
    }
}

// Wrong: writes out[offset + i], wherever that is.
KERNEL(planted_write_at) {
    EACH_THREAD {
        u32 i = index_of(BLOCK, THREAD);
        if (i < launch.count) launch.out[launch.offset + i] = 1.0f;
    }
}

// Wrong: each thread takes its neighbour's value within one phase, so the order of the threads decides.
KERNEL(planted_order) {
    SHARED u32 last[1];
    EACH_THREAD { last[0] = THREAD; }
    EACH_THREAD {
        if (THREAD == 0) launch.out[BLOCK] = float_of(last[0]);
    }
}

// Wrong: the last thread is one past the end of a shared array.
KERNEL(planted_shared_overrun) {
    SHARED float part[THREADS];
    EACH_THREAD { part[THREAD + launch.offset] = launch.in[0]; }
    EACH_THREAD {
        if (THREAD == 0) launch.out[BLOCK] = part[launch.count];
    }
}

// Rounding, roots and bits, for a comparison with the same in Rust.
KERNEL(planted_arithmetic) {
    EACH_THREAD {
        u32 i = index_of(BLOCK, THREAD);
        if (i >= launch.count) continue;
        float a = launch.in[i];
        float b = sub(root(a), floor_(divide(a, 3.0f)));
        launch.out[i] = float_of(bits_of(add(b, round_even(a))) ^ 1u);
    }
}

// As struct copies and bytes: accesses of other sizes.
KERNEL(planted_copy_wide) {
    struct Four { float v[4]; };
    EACH_THREAD {
        u32 i = index_of(BLOCK, THREAD);
        if (i < launch.count) ((struct Four *)launch.out)[i] = ((const struct Four *)launch.in)[i];
    }
}

KERNEL(planted_copy_bytes) {
    EACH_THREAD {
        u32 i = index_of(BLOCK, THREAD);
        if (i < launch.count) ((u8 *)launch.out)[i] = ((const u8 *)launch.in)[i];
    }
}

// Wrong: gives away what a shared array holds before it is written.
KERNEL(planted_unwritten) {
    SHARED float part[THREADS];
    EACH_THREAD {
        if (THREAD >= launch.count) part[THREAD] = 0.0f;
    }
    EACH_THREAD {
        if (THREAD < launch.count) launch.out[THREAD] = part[THREAD];
    }
}

TABLE float primes[] = {2.0f, 3.0f, 5.0f, 7.0f};

KERNEL(planted_table) {
    EACH_THREAD {
        if (THREAD < launch.count) launch.out[THREAD] = primes[THREAD];
    }
}

// memcpy and memset are checked, too.
KERNEL(planted_memcpy) {
    EACH_THREAD {
        u32 i = index_of(BLOCK, THREAD);
        if (i != 0) continue;
        memset(launch.out, 0, launch.count * 4);
        memcpy(launch.out, launch.in, launch.count * 4);
    }
}
