// Attention of spans of many tokens with the accuracy of float32, on tensor cores. -DCACHE.
//
// Each float32 operand is split into two float16 values (Markidis et al., 2018): the value nearest to the operand, and
// the value nearest to the remainder. Together they have 22 bits or more. A product becomes three products: near ·
// near, near · remainder, and remainder · near. The product of the two remainders is below float32's last bit. Sums are
// float32. Tensor cores truncate their sums, so the small products have separate sums, and a tile's sum is added to the
// output by an FMA.
//
// Before the split, operands are multiplied by a power of two: one for each row of q, one for each tile of keys, and
// one for each tile of values. This factor brings the largest value into the range 2^14 to 2^15. So the bits that
// float16 loses are below 2^-38 of the largest value. Softmax weights are at most 1 and are multiplied by 2^14. All
// these factors are divided out exactly. A cache of 16-bit values needs no remainders: a scaled value is either exactly
// a float16 value, or its remainder is too small for float16.
//
// The relative L2 distance from float64 is about that of attention_prefill.cu. In the emulation, with normally
// distributed values and up to 370 keys, it is 1e-7 to 9e-7; that of attention_prefill.cu is 1e-7 to 1.6e-6.
//
// If a block meets a value of 2^60 or more, infinity or NaN, it computes all of its rows with attention_prefill.cuh.
//
// The tiles are those of FlashAttention-2 (Dao, 2023). A block has 128 rows: for each token, one row for each query
// head of one kv head. Each of its eight warps has 16 of these rows in registers, and loops over all keys in tiles of
// 32.
#define PRECISION F32
#include "attention_prefill.cuh"
#include "tensor.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int ROWS = 128;  // of a block
constexpr int KEYS = 32;   // of a tile
constexpr uint32_t TOO_LARGE = 0x5d800000;  // 2^60

// Returns the larger of `largest` and the absolute value of x. Absolute values are compared by their bits.
__device__ inline uint32_t larger_size(uint32_t largest, float x) { return max(largest, __float_as_uint(x) & 0x7fffffff); }

// The power of two, at most 2^100, that brings absolute values up to `largest` below 2^15. `largest` is less than
// TOO_LARGE.
__device__ inline float scale_of(uint32_t largest) {
    return __uint_as_float(min(268u - (largest >> 23), 227u) << 23);
}
// Returns 1 / scale for a power of two from scale_of.
__device__ inline float inverse_of(float scale) { return __uint_as_float(0x7f000000 - __float_as_uint(scale)); }

// Splits two values: `near` has the nearest float16 values, the first in the lower half, and `rest` has their
// remainders.
__device__ inline void split(float low, float high, uint32_t& near, uint32_t& rest) {
    near = pair_half(low, high);
    rest = pair_half(__fsub_rn(low, half_to_float(static_cast<uint16_t>(near))),
                     __fsub_rn(high, half_to_float(static_cast<uint16_t>(near >> 16))));
}

// 2^BY · e^x for x ≤ 0, with the bits of exp_of_ops. Below -80 the result is that for -80.
template <int BY>
__device__ inline float exp_scaled(float x) {
    const float ROUND = 12582912.0f;
    x = fmaxf(x, -80.0f);
    const float shifted = __fmaf_rn(x, 1.44269504088896340736f, ROUND);
    const float n = __fsub_rn(shifted, ROUND);
    const float r = __fmaf_rn(n, -1.428606765330187e-06f, __fmaf_rn(n, -0.693145751953125f, x));
    float tail = __fmaf_rn(r, 1.0f / 5040.0f, 1.0f / 720.0f);
    tail = __fmaf_rn(tail, r, 1.0f / 120.0f);
    tail = __fmaf_rn(tail, r, 1.0f / 24.0f);
    tail = __fmaf_rn(tail, r, 1.0f / 6.0f);
    tail = __fmaf_rn(tail, r, 0.5f);
    const float series = __fadd_rn(__fmaf_rn(__fmul_rn(r, r), tail, r), 1.0f);
    return __uint_as_float(__float_as_uint(series) + ((__float_as_uint(shifted) - __float_as_uint(ROUND) + BY) << 23));
}

