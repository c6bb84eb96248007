// Scaled dot-product attention (Vaswani et al., 2017): out = softmax(q · keysᵀ / √C + mask) · values. -DCACHE, -DPRECISION.
//
// q and out are a pass's buffers (rows, H, C), of which a kernel takes the rows of `span`; keys and values are the cache
// (K, G, C) of its sequence, the pass's own rows already in it.
//
// The fast kernels make the softmax while the keys pass by (Milakov and Gimelshein, 2018): each keeps the largest score
// so far, and what was added up under a smaller one is scaled down. Qk and scores are rounded as PRECISION says; the
// weights of the softmax stay float32, where ops rounds them too. attention_plain and attention_parts have the bits of
// ops/attention.rs.
#include "attention_sizes.cuh"
#include "cache.cuh"

constexpr int THREADS = 128;

// scores = qk / √C, each rounded as PRECISION keeps it.
__device__ inline float score_of(float qk, float root) { return rounded<PRECISION>(__fdiv_rn(rounded<PRECISION>(qk), root)); }

__device__ inline float root_of(const Attention& shape) { return __fsqrt_rn(static_cast<float>(shape.head_dim)); }

// One (token, head) of the plain kernels: what its block of 128 threads computes with.
struct Query {
    const float* query;  // (C), in shared memory
    const Cached* keys;  // the first key of its kv head
    long long stride;    // from one key to the next
    int head_dim;
    float root;

