// Attention of many tokens in bfloat16, on tensor cores. PRECISION and CACHE are both BF16 here.
//
// The method is that of attention_prefill.cu, with the tiles of FlashAttention-2 (Dao, 2023). A block has 64 rows: for
// each token, one row for each query head of one kv head. Each of its four warps has 16 of these rows, and loops over
// all keys in tiles of 64. So a row's scores, its softmax and its output never leave the warp's registers. Qk and
// scores are rounded as in `llama_trace_core::ops`: multiplying by the rounded 1 / √C and then rounding gives the same
// as dividing by √C and then rounding. This holds for all bfloat16 values and every C that occurs (a test in
// attention.rs checks it). The weights are rounded before they are divided by their sum; ops rounds them after the
// division. Tensor cores also add the weights up. A key that a row does not see has the weight 0 in that row. If the
// value of this key is infinite or NaN, and another row of the block sees the key, the row becomes NaN.
#include "attention_sizes.cuh"
#include "tensor.cuh"

constexpr int THREADS = 128;
constexpr int ROWS = 64;  // of a block
constexpr int KEYS = 64;  // of a tile

// N: maximum number of channels, 64, 128 or 256.
template <int N>
__device__ inline void prefill(const Attention& shape, const float* q, const Span* span_at, const uint16_t* keys,
                               const uint16_t* values, float* out, uint16_t* narrow) {
    // N values fill all 32 banks a whole number of times, and each row has 8 values (4 banks) more. So the same eight
    // channels of eight consecutive rows lie in 32 different banks.
    constexpr int STRIDE = N + 8, STEPS = N / 16;
    DYNAMIC_SHARED(uint16_t, queries);              // (ROWS, STRIDE)
    uint16_t* key_tile = queries + ROWS * STRIDE;   // (KEYS, STRIDE)
    uint16_t* value_tile = key_tile + KEYS * STRIDE;  // (KEYS, STRIDE)

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

    // Channels are multiplied sixteen at a time. If C is not a multiple of 16, the missing channels of queries and keys
    // are zeros.
    constexpr int EIGHTS = N / 8;
    for (int i = threadIdx.x; i < ROWS * EIGHTS; i += THREADS) {
        int row = i / EIGHTS, c = i % EIGHTS * 8;
        float eight[8] = {};
        if (c < head_dim) load8(q + place(row) + c, eight);
        uint4 words = make_uint4(pair_bf16(eight[0], eight[1]), pair_bf16(eight[2], eight[3]),
                                 pair_bf16(eight[4], eight[5]), pair_bf16(eight[6], eight[7]));
        *reinterpret_cast<uint4*>(queries + row * STRIDE + c) = words;
    }
    const long long stride = static_cast<long long>(shape.kv_heads) * head_dim;
    const int from = first_visible(shape, position(0)), to = position(ROWS - 1) + 1;
    auto load_tile = [&](const uint16_t* cache, int first, uint16_t* tile) {
        const uint16_t* at = cache + static_cast<long long>(kv_head) * head_dim;
        for (int i = threadIdx.x; i < KEYS * EIGHTS; i += THREADS) {
            int key = i / EIGHTS, c = i % EIGHTS * 8;
            copy16_async_if(first + key < to && c < head_dim, tile + key * STRIDE + c, at + (first + key) * stride + c);
        }
        close_copies();
    };

    const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(head_dim)));
    // This lane has the rows lane / 4 and lane / 4 + 8. In every eight columns, it has columns 2 · (lane mod 4) and 2 ·
    // (lane mod 4) + 1. `sums` is a product with a matrix of ones, so every column of a row holds the sum of the row's
    // weights.
    float maxima[2], sums[4] = {}, mixed[2 * STEPS][4] = {};
    maxima[0] = maxima[1] = minus_infinity();

    load_tile(keys, from, key_tile);
    for (int first = from; first < to; first += KEYS) {
        load_tile(values, first, value_tile);
        wait_for_copies<1>();  // the keys
        __syncthreads();
        float scores[KEYS / 8][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step >= steps) break;
            uint32_t a[4];
            const int row = 16 * warp + lane % 16;
            load_matrices<false>(a, queries + row * STRIDE + 16 * step + lane / 16 * 8);
#pragma unroll
            for (int j = 0; j < KEYS / 8; j += 2) {
                uint32_t four[4];
                const int key = 8 * j + lane / 16 * 8 + lane % 8;
                load_matrices<false>(four, key_tile + key * STRIDE + 16 * step + lane / 8 % 2 * 8);
                const uint32_t b[2] = {four[0], four[1]}, c[2] = {four[2], four[3]};
                multiply_tiles(scores[j], a, b), multiply_tiles(scores[j + 1], a, c);
            }
        }
        // All threads have read the keys. The next keys may be copied while the values are multiplied.
        __syncthreads();
        const bool more = first + KEYS < to;
        if (more) load_tile(keys, first + KEYS, key_tile);

        // Whether the tile may have a key that some row of the warp does not see.
        const bool hides = first + KEYS - 1 > position(16 * warp) || shape.window > 0;
        uint32_t weights[KEYS / 8][2];  // of every eight keys, this lane's two weights in each row, in bfloat16
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float max = maxima[r];
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
                float2 two = widen_pair(pair_bf16(scores[j][2 * r], scores[j][2 * r + 1]));
                two = widen_pair(pair_bf16(__fmul_rn(two.x, inverse), __fmul_rn(two.y, inverse)));
                scores[j][2 * r] = two.x, scores[j][2 * r + 1] = two.y;
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
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) max = fmaxf(fmaxf(max, scores[j][2 * r]), scores[j][2 * r + 1]);
            // The maximum over the four lanes that share a row.
            max = fmaxf(max, __shfl_xor_sync(FULL, max, 1));
            max = fmaxf(max, __shfl_xor_sync(FULL, max, 2));
            // A row that has not seen a key yet has no maximum. Then 0 is subtracted.
            const float subtracted = max == minus_infinity() ? 0.0f : max;
            const float factor = exp_to_round(maxima[r] - subtracted);
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
                weights[j][r] = pair_bf16(exp_to_round(scores[j][2 * r] - subtracted),
                                          exp_to_round(scores[j][2 * r + 1] - subtracted));
            }
            maxima[r] = max;
            sums[2 * r] *= factor, sums[2 * r + 1] *= factor;