// N: maximum number of channels, 64 or 128.
template <int N>
__device__ inline void attend(const Attention& shape, const float* q, const Span* span_at, const Cached* keys,
                              const Cached* values, float* out) {
    // N values fill all 32 banks a whole number of times, and each row has 8 values (4 banks) more. So the same eight
    // channels of eight consecutive rows lie in 32 different banks.
    constexpr int STRIDE = N + 8, STEPS = N / 16, EIGHTS = N / 8, EACH = KEYS * EIGHTS / THREADS;
    constexpr bool RESTS = Same<CACHE, F32>::value;
    constexpr int PARTS = RESTS ? 2 : 1;  // 16 bytes for each eight values
    // The next tile of keys and of values, in the cache's number type. Each thread copies its own part.
    DYNAMIC_SHARED(uint4, coming);  // (2, EACH, PARTS, THREADS)
    uint16_t* const tiles = reinterpret_cast<uint16_t*>(coming + 2 * EACH * PARTS * THREADS);
    uint16_t *const key_near = tiles, *const value_near = tiles + KEYS * STRIDE;  // (KEYS, STRIDE)
    uint16_t *const key_rest = tiles + 2 * KEYS * STRIDE, *const value_rest = tiles + 3 * KEYS * STRIDE;
    SHARED(uint32_t, largest, 2 * WARPS);

    const Span span = *span_at;
    const int head_dim = shape.head_dim, group = shape.heads / shape.kv_heads, kv_head = blockIdx.x;
    // The blocks with the most keys start first, for all kv heads.
    const int first_row = (gridDim.y - 1 - blockIdx.y) * ROWS, end_row = min(first_row + ROWS, span.tokens * group);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, steps = ceil_div(head_dim, 16);
    // Returns the offset of a row's query, which is also that of its output. A row beyond the last one repeats the last
    // one; its result is not written.
    auto place = [&](int row) {
        int there = min(first_row + row, end_row - 1), head = kv_head * group + there % group;
        return ((static_cast<long long>(span.first) + there / group) * shape.heads + head) * head_dim;
    };
    auto position = [&](int row) { return span.start + min(first_row + row, end_row - 1) / group; };

    const long long stride = static_cast<long long>(shape.kv_heads) * head_dim;
    const int from = first_visible(shape, position(0)), to = position(ROWS - 1) + 1;
    auto ask = [&](int first) {
#pragma unroll
        for (int which = 0; which < 2; which++) {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int i = threadIdx.x + e * THREADS, key = i / EIGHTS, c = i % EIGHTS * 8;
                const bool there = first + key < to && c < head_dim;
                const Cached* at = (which == 0 ? keys : values) + (first + key) * stride +
                                   static_cast<long long>(kv_head) * head_dim + c;
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    copy16_async_if(there, coming + ((which * EACH + e) * PARTS + part) * THREADS + threadIdx.x,
                                    reinterpret_cast<const uint4*>(at) + part);
                }
            }
        }
        close_copies();
    };
    ask(from);

    // This lane has the rows lane / 4 and lane / 4 + 8. In every eight columns, it has columns 2 · (lane mod 4) and 2 ·
    // (lane mod 4) + 1. Its queries are in the layout of multiply_tiles.
    uint32_t q_near[STEPS][4], q_rest[STEPS][4], largest_query = 0;
    float q_inverse[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float* at = q + place(16 * warp + lane / 4 + 8 * r) + lane % 4 * 2;
        float2 two[2 * STEPS];
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            two[i] = {0.0f, 0.0f};
            if (8 * i < head_dim) two[i] = *reinterpret_cast<const float2*>(at + 8 * i);
            most = larger_size(larger_size(most, two[i].x), two[i].y);
        }
        // The maximum over the four lanes that share a row.
        most = max(most, __shfl_xor_sync(FULL, most, 1));
        most = max(most, __shfl_xor_sync(FULL, most, 2));
        largest_query = max(largest_query, most);
        const float scale = scale_of(min(most, TOO_LARGE));
        q_inverse[r] = inverse_of(scale);
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            split(two[i].x * scale, two[i].y * scale, q_near[i / 2][i % 2 * 2 + r], q_rest[i / 2][i % 2 * 2 + r]);
        }
    }

    const float inverse_root = __fdiv_rn(1.0f, root_of(shape));
    float maxima[2], sums[2] = {}, mixed[2 * STEPS][4] = {};
    maxima[0] = maxima[1] = minus_infinity();
    const int first_of_warp = position(16 * warp), last_of_warp = position(16 * warp + 15);
    const bool has_rows = first_row + 16 * warp < end_row;

    bool too_large = false;
    for (int first = from; first < to; first += KEYS) {
        wait_for_copies<0>();
        float eights[2][EACH][8];
        uint32_t most[2];
        most[0] = first == from && largest_query >= TOO_LARGE ? TOO_LARGE : 0, most[1] = 0;
#pragma unroll
        for (int which = 0; which < 2; which++) {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const uint4* at = coming + (which * EACH + e) * PARTS * THREADS + threadIdx.x;
                const Eight eight = {at[0], at[(PARTS - 1) * THREADS]};
                widen_cached8(eight, eights[which][e]);
#pragma unroll
                for (int i = 0; i < 8; i++) most[which] = larger_size(most[which], eights[which][e][i]);
            }
            for (int apart = 16; apart > 0; apart /= 2) {
                most[which] = max(most[which], __shfl_xor_sync(FULL, most[which], apart));
            }
            if (lane == 0) largest[which * WARPS + warp] = most[which];
        }
        // After this barrier, all threads have multiplied the previous tiles.
        __syncthreads();
        float scales[2];