    // The dot product with key `key`, in the order of ops/matmul.rs, by one thread.
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

// The query of this block's token and head; `room` has C values.
__device__ inline Query query_of(const Attention& shape, const float* q, const Span& span, int token, int head,
                                 const void* keys, float* room) {
    int head_dim = shape.head_dim, kv_head = head / (shape.heads / shape.kv_heads);
    const float* from = q + ((static_cast<long long>(span.first) + token) * shape.heads + head) * head_dim;
    for (int i = threadIdx.x; i < head_dim; i += blockDim.x) room[i] = from[i];
    __syncthreads();
    const Cached* first = static_cast<const Cached*>(keys) + static_cast<long long>(kv_head) * head_dim;
    return {room, first, static_cast<long long>(shape.kv_heads) * head_dim, head_dim, root_of(shape)};
}

// What softmax subtracts and what it divides by, over the keys from `start` up to `end`.
struct Shares {
    float max, sum;
};

// In every thread of the block. The exponentials are added in the order of ops/softmax.rs: number i, counted from
// `start`, to partial sum i mod 16.
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

// Attention of any sizes, with the bits of ops. Scores are computed three times over rather than kept.
// Grid (T, H), block 128, dynamic shared memory 8 · C bytes: the query and the output.
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

// The parts of attention of the tokens first and following of the span, as somebody wants to see them: qk, scores,
// masked_scores and softmax, (H, rows, K) each, or null. With the bits of ops. Where neither qk nor scores is wanted, only
// visible keys are computed.
// Grid (rows, H), block 128, dynamic shared memory 4 · C bytes: the query.
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

// Keys that the decode kernels take at once, and the most splits that the keys of a token are in.
constexpr int TILE = 64, MOST_SPLITS = 64;

// A span of one token with its keys and values.
struct Token {
    const Span* span;
    const void* keys;
    const void* values;
};

struct Tokens {
    Token of[MOST_TOGETHER];
};

// Attention of one token for HEADS query heads of one kv head, over one part of its keys; C is at most N. Fixed by the number
// of keys and of splits: which keys a split has, in tiles of 64, and so the order of all sums. The block of a head that is
// done last joins the parts, from the first split to the last. Where it is `early`, what passes before this one made is there when
// it begins, and so is the span (embedding.cu, rope_table of rope.cu); it waits for the rest.
template <int HEADS, int N>
__device__ inline void decode(const Tokens& tokens, const Attention& shape, int splits, int early, const float* q,
                              float* partial, unsigned* counters, float* out, uint16_t* narrow) {
    // Lanes side by side take a key or a value, eight channels each; so a block takes AT_ONCE of a tile, and a thread EACH.
    // For so many of these KEPT has room that are under way.
    constexpr int WARPS = THREADS / 32, ACROSS = N / 8, AT_ONCE = THREADS / ACROSS, EACH = TILE / AT_ONCE;
    constexpr int MOST_KEPT = sizeof(Cached) == 2 ? 8 : 4, KEPT = EACH < MOST_KEPT ? EACH : MOST_KEPT, TOGETHER = 4;
    SHARED(float, scores, HEADS * TILE);  // and then the weights
    SHARED(float, maxima, HEADS);
    SHARED(float, sums, HEADS);
    SHARED(float, factors, HEADS * MOST_SPLITS);
    SHARED(float, terms, HEADS * MOST_SPLITS);
    SHARED(float, joined, HEADS * WARPS * N);
    SHARED(int, last, 1);

    if (!early) WAIT_FOR_INPUT();
    const void* keys = tokens.of[blockIdx.z].keys;
    const void* values = tokens.of[blockIdx.z].values;
    Span span = *tokens.of[blockIdx.z].span;
    const int head_dim = shape.head_dim, group = shape.heads / shape.kv_heads, parts = ceil_div(group, HEADS);
    const int kv_head = blockIdx.x / parts, first_of_group = blockIdx.x % parts * HEADS;
    const int first_head = kv_head * group + first_of_group, count = min(HEADS, group - first_of_group);
    const int start = first_visible(shape, span.keys - 1);
    const int keys_of_split = ceil_div(ceil_div(span.keys - start, TILE), splits) * TILE;
    const int splits_used = ceil_div(span.keys - start, keys_of_split), split = blockIdx.y;
    partial += static_cast<long long>(blockIdx.z) * splits * shape.heads * (head_dim + 2);
    counters += blockIdx.z * gridDim.x;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    const int own = threadIdx.x / ACROSS, channel = threadIdx.x % ACROSS * 8;
    const bool has_channels = channel < head_dim;
    // Where there are fewer keys than splits have room for, the last ones have nothing to do.
    if (split >= splits_used) {
        WAIT_FOR_INPUT();
        return;
    }
    const int from = start + split * keys_of_split, to = min(from + keys_of_split, span.keys), newest = span.keys - 1;
    const long long stride = static_cast<long long>(shape.kv_heads) * head_dim;
    const long long offset = static_cast<long long>(kv_head) * head_dim + channel;
    const Cached* key_at = static_cast<const Cached*>(keys) + offset;
    const Cached* value_at = static_cast<const Cached*>(values) + offset;
    const float root = root_of(shape);
    // Asks for a thread's keys or values of a tile from number `first` of them on, as many as KEPT; for those before `end`.
    auto ask = [&](const Cached* at, int tile, int first, int end, Eight(&eights)[KEPT]) {
#pragma unroll
        for (int k = 0; k < KEPT; k++) {
            const int key = tile + own + (first + k) * AT_ONCE;
            eights[k] = {};
            if (key < end && has_channels) eights[k] = ask_cached8(at + key * stride);
        }
    };
    // The newest, which is of this pass, where it is one of those.
    auto ask_newest = [&](const Cached* at, Eight(&eights)[KEPT]) {
#pragma unroll
        for (int k = 0; k < KEPT; k++) {
            if (from + own + k * AT_ONCE == newest && newest < to && has_channels) eights[k] = ask_cached8(at + newest * stride);
        }
    };

    // All others are of earlier passes, and on their way before the input is there.
    Eight some_keys[KEPT], some_values[KEPT];
    ask(key_at, from, 0, min(to, newest), some_keys);
    ask(value_at, from, 0, min(to, newest), some_values);
    WAIT_FOR_INPUT();
    ask_newest(key_at, some_keys);
    ask_newest(value_at, some_values);
    float query[HEADS][8], mixed[HEADS][8];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
#pragma unroll
        for (int i = 0; i < 8; i++) query[h][i] = 0.0f, mixed[h][i] = 0.0f;
        long long at = (static_cast<long long>(span.first) * shape.heads + first_head + min(h, count - 1)) * head_dim;
        if (has_channels) load8(q + at + channel, query[h]);
    }
    if (threadIdx.x < HEADS) maxima[threadIdx.x] = minus_infinity(), sums[threadIdx.x] = 0.0f;

