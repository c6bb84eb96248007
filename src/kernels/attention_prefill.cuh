// Attention of several tokens with float32 multiplications, in tiles. Used by attention_prefill.cu, and by
// attention_split.cu if values are too large or not finite. -DCACHE, -DPRECISION.
#pragma once
#include "attention.cuh"

// Attention of many tokens in float32. A block has M rows: for each token, one row for each query head of one kv head.
// So a key is read once for all of these rows. The block loops over the keys in tiles of 32. Every thread has M/16 rows
// × 2 scores of a tile, and M/16 rows × N/16 channels of the output.
template <int N, int M>
__device__ inline void prefill(const Attention& shape, int kv_head, int first_row, const float* q, const Span* span_at,
                               const void* keys, const void* values, float* out) {
    constexpr int KEYS = 32, ROWS = M / 16, CHANNELS = N / 16;
    constexpr int STRIDE = N + 4, STRIDE_OF_WEIGHTS = KEYS + 4;  // so that neighbouring rows use different banks
    // Marks a key that the row does not see. The weight 0 would not do, because 0 times an infinite value is NaN.
    constexpr float HIDDEN = -1.0f;
    DYNAMIC_SHARED(float, room);
    float* queries = room;               // (M, STRIDE)
    float* tile = queries + M * STRIDE;  // (KEYS, STRIDE): first keys, then values
    float* weights = tile + KEYS * STRIDE;  // (M, STRIDE_OF_WEIGHTS)

    Span span = *span_at;
    const int head_dim = shape.head_dim, group = shape.heads / shape.kv_heads;
    const int all_rows = span.tokens * group, end_row = min(first_row + M, all_rows);
    const int across = threadIdx.x % 16, down = threadIdx.x / 16 * ROWS, eights = head_dim / 8;
    // Returns the offset of a row's query, which is also that of its output. A row beyond the last one repeats the last
    // one; its result is not written.
    auto place = [&](int row) {
        int there = min(first_row + row, end_row - 1), head = kv_head * group + there % group;
        return ((static_cast<long long>(span.first) + there / group) * shape.heads + head) * head_dim;
    };
    auto position = [&](int row) { return span.start + min(first_row + row, end_row - 1) / group; };

    for (int i = threadIdx.x; i < M * eights; i += blockDim.x) {
        int row = i / eights, c = i % eights * 8;
        float eight[8];
        load8(q + place(row) + c, eight);
#pragma unroll
        for (int k = 0; k < 8; k++) queries[row * STRIDE + c + k] = eight[k];
    }
    const long long stride = static_cast<long long>(shape.kv_heads) * head_dim;
    const int from = first_visible(shape, position(0)), to = position(M - 1) + 1;
    // Loads a tile of keys or values. Rows that do not exist are zeros.
    auto load_tile = [&](const void* cache, int first) {
        const Cached* at = static_cast<const Cached*>(cache) + static_cast<long long>(kv_head) * head_dim;
        for (int i = threadIdx.x; i < KEYS * eights; i += blockDim.x) {
            int key = i / eights, c = i % eights * 8;
            float eight[8] = {};
            if (first + key < to) load_cached8(at + (first + key) * stride + c, eight);
#pragma unroll
            for (int k = 0; k < 8; k++) tile[key * STRIDE + c + k] = eight[k];
        }
    };

    const float root = root_of(shape);
    float mixed[ROWS][CHANNELS], maxima[ROWS], sums[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        maxima[r] = minus_infinity(), sums[r] = 0.0f;
#pragma unroll
        for (int j = 0; j < CHANNELS; j++) mixed[r][j] = 0.0f;
    }
    for (int first = from; first < to; first += KEYS) {
        load_tile(keys, first);
        __syncthreads();
        float scores[ROWS][2] = {};
        for (int c = 0; c < head_dim; c += 4) {
            float4 key[2];
#pragma unroll
            for (int j = 0; j < 2; j++) key[j] = *reinterpret_cast<const float4*>(tile + (across + 16 * j) * STRIDE + c);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float4 query = *reinterpret_cast<const float4*>(queries + (down + r) * STRIDE + c);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    scores[r][j] = __fmaf_rn(query.x, key[j].x, scores[r][j]);
                    scores[r][j] = __fmaf_rn(query.y, key[j].y, scores[r][j]);
                    scores[r][j] = __fmaf_rn(query.z, key[j].z, scores[r][j]);
                    scores[r][j] = __fmaf_rn(query.w, key[j].w, scores[r][j]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int own = position(down + r), start = first_visible(shape, own);
            float max = minus_infinity();
#pragma unroll
            for (int j = 0; j < 2; j++) {
                int key = first + across + 16 * j;
                scores[r][j] = key >= start && key <= own ? score_of(scores[r][j], root) : minus_infinity();
                max = larger(max, scores[r][j]);
            }
            for (int apart = 8; apart > 0; apart /= 2) max = larger(max, __shfl_xor_sync(FULL, max, apart));
            max = larger(maxima[r], max);
            // A row that has not seen a key yet has no maximum. Then 0 is subtracted.
            float subtracted = max == minus_infinity() ? 0.0f : max, sum = 0.0f;
            float factor = exp_of_ops(maxima[r] - subtracted);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float weight = exp_of_ops(scores[r][j] - subtracted);
                int key = first + across + 16 * j;
                weights[(down + r) * STRIDE_OF_WEIGHTS + across + 16 * j] = key >= start && key <= own ? weight : HIDDEN;
                sum += weight;
            }
            for (int apart = 8; apart > 0; apart /= 2) sum += __shfl_xor_sync(FULL, sum, apart);
            sums[r] = __fmaf_rn(sums[r], factor, sum), maxima[r] = max;
#pragma unroll
            for (int j = 0; j < CHANNELS; j++) mixed[r][j] *= factor;
        }
        __syncthreads();
        load_tile(values, first);
        __syncthreads();
        for (int key = 0; key < KEYS; key++) {
            float value[CHANNELS];
#pragma unroll
            for (int j = 0; j < CHANNELS; j++) {
                int c = across + 16 * j;
                value[j] = c < head_dim ? tile[key * STRIDE + c] : 0.0f;
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float weight = weights[(down + r) * STRIDE_OF_WEIGHTS + key];
                if (weight == HIDDEN) continue;
#pragma unroll
                for (int j = 0; j < CHANNELS; j++) mixed[r][j] = __fmaf_rn(weight, value[j], mixed[r][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (first_row + down + r >= all_rows) continue;
#pragma unroll
        for (int j = 0; j < CHANNELS; j++) {
            int c = across + 16 * j;
            if (c < head_dim) out[place(down + r) + c] = rounded<PRECISION>(__fdiv_rn(mixed[r][j], sums[r]));
        }
    }
}
