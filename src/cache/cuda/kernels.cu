// The work on cached rows that a GPU does. docs/NUMERICS.md is the contract: the bits must be those of src/numeric/.
//
// This file is compiled twice: by NVRTC for the GPU, with the options below, and by a C compiler for the tests' emulated
// driver, which runs the threads of a block one after the other, in any order. So it is plain C, and threads work in
// *phases*: EACH_THREAD runs a phase on every thread of the block, and waits for all of them. Nothing private to a thread
// lives on to the next phase; what must is SHARED. There are no warp collectives.
//
// Rows are worked on by 32 threads each, lane i taking elements i, i + 32, ...: neighbouring lanes read neighbouring
// numbers, and the sums of the contract (32 lanes, then a tree) fall out by themselves. Work without sums takes four
// numbers per thread.
//
// nvrtc: --std=c++17 --fmad=false --ftz=false --prec-div=true --prec-sqrt=true

#ifdef __CUDACC_RTC__
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
#define THREADS 128
// Six blocks at a time leave 80 registers, which all kernels do with.
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS, 6) name(const struct Launch launch)
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__
#define BLOCK blockIdx.x
#define EACH_THREAD for (u32 THREAD = threadIdx.x, again = 1; again; again = 0, __syncthreads())
#define UNROLL _Pragma("unroll")
// What a function with phases is handed beside its arguments: nothing, on a GPU.
#define WHERE
#define WHERE_PARAMETERS
// Rounded one by one, and never contracted.
DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float sub(float a, float b) { return __fsub_rn(a, b); }
DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float root(float a) { return __fsqrt_rn(a); }
DEVICE float floor_(float a) { return floorf(a); }
DEVICE float round_even(float a) { return rintf(a); }
DEVICE u32 bits_of(float a) { return __float_as_uint(a); }
DEVICE float float_of(u32 a) { return __uint_as_float(a); }
#else
#define UNROLL
#define WHERE , BLOCK, GRID, order_
#define WHERE_PARAMETERS , u32 BLOCK, u32 GRID, const u32 *order_
#endif

// What a launch works on; `Launch` in launch.rs is the same, field by field. All pointers are to device memory.
struct Launch {
    const u64 *slots;      // where each row's slot is: `dim` weights, then the state
    const u64 *numbers;    // write-back: the number of each row
    const u32 *partitions; // write-back: the partition of each row
    const u32 *ends;       // pooled gather: where each bag ends among the slots
    const float *values;   // load: whole rows; update: the gradient of each row; pooled gather: the factor of each slot
    const float *before;   // pooled gather: what the first bag has so far, or null
    const u8 *stored;      // fill: stored rows
    u8 *out;               // what comes back, row after row
    float *errors;         // write-back: the squared rounding error of each sampled row
    u32 count;             // rows, or bags
    u32 dim;               // weights in a row
    u32 tensors;           // vectors of optimizer state
    u32 len;               // numbers in each of them
    u32 bf16_state;        // whether they are stored as bf16
    u32 stochastic;        // whether rounding is
    u32 seed;
    u32 clips;             // whether there is a largest norm of a gradient
    float clip_norm;
    float weight_decay;
    float lr; // Adam: the learning rate with both bias corrections
    float eps;
    float rate1;
    float rate2;
    float decay;
    u32 unused;
};

#define LANES 32
#define ROWS (THREADS / LANES)
// Elements that one pass over a row encodes: four groups of 64, each with eight blocks of random numbers.
#define PASS 256

// In the order of `WeightFormat` in numeric/format.rs.
#define F32 0
#define F16 1
#define BF16 2
#define INT8_SYMMETRIC 3
#define INT4_SYMMETRIC 4
#define INT8_AFFINE 5
#define INT4_AFFINE 6
#define INT2_AFFINE 7

#define IS_SYMMETRIC(format) ((format) == INT8_SYMMETRIC || (format) == INT4_SYMMETRIC)
#define IS_AFFINE(format) ((format) == INT8_AFFINE || (format) == INT4_AFFINE || (format) == INT2_AFFINE)