#pragma unroll
            for (int j = 0; j < 2 * STEPS; j++) mixed[j][2 * r] *= factor, mixed[j][2 * r + 1] *= factor;
        }

        if (more) {
            wait_for_copies<1>();  // the values
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            const uint32_t ones[2] = {0x3f803f80, 0x3f803f80};
            const uint32_t a[4] = {weights[2 * k][0], weights[2 * k][1], weights[2 * k + 1][0], weights[2 * k + 1][1]};
            multiply_tiles(sums, a, ones);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                if (step >= steps) break;
                uint32_t four[4];
                load_matrices<true>(four, value_tile + (16 * k + lane % 16) * STRIDE + 16 * step + lane / 16 * 8);
                const uint32_t b[2] = {four[0], four[1]}, c[2] = {four[2], four[3]};
                multiply_tiles(mixed[2 * step], a, b), multiply_tiles(mixed[2 * step + 1], a, c);
            }
        }
        // After this barrier, all threads have read the values.
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = 16 * warp + lane / 4 + 8 * r;
        if (first_row + row >= end_row) continue;
        const long long to_row = place(row);
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) {
            const int c = 8 * j + lane % 4 * 2;
            if (c >= head_dim) continue;
            const uint32_t pair = pair_bf16(__fdiv_rn(mixed[j][2 * r], sums[2 * r]),
                                            __fdiv_rn(mixed[j][2 * r + 1], sums[2 * r]));
            if (out) *reinterpret_cast<float2*>(out + to_row + c) = widen_pair(pair);
            if (narrow) *reinterpret_cast<uint32_t*>(narrow + to_row + c) = pair;
        }
    }
}

// Attention of a span of any number of tokens. C is a multiple of 8 and at most N, the number in the name. q and out
// are a pass's buffers (rows, H, C). keys and values are the cache (K, G, C) in bfloat16. If `narrow` is not null, the
// result is also written to `narrow`, in bfloat16. In this case `out` may be null. Grid (G, ceil(T · H/G / 64)), block
// 128, dynamic shared memory 2 · (64 + 128) · (N + 8) bytes.
KERNEL_WITH(128, 4) attention_prefill_bf16_64(Attention shape, const float* q, const Span* span, const uint16_t* keys,
                                              const uint16_t* values, float* out, uint16_t* narrow) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    prefill<64>(shape, q, span, keys, values, out, narrow);
}
KERNEL_WITH(128, 4) attention_prefill_bf16_128(Attention shape, const float* q, const Span* span, const uint16_t* keys,
                                               const uint16_t* values, float* out, uint16_t* narrow) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    prefill<128>(shape, q, span, keys, values, out, narrow);
}
KERNEL(128) attention_prefill_bf16_256(Attention shape, const float* q, const Span* span, const uint16_t* keys,
                                       const uint16_t* values, float* out, uint16_t* narrow) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    prefill<256>(shape, q, span, keys, values, out, narrow);
}

#define KERNELS_OF_THIS_FILE(X) \
    X(attention_prefill_bf16_64) X(attention_prefill_bf16_128) X(attention_prefill_bf16_256)