    // The products of keys from number `first` of the thread's on with all queries.
    auto multiply = [&](int tile, int first, const Eight(&eights)[KEPT]) {
#pragma unroll
        for (int some = 0; some < KEPT; some += TOGETHER) {
            float products[TOGETHER][HEADS];
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) {
                float eight[8];
                widen_cached8(eights[some + k], eight);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    products[k][h] = 0.0f;
#pragma unroll
                    for (int i = 0; i < 8; i++) products[k][h] = __fmaf_rn(query[h][i], eight[i], products[k][h]);
                }
            }
#pragma unroll
            for (int apart = ACROSS / 2; apart > 0; apart /= 2) {
#pragma unroll
                for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
                    for (int h = 0; h < HEADS; h++) products[k][h] += __shfl_xor_sync(FULL, products[k][h], apart);
                }
            }
            if (threadIdx.x % ACROSS != 0) continue;
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) {
                const int number = own + (first + some + k) * AT_ONCE;
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    scores[h * TILE + number] = tile + number < to ? products[k][h] : minus_infinity();
                }
            }
        }
    };
    // The values from number `first` of the thread's on, by their weights.
    auto mix = [&](int tile, int first, const Eight(&eights)[KEPT]) {
#pragma unroll
        for (int k = 0; k < KEPT; k++) {
            const int number = own + (first + k) * AT_ONCE;
            if (tile + number >= to) break;
            float eight[8];
            widen_cached8(eights[k], eight);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                const float weight = scores[h * TILE + number];
#pragma unroll
                for (int i = 0; i < 8; i++) mixed[h][i] = __fmaf_rn(weight, eight[i], mixed[h][i]);
            }
        }
    };

    for (int tile = from; tile < to; tile += TILE) {
        if (tile > from) ask(value_at, tile, 0, to, some_values);
        multiply(tile, 0, some_keys);
        for (int first = KEPT; first < EACH; first += KEPT) {
            ask(key_at, tile, first, to, some_keys);
            multiply(tile, first, some_keys);
        }
        // The next tile's keys come while this one's values are mixed.
        ask(key_at, tile + TILE, 0, to, some_keys);
        __syncthreads();
        // Weights: a warp takes a head, a lane two keys.
        for (int h = warp; h < HEADS; h += WARPS) {
            float first = score_of(scores[h * TILE + lane], root), second = score_of(scores[h * TILE + 32 + lane], root);
            float before = maxima[h], max = larger(before, max_of_warp(larger(first, second)));
            first = exp_of_ops(first - max), second = exp_of_ops(second - max);
            float factor = exp_of_ops(before - max), sum = sum_of_warp(first + second);
            scores[h * TILE + lane] = first, scores[h * TILE + 32 + lane] = second;
            __syncwarp();
            if (lane == 0) maxima[h] = max, factors[h] = factor, sums[h] = __fmaf_rn(sums[h], factor, sum);
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
#pragma unroll
            for (int i = 0; i < 8; i++) mixed[h][i] *= factors[h];
        }
        mix(tile, 0, some_values);
        for (int first = KEPT; first < EACH; first += KEPT) {
            ask(value_at, tile, first, to, some_values);
            mix(tile, first, some_values);
        }
        __syncthreads();
    }

    // The sums of all groups of lanes: first those of a warp, then the warps in their order.
    float* part = partial + (static_cast<long long>(split) * shape.heads + first_head) * (head_dim + 2);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float sum = mixed[h][i];
