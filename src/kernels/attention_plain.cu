// Attention of any sizes, and its stages, with the bits of ops/attention.rs. -DCACHE, -DPRECISION.
#include "attention.cuh"

constexpr int THREADS = 128;

// The inputs of attention for one token and one head. A block of 128 threads computes the results.
struct Query {
    const float* query;  // (C), in shared memory
    const Cached* keys;  // the first key of its kv head
    long long stride;    // distance between keys
    int head_dim;
    float root;

    // Returns the dot product with key `key`, summed in the order of ops/matmul.rs. One thread computes it.
    __device__ inline float qk(int key) const {
        const Cached* at = keys + key * stride;
        float total = 0.0f;
        for (int start = 0; start < head_dim; start += STRETCH) {
            int end = min(start + STRETCH, head_dim);
            float sums[LANES];
#pragma unroll
            for (int lane = 0; lane < LANES; lane++) sums[lane] = 0.0f;
            for (int i = start; i < end; i += LANES) {
#pragma unroll
                for (int lane = 0; lane < LANES; lane++) {
                    if (i + lane < end) sums[lane] = __fmaf_rn(query[i + lane], widen_cached(at[i + lane]), sums[lane]);
                }
            }
#pragma unroll
            for (int width = LANES / 2; width > 0; width /= 2) {
#pragma unroll
                for (int lane = 0; lane < width; lane++) sums[lane] = __fadd_rn(sums[lane], sums[lane + width]);
            }
            total = start == 0 ? sums[0] : __fadd_rn(total, sums[0]);
        }
        return total;
    }

    __device__ inline float score(int key) const { return score_of(qk(key), root); }
};

// Loads the query of this block's token and head. `room` has C values.
__device__ inline Query query_of(const Attention& shape, const float* q, const Span& span, int token, int head,
                                 const void* keys, float* room) {
    int head_dim = shape.head_dim, kv_head = head / (shape.heads / shape.kv_heads);
    const float* from = q + ((static_cast<long long>(span.first) + token) * shape.heads + head) * head_dim;
    for (int i = threadIdx.x; i < head_dim; i += blockDim.x) room[i] = from[i];
    __syncthreads();
    const Cached* first = static_cast<const Cached*>(keys) + static_cast<long long>(kv_head) * head_dim;
    return {room, first, static_cast<long long>(shape.kv_heads) * head_dim, head_dim, root_of(shape)};
}

// Over the keys from `start` up to `end`: the maximum that softmax subtracts, and the sum that it divides by.
struct Shares {
    float max, sum;
};

// Returns the maximum and the sum in every thread of the block. The exponentials are added in the order of
// ops/softmax.rs: number i, counted from `start`, goes to partial sum i mod 16.
__device__ inline Shares shares_of(const Query& query, int start, int end) {
    SHARED(float, maxima, THREADS / 32);
    SHARED(float, terms, THREADS);
    SHARED(float, total, 1);
    float max = minus_infinity();
    for (int key = start + threadIdx.x; key < end; key += THREADS) max = larger(max, query.score(key));
    max = max_of_warp(max);
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = max;
    __syncthreads();
    for (int warp = 0; warp < THREADS / 32; warp++) max = larger(max, maxima[warp]);
    float sum = 0.0f;
    for (int first = start; first < end; first += THREADS) {
        int key = first + threadIdx.x;
        if (key < end) terms[threadIdx.x] = exp_of_ops(__fsub_rn(query.score(key), max));
        __syncthreads();
        if (threadIdx.x < LANES) {
            for (int i = threadIdx.x; i < min(THREADS, end - first); i += LANES) sum = __fadd_rn(sum, terms[i]);
        }
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        sum = reduce_lanes(sum);
        if (threadIdx.x == 0) total[0] = sum;
    }
    __syncthreads();
    return {max, total[0]};
}

// The attention weight of a key.
__device__ inline float weight_of(const Query& query, const Shares& shares, int key) {
    return rounded<PRECISION>(__fdiv_rn(exp_of_ops(__fsub_rn(query.score(key), shares.max)), shares.sum));
}

// Attention of any sizes, with the bits of ops. Scores are computed three times, to avoid storing them. Grid (T, H),
// block 128, dynamic shared memory 8 · C bytes: the query and the output.
KERNEL(128) attention_plain(Attention shape, const float* q, const Span* span_at, const void* keys, const void* values,
                            float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    DYNAMIC_SHARED(float, room);
    SHARED(float, weights, THREADS);
    Span span = *span_at;
    int token = blockIdx.x, head = blockIdx.y, head_dim = shape.head_dim;
    int position = span.start + token, start = first_visible(shape, position), end = position + 1;
    Query query = query_of(shape, q, span, token, head, keys, room);
    Shares shares = shares_of(query, start, end);
    float* mixed = room + head_dim;
    for (int c = threadIdx.x; c < head_dim; c += THREADS) mixed[c] = 0.0f;
    const Cached* first_value = static_cast<const Cached*>(values) + (query.keys - static_cast<const Cached*>(keys));
    for (int first = start; first < end; first += THREADS) {
        int key = first + threadIdx.x, count = min(THREADS, end - first);
        if (key < end) weights[threadIdx.x] = weight_of(query, shares, key);
        __syncthreads();
        for (int c = threadIdx.x; c < head_dim; c += THREADS) {
            float sum = mixed[c];
            for (int i = 0; i < count; i++) {
                sum = __fmaf_rn(weights[i], widen_cached(first_value[(first + i) * query.stride + c]), sum);
            }
            mixed[c] = sum;
        }
        __syncthreads();
    }
    out += ((static_cast<long long>(span.first) + token) * shape.heads + head) * head_dim;
    for (int c = threadIdx.x; c < head_dim; c += THREADS) out[c] = rounded<PRECISION>(mixed[c]);
}

// Writes the stages of attention that are recorded, for the span's tokens from `first` on: qk, scores, masked_scores
// and softmax, (H, rows, K) each. Each may be null. They have the bits of ops. If neither qk nor scores is requested,
// only the scores of visible keys are computed. Grid (rows, H), block 128, dynamic shared memory 4 · C bytes: the
// query.
KERNEL(128) attention_parts(Attention shape, const float* q, const Span* span_at, const void* keys, int first, int rows,
                            float* qk, float* scores, float* masked_scores, float* softmax) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    DYNAMIC_SHARED(float, room);
    Span span = *span_at;
    int token = first + blockIdx.x, head = blockIdx.y, position = span.start + token;
    int start = first_visible(shape, position), end = position + 1;
    Query query = query_of(shape, q, span, token, head, keys, room);
    long long row = (static_cast<long long>(head) * rows + blockIdx.x) * span.keys;
    for (int key = threadIdx.x; key < span.keys; key += THREADS) {
        bool visible = key >= start && key < end;
        float score = minus_infinity();
        if (visible || qk || scores) {
            float product = rounded<PRECISION>(query.qk(key));
            score = score_of(product, query.root);
            if (qk) qk[row + key] = product;
            if (scores) scores[row + key] = score;
        }
        if (masked_scores) masked_scores[row + key] = visible ? score : minus_infinity();
    }
    if (!softmax) return;
    Shares shares = shares_of(query, start, end);
    for (int key = threadIdx.x; key < span.keys; key += THREADS) {
        softmax[row + key] = key >= start && key < end ? weight_of(query, shares, key) : 0.0f;
    }
}

#define KERNELS_OF_THIS_FILE(X) X(attention_plain) X(attention_parts)