#define MAGNITUDE 0x7fffffffu
#define SIGN 0x80000000u
#define INFINITE 0x7f800000u
#define LIMIT 0x7e800000u // 2^126
#define POISON 0x7fc0u
#define WEIGHTS_DOMAIN 1u
#define STATE_DOMAIN 2u

// ---- bytes and numbers ----

// Four numbers that a thread reads or writes at once.
typedef struct __attribute__((aligned(16))) {
    float v[4];
} Quad;

DEVICE u32 code_bits(u32 format) {
    return format == INT2_AFFINE ? 2 : format == INT4_SYMMETRIC || format == INT4_AFFINE ? 4 : 8;
}

DEVICE u32 head_bytes(u32 format) { return IS_AFFINE(format) ? 4 : 2; }

DEVICE u32 weight_bytes(u32 format, u32 dim) {
    if (format == F32) return 4 * dim;
    if (format == F16 || format == BF16) return 2 * dim;
    return head_bytes(format) + (dim * code_bits(format) + 7) / 8;
}

DEVICE u32 state_bytes(const struct Launch *launch) {
    return launch->tensors * launch->len * (launch->bf16_state ? 2 : 4);
}

// Stored rows are packed, so nothing in them need be aligned. Often words are.
DEVICE u32 load16(const u8 *at) { return at[0] | (u32)at[1] << 8; }
DEVICE u32 load32(const u8 *at) {
    if (((u64)at & 3) == 0) return *(const u32 *)at;
    return load16(at) | load16(at + 2) << 16;
}
DEVICE void store16(u8 *at, u32 value) {
    at[0] = (u8)value;
    at[1] = (u8)(value >> 8);
}
DEVICE void store32(u8 *at, u32 value) {
    if (((u64)at & 3) == 0) {
        *(u32 *)at = value;
    } else {
        store16(at, value);
        store16(at + 2, value >> 16);
    }
}

// The smallest bf16 that is at least x, for x >= 0.
DEVICE u32 up16(float x) { return (bits_of(x) + 0xffffu) >> 16; }
DEVICE float widen(u32 bf16) { return float_of(bf16 << 16); }