#pragma unroll
            for (int apart = ACROSS; apart < 32; apart *= 2) sum += __shfl_xor_sync(FULL, sum, apart);
            if (lane < ACROSS) joined[(h * WARPS + warp) * N + channel + i] = sum;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * N; i += THREADS) {
        const int h = i / N, c = i % N;
        if (c >= head_dim) continue;
        float sum = joined[h * WARPS * N + c];
#pragma unroll
        for (int w = 1; w < WARPS; w++) sum += joined[(h * WARPS + w) * N + c];
        part[static_cast<long long>(h) * (head_dim + 2) + c] = sum;
    }
    if (threadIdx.x < count) {
        float* after = part + static_cast<long long>(threadIdx.x) * (head_dim + 2) + head_dim;
        after[0] = maxima[threadIdx.x], after[1] = sums[threadIdx.x];
    }

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last[0] = atomicInc(&counters[blockIdx.x], splits_used - 1) == static_cast<unsigned>(splits_used - 1);
    __syncthreads();
    if (!last[0]) return;
    __threadfence();
    // Two values that other blocks wrote: not by way of a cache that may have older ones.
    auto written = [&](int split, int h, int i) {
        long long at = (static_cast<long long>(split) * shape.heads + first_head + h) * (head_dim + 2) + i;
        uint64_t both = *reinterpret_cast<volatile const uint64_t*>(partial + at);
        return float2{__uint_as_float(static_cast<uint32_t>(both)), __uint_as_float(static_cast<uint32_t>(both >> 32))};
    };
    // What each split's sums are multiplied by, and its part of what all are divided by: a warp takes a head, a lane two splits.
    for (int h = warp; h < count; h += WARPS) {
        float2 largest_and_sum[MOST_SPLITS / 32];
        float max = minus_infinity();
#pragma unroll
        for (int k = 0; k < MOST_SPLITS / 32; k++) {
            const int number = lane + 32 * k;
            largest_and_sum[k] = {minus_infinity(), 0.0f};
            if (number < splits_used) largest_and_sum[k] = written(number, h, head_dim);
            max = larger(max, largest_and_sum[k].x);
        }
        max = max_of_warp(max);
#pragma unroll
        for (int k = 0; k < MOST_SPLITS / 32; k++) {
            factors[h * MOST_SPLITS + lane + 32 * k] = exp_of_ops(largest_and_sum[k].x - max);
            terms[h * MOST_SPLITS + lane + 32 * k] = largest_and_sum[k].y;
        }
    }
    __syncthreads();
    // Two channels of a head at a time, and so many splits.
    constexpr int SPLITS = 16;
    for (int pair = threadIdx.x; pair < count * head_dim / 2; pair += THREADS) {
        const int h = pair / (head_dim / 2), c = pair % (head_dim / 2) * 2;
        float2 sum = {0.0f, 0.0f};
        float total = 0.0f;
        for (int first = 0; first < splits_used; first += SPLITS) {
            float2 of_split[SPLITS];
#pragma unroll
            for (int k = 0; k < SPLITS; k++) {
                if (first + k < splits_used) of_split[k] = written(first + k, h, c);
            }
#pragma unroll
            for (int k = 0; k < SPLITS; k++) {
                if (first + k >= splits_used) break;
                const float factor = factors[h * MOST_SPLITS + first + k];
                total = __fmaf_rn(terms[h * MOST_SPLITS + first + k], factor, total);
                sum = {__fmaf_rn(of_split[k].x, factor, sum.x), __fmaf_rn(of_split[k].y, factor, sum.y)};
            }
        }
        const long long at = (static_cast<long long>(span.first) * shape.heads + first_head + h) * head_dim + c;
        sum = {rounded<PRECISION>(__fdiv_rn(sum.x, total)), rounded<PRECISION>(__fdiv_rn(sum.y, total))};
        if (narrow) {
            *reinterpret_cast<uint32_t*>(narrow + at) = pair_bf16(sum.x, sum.y);
        } else {
            *reinterpret_cast<float2*>(out + at) = sum;
        }
    }
}