#pragma unroll
        for (int which = 0; which < 2; which++) {
#pragma unroll
            for (int i = 0; i < WARPS; i += 4) {
                const uint4 four = *reinterpret_cast<const uint4*>(largest + which * WARPS + i);
                most[which] = max(max(max(most[which], four.x), max(four.y, four.z)), four.w);
            }
            too_large = too_large || most[which] >= TOO_LARGE;
            scales[which] = scale_of(min(most[which], TOO_LARGE));
        }
        if (too_large) break;
        if (first + KEYS < to) ask(first + KEYS);
#pragma unroll
        for (int which = 0; which < 2; which++) {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int i = threadIdx.x + e * THREADS, place = i / EIGHTS * STRIDE + i % EIGHTS * 8;
                uint32_t near[4], rest[4];
#pragma unroll
                for (int pair = 0; pair < 4; pair++) {
                    split(eights[which][e][2 * pair] * scales[which], eights[which][e][2 * pair + 1] * scales[which],
                          near[pair], rest[pair]);
                }
                *reinterpret_cast<uint4*>((which == 0 ? key_near : value_near) + place) =
                    make_uint4(near[0], near[1], near[2], near[3]);
                if constexpr (RESTS) {
                    *reinterpret_cast<uint4*>((which == 0 ? key_rest : value_rest) + place) =
                        make_uint4(rest[0], rest[1], rest[2], rest[3]);
                }
            }
        }
        __syncthreads();
        // Skips the tile if no row of the warp sees any of the tile's keys.
        if (!has_rows || first > last_of_warp || first + KEYS <= first_visible(shape, first_of_warp)) continue;

        float scores[KEYS / 8][4] = {}, small[KEYS / 8][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step >= steps) break;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j += 2) {
                const int at = (8 * j + lane / 16 * 8 + lane % 8) * STRIDE + 16 * step + lane / 8 % 2 * 8;
                uint32_t four[4];
                load_matrices<false>(four, key_near + at);
                const uint32_t b[2] = {four[0], four[1]}, c[2] = {four[2], four[3]};
                multiply_half_tiles(scores[j], q_near[step], b), multiply_half_tiles(scores[j + 1], q_near[step], c);
                multiply_half_tiles(small[j], q_rest[step], b), multiply_half_tiles(small[j + 1], q_rest[step], c);
                if constexpr (RESTS) {
                    load_matrices<false>(four, key_rest + at);
                    const uint32_t b[2] = {four[0], four[1]}, c[2] = {four[2], four[3]};
                    multiply_half_tiles(small[j], q_near[step], b), multiply_half_tiles(small[j + 1], q_near[step], c);
                }
            }
        }

        // Whether the tile may have a key that some row of the warp does not see.
        const bool hides = first + KEYS - 1 > first_of_warp || shape.window > 0;
        float factors[2];
        uint32_t weights[KEYS / 8][2], weight_rests[KEYS / 8][2];  // of eight keys, this lane's two in each row
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float undo = __fmul_rn(__fmul_rn(q_inverse[r], inverse_of(scales[0])), inverse_root);
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++) scores[j][i] = __fmul_rn(__fadd_rn(scores[j][i], small[j][i]), undo);
            }
            if (hides) {
                const int own = position(16 * warp + lane / 4 + 8 * r), start = first_visible(shape, own);
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int key = first + 8 * j + lane % 4 * 2 + i;
                        if (key < start || key > own) scores[j][2 * r + i] = minus_infinity();
                    }
                }
            }
            float max = maxima[r];
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) max = fmaxf(fmaxf(max, scores[j][2 * r]), scores[j][2 * r + 1]);
            // The maximum over the four lanes that share a row.
            max = fmaxf(max, __shfl_xor_sync(FULL, max, 1));
            max = fmaxf(max, __shfl_xor_sync(FULL, max, 2));
            // A row that has not seen a key yet has no maximum. Then 0 is subtracted.
            const float subtracted = max == minus_infinity() ? 0.0f : max;
            factors[r] = exp_scaled<0>(maxima[r] - subtracted);
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
                const float low = exp_scaled<14>(scores[j][2 * r] - subtracted);
                const float high = exp_scaled<14>(scores[j][2 * r + 1] - subtracted);
                sum += low + high;
                split(low, high, weights[j][r], weight_rests[j][r]);
            }
            maxima[r] = max;
            sums[r] = __fmaf_rn(sums[r], factors[r], sum);
        }

        const float undo = inverse_of(scales[1]);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step >= steps) break;
            float two[2][4] = {}, small[2][4] = {};