DEVICE float from_f16(u32 half) {
    u32 sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    if (exponent == 0) return float_of(sign | bits_of(mul((float)mantissa, 5.9604644775390625e-8f)));
    if (exponent == 31) return float_of(sign | INFINITE | mantissa << 13 | (mantissa ? 0x400000u : 0));
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Picks among the rounded magnitude, infinity and NaN, and puts the sign back.
DEVICE u32 finish16(u32 bits, u32 magnitude, u32 infinite) {
    u32 absolute = bits & MAGNITUDE, sign = (bits & SIGN) >> 16;
    if (absolute < INFINITE) return sign | (magnitude < infinite - 1 ? magnitude : infinite - 1);
    if (absolute == INFINITE) return sign | infinite;
    return infinite | (infinite & ~(infinite << 1)) >> 1;
}

DEVICE u32 bf16_stochastic(u32 bits, u32 k) { return finish16(bits, ((bits & MAGNITUDE) + k) >> 16, 0x7f80); }

DEVICE u32 bf16_nearest(u32 bits) {
    u32 absolute = bits & MAGNITUDE;
    return finish16(bits, (absolute + 0x7fff + (absolute >> 16 & 1)) >> 16, 0x7f80);
}

// A magnitude in steps of the smallest f16.
DEVICE float f16_steps(u32 absolute) { return mul(float_of(absolute), 16777216.0f); }

// A whole number below 2^23; of anything else, anything.
DEVICE u32 small_integer(float x) { return bits_of(add(x, 8388608.0f)) - 0x4b000000u; }

DEVICE u32 f16_stochastic(u32 bits, u32 k) {
    u32 absolute = bits & MAGNITUDE;
    u32 normal = ((absolute + (k >> 3)) >> 13) - (112u << 10);
    u32 subnormal = small_integer(floor_(add(f16_steps(absolute), mul((float)(i32)(k >> 3), 1.0f / 8192.0f))));
    return finish16(bits, absolute >= 0x38800000u ? normal : subnormal, 0x7c00);
}

DEVICE u32 f16_nearest(u32 bits) {
    u32 absolute = bits & MAGNITUDE;
    u32 normal = ((absolute + 0xfff + (absolute >> 13 & 1)) >> 13) - (112u << 10);
    u32 subnormal = small_integer(round_even(f16_steps(absolute)));
    return finish16(bits, absolute >= 0x38800000u ? normal : subnormal, 0x7c00);
}

// ---- random numbers ----

typedef struct {
    u32 word[4];
} Block;

// Philox4x32-10.
DEVICE Block philox(u32 block, u64 number, u32 partition, u32 seed, u32 domain) {
    u32 c0 = block, c1 = (u32)number, c2 = (u32)(number >> 32), c3 = partition;
    UNROLL
    for (u32 round = 0; round < 10; round++) {
        u64 p0 = (u64)0xd2511f53u * c0, p1 = (u64)0xcd9e8d57u * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ seed;
        c1 = (u32)p1;
        c2 = (u32)(p0 >> 32) ^ c3 ^ domain;
        c3 = (u32)p0;
        seed += 0x9e3779b9u;
        domain += 0xbb67ae85u;
    }
    Block words = {{c0, c1, c2, c3}};
    return words;
}

// ---- reading stored rows ----

// Weight `e` of a stored row.
DEVICE float decode_weight(u32 format, const u8 *row, u32 e) {
    if (format == F32) return float_of(load32(row + 4 * e));
    if (format == F16) return from_f16(load16(row + 2 * e));
    if (format == BF16) return widen(load16(row + 2 * e));
    u32 bits = code_bits(format), per_byte = 8 / bits;
    u32 code = row[head_bytes(format) + e / per_byte] >> (e % per_byte * bits) & ((1u << bits) - 1);
    float scale = widen(load16(row));
    if (format == INT8_SYMMETRIC) return mul((float)(i32)(i8)code, scale);
    if (format == INT4_SYMMETRIC) return mul((float)((i32)code - 8), scale);
    return mul((float)((i32)code + (i16)load16(row + 2)), scale);
}

// Puts up to four numbers in their place.
DEVICE void put(float *to, const Quad *numbers, u32 count) {
    if (count >= 4 && ((u64)to & 15) == 0) {
        *(Quad *)to = *numbers;
    } else {
        UNROLL
        for (u32 i = 0; i < 4; i++) {
            if (i < count) to[i] = numbers->v[i];
        }
    }
}

// Takes up to four numbers.
DEVICE Quad take(const float *from, u32 count) {
    Quad numbers = {{0, 0, 0, 0}};
    if (count >= 4 && ((u64)from & 15) == 0) {
        numbers = *(const Quad *)from;
    } else {
        UNROLL
        for (u32 i = 0; i < 4; i++) {
            if (i < count) numbers.v[i] = from[i];
        }
    }
    return numbers;
}

// ---- gather: `dim` numbers of each slot, in the format in which they are sent ----

DEVICE void gather(u32 format, const struct Launch *launch WHERE_PARAMETERS) {
    const u32 dim = launch->dim, quads = (dim + 3) / 4;
    EACH_THREAD {
        u32 i = BLOCK * THREADS + THREAD, row = i / quads, first = 4 * (i % quads);
        if (row >= launch->count) continue;
        Quad numbers = take((const float *)launch->slots[row] + first, dim - first);
        u64 place = (u64)row * dim + first;
        if (format == F32) {
            put((float *)launch->out + place, &numbers, dim - first);
            continue;
        }
        UNROLL
        for (u32 j = 0; j < 4; j++) {
            u32 bits = bits_of(numbers.v[j]);
            u32 half = format == F16 ? f16_nearest(bits) : bf16_nearest(bits);
            if (first + j < dim) ((u16 *)launch->out)[place + j] = (u16)half;
        }
    }
}

KERNEL(gather_f32) { gather(F32, &launch WHERE); }
KERNEL(gather_f16) { gather(F16, &launch WHERE); }
KERNEL(gather_bf16) { gather(BF16, &launch WHERE); }

// Bags of slots as one row each: a bag's rows are added in order.
KERNEL(gather_pooled) {
    const u32 dim = launch.dim, quads = (dim + 3) / 4;
    EACH_THREAD {
        u32 i = BLOCK * THREADS + THREAD, bag = i / quads, first = 4 * (i % quads);
        if (bag >= launch.count) continue;
        Quad sum = {{0, 0, 0, 0}};
        if (bag == 0 && launch.before) sum = take(launch.before + first, dim - first);
        for (u32 at = bag ? launch.ends[bag - 1] : 0; at < launch.ends[bag]; at++) {
            Quad weights = take((const float *)launch.slots[at] + first, dim - first);
            float factor = launch.values[at];
            UNROLL
            for (u32 j = 0; j < 4; j++) sum.v[j] = add(sum.v[j], mul(factor, weights.v[j]));
        }
        put((float *)launch.out + (u64)bag * dim + first, &sum, dim - first);
    }
}

// ---- fill and load: rows that come in ----

DEVICE void fill(u32 format, const struct Launch *launch WHERE_PARAMETERS) {
    const u32 dim = launch->dim, state = launch->tensors * launch->len;
    const u32 weight_quads = (dim + 3) / 4, quads = weight_quads + (state + 3) / 4;
    EACH_THREAD {
        u32 i = BLOCK * THREADS + THREAD, row = i / quads, quad = i % quads;
        if (row >= launch->count) continue;
        const u8 *stored = launch->stored + (u64)row * (weight_bytes(format, dim) + state_bytes(launch));
        float *slot = (float *)launch->slots[row];
        Quad numbers = {{0, 0, 0, 0}};
        if (quad < weight_quads) {
            u32 first = 4 * quad;
            UNROLL
            for (u32 j = 0; j < 4; j++) {
                if (first + j < dim) numbers.v[j] = decode_weight(format, stored, first + j);
            }
            put(slot + first, &numbers, dim - first);
        } else {
            u32 first = 4 * (quad - weight_quads);
            stored += weight_bytes(format, dim);
            UNROLL
            for (u32 j = 0; j < 4; j++) {
                if (first + j >= state) continue;
                numbers.v[j] = launch->bf16_state ? widen(load16(stored + 2 * (first + j)))
                                                  : float_of(load32(stored + 4 * (first + j)));
            }
            put(slot + dim + first, &numbers, state - first);
        }
    }
}

KERNEL(fill_f32) { fill(F32, &launch WHERE); }
KERNEL(fill_f16) { fill(F16, &launch WHERE); }
KERNEL(fill_bf16) { fill(BF16, &launch WHERE); }
KERNEL(fill_int8_symmetric) { fill(INT8_SYMMETRIC, &launch WHERE); }
KERNEL(fill_int4_symmetric) { fill(INT4_SYMMETRIC, &launch WHERE); }
KERNEL(fill_int8_affine) { fill(INT8_AFFINE, &launch WHERE); }
KERNEL(fill_int4_affine) { fill(INT4_AFFINE, &launch WHERE); }
KERNEL(fill_int2_affine) { fill(INT2_AFFINE, &launch WHERE); }

KERNEL(load) {
    const u32 len = launch.dim + launch.tensors * launch.len, quads = (len + 3) / 4;
    EACH_THREAD {
        u32 i = BLOCK * THREADS + THREAD, row = i / quads, first = 4 * (i % quads);
        if (row >= launch.count) continue;
        Quad numbers = take(launch.values + (u64)row * len + first, len - first);
        put((float *)launch.slots[row] + first, &numbers, len - first);
    }
}

// ---- update: one optimizer step on each slot ----

#define SGD 0
#define ADAGRAD 1
#define ROWWISE_ADAGRAD 2
#define ADAM 3

// The tree over the sums of 32 lanes.
DEVICE float tree(float *lanes) {
    for (u32 half = LANES / 2; half > 0; half /= 2) {
        for (u32 lane = 0; lane < half; lane++) lanes[lane] = add(lanes[lane], lanes[lane + half]);
    }
    return lanes[0];
}

// Element of a gradient as the rule changes it: clipped, then with weight decay.
DEVICE float changed(const struct Launch *launch, float gradient, float factor, float weight) {
    float g = mul(gradient, factor);
    return launch->weight_decay != 0 ? add(g, mul(launch->weight_decay, weight)) : g;
}

DEVICE void update(u32 step, const struct Launch *launch WHERE_PARAMETERS) {
    SHARED float lanes[ROWS][LANES];
    SHARED float factors[ROWS];
    SHARED float rates[ROWS];
    const u32 dim = launch->dim;
    // The factor that brings a gradient to the largest norm.
    EACH_THREAD {
        u32 lane = THREAD % LANES, y = THREAD / LANES, row = BLOCK * ROWS + y;
        if (!launch->clips || row >= launch->count) continue;
        const float *gradient = launch->values + (u64)row * dim;
        float sum = 0;
        for (u32 e = lane; e < dim; e += LANES) sum = add(sum, mul(gradient[e], gradient[e]));
        lanes[y][lane] = sum;
    }
    EACH_THREAD {
        u32 y = THREAD / LANES, row = BLOCK * ROWS + y;
        if (THREAD % LANES != 0 || row >= launch->count) continue;
        factors[y] = 1;
        if (launch->clips) {
            float norm = root(tree(lanes[y]));
            if (norm > launch->clip_norm) factors[y] = divide(launch->clip_norm, norm);
        }
    }
    if (step == ROWWISE_ADAGRAD) {
        EACH_THREAD {
            u32 lane = THREAD % LANES, y = THREAD / LANES, row = BLOCK * ROWS + y;
            if (row >= launch->count) continue;
            const float *gradient = launch->values + (u64)row * dim, *weights = (const float *)launch->slots[row];
            float sum = 0;
            for (u32 e = lane; e < dim; e += LANES) {
                float g = changed(launch, gradient[e], factors[y], weights[e]);
                sum = add(sum, mul(g, g));
            }
            lanes[y][lane] = sum;
        }
        EACH_THREAD {
            u32 y = THREAD / LANES, row = BLOCK * ROWS + y;
            if (THREAD % LANES != 0 || row >= launch->count) continue;
            float *state = (float *)launch->slots[row] + dim;
            float sum = add(state[0], divide(tree(lanes[y]), (float)dim));
            state[0] = sum;
            rates[y] = divide(launch->lr, add(root(sum), launch->eps));
        }
    }
    EACH_THREAD {
        u32 lane = THREAD % LANES, y = THREAD / LANES, row = BLOCK * ROWS + y;
        if (row >= launch->count) continue;
        const float *gradient = launch->values + (u64)row * dim;
        float *weights = (float *)launch->slots[row], *first = weights + dim, *second = first + dim;
        for (u32 e = lane; e < dim; e += LANES) {
            float w = weights[e], g = changed(launch, gradient[e], factors[y], w);
            if (step == SGD) {
                w = sub(w, mul(launch->lr, g));
            } else if (step == ADAGRAD) {
                float sum = add(first[e], mul(g, g));
                first[e] = sum;
                w = sub(w, mul(launch->lr, divide(g, add(root(sum), launch->eps))));
            } else if (step == ROWWISE_ADAGRAD) {
                w = sub(w, mul(rates[y], g));
            } else {
                if (launch->decay != 1) w = mul(w, launch->decay);
                float m = first[e], v = second[e];
                m = add(m, mul(sub(g, m), launch->rate1));
                v = add(v, mul(sub(mul(g, g), v), launch->rate2));
                first[e] = m;
                second[e] = v;
                w = sub(w, mul(launch->lr, divide(m, add(root(v), launch->eps))));
            }
            weights[e] = w;
        }
    }
}

KERNEL(update_sgd) { update(SGD, &launch WHERE); }
KERNEL(update_adagrad) { update(ADAGRAD, &launch WHERE); }
KERNEL(update_rowwise_adagrad) { update(ROWWISE_ADAGRAD, &launch WHERE); }
KERNEL(update_adam) { update(ADAM, &launch WHERE); }

// ---- write-back: rows that leave are rounded ----

// How the elements of one row become codes.
typedef struct {
    u32 scale;    // as bf16
    float step;   // the same as f32
    float origin; // affine: what is taken off first
    u32 zeros;    // whether all codes are those of zero
    u32 poisoned; // whether there was a NaN or an infinity
} Coding;

DEVICE u32 symmetric_scale(float max, float largest) {
    u32 scale = up16(divide(max, largest));
    while (max > mul(largest, widen(scale))) scale++;
    return scale;
}

// Returns the scale, and the zero point above it.
DEVICE u32 affine_scale(float lo, float hi, float max, float codes) {
    float narrowest = divide(sub(hi, lo), codes), addressable = divide(max, 32767.0f);
    u32 scale = up16(narrowest > addressable ? narrowest : addressable);
    if (scale == 0) scale = 1;
    for (;; scale++) {
        float s = widen(scale), zero = floor_(divide(lo, s));
        if (mul(zero, s) > lo) zero = sub(zero, 1.0f);
        if (zero >= -32768.0f && zero <= 32767.0f && divide(sub(hi, mul(zero, s)), s) <= codes) {
            return scale | ((u32)(i32)zero & 0xffff) << 16;
        }
    }
}

DEVICE float limited(float x) {
    float limit = float_of(LIMIT);
    return x > limit ? limit : x < -limit ? -limit : x;
}

// The coding of a row with this largest magnitude (its bits), smallest and largest element; its head is written to `row`.
DEVICE Coding coding(u32 format, u32 max_bits, float lo, float hi, u8 *row) {
    Coding coding = {0, 0, 0, 0, 0};
    if (max_bits >= INFINITE) {
        coding.poisoned = 1;
        store16(row, POISON);
        if (IS_AFFINE(format)) store16(row + 2, 0);
        return coding;
    }
    float max = limited(float_of(max_bits));
    if (IS_SYMMETRIC(format)) {
        coding.scale = symmetric_scale(max, format == INT8_SYMMETRIC ? 127.0f : 7.0f);
        coding.zeros = coding.scale == 0;
    } else if (max == 0) {
        coding.zeros = 1;
        store16(row + 2, 0);
    } else {
        u32 both = affine_scale(limited(lo), limited(hi), max, (float)((1u << code_bits(format)) - 1));
        coding.scale = both & 0xffff;
        store16(row + 2, both >> 16);
        coding.origin = mul((float)(i16)(both >> 16), widen(coding.scale));
    }
    coding.step = widen(coding.scale);
    store16(row, coding.scale);
    return coding;
}

// The code of one element; `k` are its 16 random bits.
DEVICE u32 encode(u32 format, const Coding *coding, float x, u32 k, u32 stochastic) {
    if (format == F16) return stochastic ? f16_stochastic(bits_of(x), k) : f16_nearest(bits_of(x));
    if (format == BF16) return stochastic ? bf16_stochastic(bits_of(x), k) : bf16_nearest(bits_of(x));
    if (coding->poisoned || (IS_AFFINE(format) && coding->zeros)) return 0;
    float position = 0;
    if (!coding->zeros) {
        x = limited(x);
        position = divide(IS_AFFINE(format) ? sub(x, coding->origin) : x, coding->step);
        if (stochastic) position = floor_(add(position, mul((float)(i32)k, 1.0f / 65536.0f)));
    }
    // Added to 1.5 * 2^23 it stands in the lowest bits, rounded to the nearest where it is not whole.
    float offset = format == INT4_SYMMETRIC ? 12582920.0f : 12582912.0f;
    return bits_of(add(position, offset)) & 0xff;
}

// Encodes `dim` numbers at the start of each slot (`skip` numbers further on) into `out`, where rows are `stride` apart.
DEVICE void encode_rows(u32 format, const struct Launch *launch, u32 skip, u32 dim, u8 *out, u32 stride, u32 stochastic,
                        u32 domain WHERE_PARAMETERS) {
    SHARED Coding codings[ROWS];
    SHARED u32 most[ROWS][LANES];
    SHARED float least[ROWS][LANES], greatest[ROWS][LANES];
    SHARED u16 codes[ROWS][PASS];
    if (IS_SYMMETRIC(format) || IS_AFFINE(format)) {
        EACH_THREAD {
            u32 lane = THREAD % LANES, y = THREAD / LANES, row = BLOCK * ROWS + y;
            if (row >= launch->count) continue;
            const float *x = (const float *)launch->slots[row] + skip;
            u32 max = 0;
            float lo = float_of(INFINITE), hi = float_of(INFINITE | SIGN);
            for (u32 e = lane; e < dim; e += LANES) {
                u32 magnitude = bits_of(x[e]) & MAGNITUDE;
                max = magnitude > max ? magnitude : max;
                if (IS_AFFINE(format)) {
                    lo = x[e] < lo ? x[e] : lo;
                    hi = x[e] > hi ? x[e] : hi;
                }
            }
            most[y][lane] = max;
            least[y][lane] = lo;
            greatest[y][lane] = hi;
        }
        EACH_THREAD {
            u32 y = THREAD / LANES, row = BLOCK * ROWS + y;
            if (THREAD % LANES != 0 || row >= launch->count) continue;
            u32 max = most[y][0];
            float lo = least[y][0], hi = greatest[y][0];
            for (u32 lane = 1; lane < LANES; lane++) {
                max = most[y][lane] > max ? most[y][lane] : max;
                lo = least[y][lane] < lo ? least[y][lane] : lo;
                hi = greatest[y][lane] > hi ? greatest[y][lane] : hi;
            }
            codings[y] = coding(format, max, lo, hi, out + (u64)row * stride);
        }
    }
    for (u32 pass = 0; pass < dim; pass += PASS) {
        // Elements 8 apart share a block of random numbers, so a lane takes these.
        EACH_THREAD {
            u32 lane = THREAD % LANES, y = THREAD / LANES, row = BLOCK * ROWS + y;
            u32 first = lane / 8 * 64 + lane % 8;
            if (row >= launch->count || pass + first >= dim) continue;
            const float *x = (const float *)launch->slots[row] + skip + pass;
            Block noise = {{0, 0, 0, 0}};
            if (stochastic) {
                u32 block = (pass + first) / 64 * 8 + lane % 8;
                noise = philox(block, launch->numbers[row], launch->partitions[row], launch->seed, domain);
            }
            UNROLL
            for (u32 j = 0; j < 8; j++) {
                u32 e = first + 8 * j;
                if (pass + e >= dim) continue;
                u32 k = noise.word[j / 2] >> (16 * (j % 2)) & 0xffff;
                codes[y][e] = (u16)encode(format, &codings[y], x[e], k, stochastic);
            }
        }
        EACH_THREAD {
            u32 lane = THREAD % LANES, y = THREAD / LANES, row = BLOCK * ROWS + y;
            if (row >= launch->count) continue;
            u8 *to = out + (u64)row * stride;
            u32 left = dim - pass < PASS ? dim - pass : PASS;
            if (format == F16 || format == BF16) {
                for (u32 e = lane; e < left; e += LANES) store16(to + 2 * (pass + e), codes[y][e]);
                continue;
            }
            u32 bits = code_bits(format), per_byte = 8 / bits;
            to += head_bytes(format) + pass / per_byte;
            for (u32 at = lane; at < (left + per_byte - 1) / per_byte; at += LANES) {
                u32 byte = 0;
                for (u32 j = 0; j < per_byte; j++) {
                    if (at * per_byte + j < left) byte |= (u32)codes[y][at * per_byte + j] << (j * bits);
                }
                to[at] = (u8)byte;
            }
        }
    }
}

// Numbers that are stored as they are.
DEVICE void copy_rows(const struct Launch *launch, u32 skip, u32 dim, u8 *out, u32 stride WHERE_PARAMETERS) {
    EACH_THREAD {
        u32 lane = THREAD % LANES, row = BLOCK * ROWS + THREAD / LANES;
        if (row >= launch->count) continue;
        const float *x = (const float *)launch->slots[row] + skip;
        for (u32 e = lane; e < dim; e += LANES) store32(out + (u64)row * stride + 4 * e, bits_of(x[e]));
    }
}

DEVICE u64 mix64(u64 x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// The squared rounding error of the rows in the sample.
DEVICE void measure(u32 format, const struct Launch *launch, u32 stride WHERE_PARAMETERS) {
    SHARED float lanes[ROWS][LANES];
    EACH_THREAD {
        u32 lane = THREAD % LANES, y = THREAD / LANES, row = BLOCK * ROWS + y;
        if (row >= launch->count || mix64(launch->numbers[row]) % 16 != 0) continue;
        const float *x = (const float *)launch->slots[row];
        float sum = 0;
        for (u32 e = lane; e < launch->dim; e += LANES) {
            float error = sub(decode_weight(format, launch->out + (u64)row * stride, e), x[e]);
            sum = add(sum, mul(error, error));
        }
        lanes[y][lane] = sum;
    }
    EACH_THREAD {
        u32 y = THREAD / LANES, row = BLOCK * ROWS + y;
        if (THREAD % LANES != 0 || row >= launch->count) continue;
        launch->errors[row] = mix64(launch->numbers[row]) % 16 == 0 ? tree(lanes[y]) : 0;
    }
}

DEVICE void write_back(u32 format, const struct Launch *launch WHERE_PARAMETERS) {
    const u32 dim = launch->dim, weights = weight_bytes(format, dim), stride = weights + state_bytes(launch);
    if (format == F32) {
        copy_rows(launch, 0, dim, launch->out, stride WHERE);
    } else {
        encode_rows(format, launch, 0, dim, launch->out, stride, launch->stochastic, WEIGHTS_DOMAIN WHERE);
    }
    if (!launch->bf16_state) {
        copy_rows(launch, dim, launch->tensors * launch->len, launch->out + weights, stride WHERE);
    } else {
        for (u32 t = 0; t < launch->tensors; t++) {
            u8 *out = launch->out + weights + 2 * t * launch->len;
            encode_rows(BF16, launch, dim + t * launch->len, launch->len, out, stride, launch->stochastic,
                        STATE_DOMAIN + t WHERE);
        }
    }
    measure(format, launch, stride WHERE);
}

KERNEL(write_back_f32) { write_back(F32, &launch WHERE); }
KERNEL(write_back_f16) { write_back(F16, &launch WHERE); }
KERNEL(write_back_bf16) { write_back(BF16, &launch WHERE); }
KERNEL(write_back_int8_symmetric) { write_back(INT8_SYMMETRIC, &launch WHERE); }
KERNEL(write_back_int4_symmetric) { write_back(INT4_SYMMETRIC, &launch WHERE); }
KERNEL(write_back_int8_affine) { write_back(INT8_AFFINE, &launch WHERE); }
KERNEL(write_back_int4_affine) { write_back(INT4_AFFINE, &launch WHERE); }
KERNEL(write_back_int2_affine) { write_back(INT2_AFFINE, &launch WHERE); }

// The int8 in which rows are sent.
KERNEL(gather_int8) {
    encode_rows(INT8_SYMMETRIC, &launch, 0, launch.dim, launch.out, 2 + launch.dim, 0, WEIGHTS_DOMAIN WHERE);
}