// Attention of spans of one token each; C is a multiple of 8. The numbers in the name are how many query heads a block takes,
// M, and the largest C, N; a kv head's keys come from memory once for those. partial: (spans, splits, H, C + 2) values;
// counters: one for each of grid.x and grid.z, 0 before and after. The number of splits, at most 64, goes by the device, not
// by the batch: so a span has the same bits in any. In bfloat16 precision, where `narrow` is not null, out is written there
// instead, in bfloat16.
// Grid (G · ceil(H / G / M), as many splits as have keys or more, spans), block 128.
#define DECODE(heads, channels)                                                                                       \
    KERNEL_WITH(128, heads <= 4 ? 3 : 2) attention_decode_##heads##_##channels(Tokens tokens, Attention shape, int splits, int early,          \
                                                      const float* q, float* partial, unsigned* counters, float* out, \
                                                      uint16_t* narrow) {                                             \
        LET_NEXT_START();                                                                                             \
        decode<heads, channels>(tokens, shape, splits, early, q, partial, counters, out, narrow);                     \
    }
#define DECODE_OF(channels) DECODE(1, channels) DECODE(2, channels) DECODE(4, channels) DECODE(8, channels)
DECODE_OF(64)
DECODE_OF(128)
DECODE_OF(256)

// Attention of many tokens in float32: a block has M rows, which are the query heads of one kv head, token by token, so
// that a key is read once for all of them. The keys pass by in tiles of 32, of which every thread has M/16 rows × 2
// scores, and M/16 rows × N/16 channels of the output.
template <int N, int M>
__device__ inline void prefill(const Attention& shape, const float* q, const Span* span_at, const void* keys,
                               const void* values, float* out) {
    constexpr int KEYS = 32, ROWS = M / 16, CHANNELS = N / 16;
    constexpr int STRIDE = N + 4, STRIDE_OF_WEIGHTS = KEYS + 4;  // so that neighbouring rows lie in other banks
    // In a weight's place where the row does not see the key: 0 times a value that is infinite would be NaN.
    constexpr float HIDDEN = -1.0f;
    DYNAMIC_SHARED(float, room);
    float* queries = room;               // (M, STRIDE)
    float* tile = queries + M * STRIDE;  // (KEYS, STRIDE): keys, and then values
    float* weights = tile + KEYS * STRIDE;  // (M, STRIDE_OF_WEIGHTS)

    Span span = *span_at;
    const int head_dim = shape.head_dim, group = shape.heads / shape.kv_heads, kv_head = blockIdx.y;
    const int all_rows = span.tokens * group, first_row = blockIdx.x * M, end_row = min(first_row + M, all_rows);
    const int across = threadIdx.x % 16, down = threadIdx.x / 16 * ROWS, eights = head_dim / 8;
    // Where a row's query lies, and its output. Rows that are not there are the last one again.
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
    // A tile of keys or values, zeros where there are none.
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
            // A row that has seen no key yet has nothing to subtract.
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

// Attention of a span of any number of tokens; C is a multiple of 8, up to the number in the name, N. M = 64, with N = 256
// 32 rows a block.
// Grid (ceil(T · H/G / M), G), block 256, dynamic shared memory 4 · ((M + 32) · (N + 4) + M · 36) bytes.
KERNEL(256) attention_prefill_64(Attention shape, const float* q, const Span* span, const void* keys,
                                 const void* values, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    prefill<64, 64>(shape, q, span, keys, values, out);
}
KERNEL(256) attention_prefill_128(Attention shape, const float* q, const Span* span, const void* keys,
                                  const void* values, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    prefill<128, 64>(shape, q, span, keys, values, out);
}
KERNEL(256) attention_prefill_256(Attention shape, const float* q, const Span* span, const void* keys,
                                  const void* values, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    prefill<256, 32>(shape, q, span, keys, values, out);
}

#define KERNELS_OF_THIS_FILE(X)                                                                                       \
    X(attention_plain) X(attention_parts) X(attention_decode_1_64) X(attention_decode_2_64) X(attention_decode_4_64)  \
    X(attention_decode_8_64) X(attention_decode_1_128) X(attention_decode_2_128) X(attention_decode_4_128)            \
    X(attention_decode_8_128) X(attention_decode_1_256) X(attention_decode_2_256) X(attention_decode_4_256)           \
    X(attention_decode_8_256) X(attention_prefill_64) X(attention_prefill_128) X(attention_prefill_256)