#pragma unroll
            for (int k = 0; k < KEYS / 16; k++) {
                const uint32_t a[4] = {weights[2 * k][0], weights[2 * k][1], weights[2 * k + 1][0], weights[2 * k + 1][1]};
                const uint32_t a_rest[4] = {weight_rests[2 * k][0], weight_rests[2 * k][1], weight_rests[2 * k + 1][0],
                                            weight_rests[2 * k + 1][1]};
                const int at = (16 * k + lane % 16) * STRIDE + 16 * step + lane / 16 * 8;
                uint32_t four[4];
                load_matrices<true>(four, value_near + at);
                const uint32_t b[2] = {four[0], four[1]}, c[2] = {four[2], four[3]};
                multiply_half_tiles(two[0], a, b), multiply_half_tiles(two[1], a, c);
                multiply_half_tiles(small[0], a_rest, b), multiply_half_tiles(small[1], a_rest, c);
                if constexpr (RESTS) {
                    load_matrices<true>(four, value_rest + at);
                    const uint32_t b[2] = {four[0], four[1]}, c[2] = {four[2], four[3]};
                    multiply_half_tiles(small[0], a, b), multiply_half_tiles(small[1], a, c);
                }
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float& sum = mixed[2 * step + j][i];
                    sum = __fmaf_rn(__fadd_rn(two[j][i], small[j][i]), undo, __fmul_rn(sum, factors[i / 2]));
                }
            }
        }
    }
    if (too_large) {
        wait_for_copies<0>();
        for (int row = first_row; row < end_row; row += 64) {
            __syncthreads();
            prefill<N, 64>(shape, kv_head, row, q, span_at, keys, values, out);
        }
        return;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sums[r] += __shfl_xor_sync(FULL, sums[r], 1);
        sums[r] += __shfl_xor_sync(FULL, sums[r], 2);
        const int row = 16 * warp + lane / 4 + 8 * r;
        if (first_row + row >= end_row) continue;
        float* to_row = out + place(row);
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) {
            const int c = 8 * j + lane % 4 * 2;
            if (c >= head_dim) continue;
            const float2 pair = {__fdiv_rn(mixed[j][2 * r], sums[r]), __fdiv_rn(mixed[j][2 * r + 1], sums[r])};
            *reinterpret_cast<float2*>(to_row + c) = pair;
        }
    }
}

// Attention of a span of any number of tokens. C is a multiple of 8 and at most N, the number in the name. Grid (G,
// ceil(T · H/G / 128)), block 256, dynamic shared memory: the larger of the memory for the tiles, 512 · N + 2048 bytes,
// and the memory of attention_prefill.cuh for 64 rows, 4 · (96 · (N + 4) + 64 · 36).
KERNEL_WITH(256, 2) attention_split_64(Attention shape, const float* q, const Span* span, const Cached* keys,
                                       const Cached* values, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    attend<64>(shape, q, span, keys, values, out);
}
KERNEL(256) attention_split_128(Attention shape, const float* q, const Span* span, const Cached* keys,
                                const Cached* values, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    attend<128>(shape, q, span, keys, values, out);
}

#define KERNELS_OF_THIS_FILE(X) X(attention_split_64) X(attention_split_128)
