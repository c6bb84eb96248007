// Attention of spans of one token, split along the keys. -DCACHE, -DPRECISION.
#include "attention.cuh"

constexpr int THREADS = 128;

// Number of keys that the decode kernels load together, and maximum number of splits of a token's keys.
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

// Attention of one token for HEADS query heads of one kv head, over one part of its keys. C is at most N. The number of
// keys and the number of splits determine which keys a split has, in tiles of 64, and so the order of all sums. For
// each head, the block that finishes last joins the results of all splits, from the first split to the last. With
// `early`, the results of earlier passes and the span are complete when the kernel begins (embedding.cu, rope_table of
// rope.cu), so it reads them at once. The kernel waits for everything else.
template <int HEADS, int N>
__device__ inline void decode(const Tokens& tokens, const Attention& shape, int splits, int early, const float* q,
                              float* partial, unsigned* counters, float* out, uint16_t* narrow) {
    // A key or a value is divided among ACROSS neighbouring lanes, with eight channels each. So a block computes
    // AT_ONCE keys of a tile at a time, and a thread has EACH keys of a tile. A thread has registers for KEPT
    // outstanding loads.
    constexpr int WARPS = THREADS / 32, ACROSS = N / 8, AT_ONCE = THREADS / ACROSS, EACH = TILE / AT_ONCE;
    constexpr int MOST_KEPT = sizeof(Cached) == 2 ? 8 : 4, KEPT = EACH < MOST_KEPT ? EACH : MOST_KEPT, TOGETHER = 4;
    SHARED(float, scores, HEADS * TILE);  // and later the weights
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
    // If there are too few keys for all splits, the last splits have no work.
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
    // Starts to load KEPT of the thread's keys (or values) of a tile, from number `first` of these keys on. Skips keys
    // from position `end` on.
    auto ask = [&](const Cached* at, int tile, int first, int end, Eight(&eights)[KEPT]) {
#pragma unroll
        for (int k = 0; k < KEPT; k++) {
            const int key = tile + own + (first + k) * AT_ONCE;
            eights[k] = {};
            if (key < end && has_channels) eights[k] = ask_cached8(at + key * stride);
        }
    };
    // Starts to load the newest key, which belongs to this pass, if it is one of the thread's first keys.
    auto ask_newest = [&](const Cached* at, Eight(&eights)[KEPT]) {
#pragma unroll
        for (int k = 0; k < KEPT; k++) {
            if (from + own + k * AT_ONCE == newest && newest < to && has_channels) eights[k] = ask_cached8(at + newest * stride);
        }
    };

    // All other keys belong to earlier passes. Their loads start before the input is complete.
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

    // Multiplies the loaded keys with all queries. The first loaded key is number `first` of the thread's keys in the
    // tile.
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
    // Adds the loaded values times their weights. The first loaded value is number `first` of the thread's values in
    // the tile.
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
        // The next tile's keys are loaded while this tile's values are multiplied.
        ask(key_at, tile + TILE, 0, to, some_keys);
        __syncthreads();
        // Computes the weights: each warp has a head, each lane two keys.
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

    // Adds the sums of all lanes that have the same channels: first within a warp, then over the warps in their order.
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
    // Returns two values that other blocks wrote. The load bypasses the first-level cache, which may have older values.
    auto written = [&](int split, int h, int i) {
        long long at = (static_cast<long long>(split) * shape.heads + first_head + h) * (head_dim + 2) + i;
        uint64_t both = *reinterpret_cast<volatile const uint64_t*>(partial + at);
        return float2{__uint_as_float(static_cast<uint32_t>(both)), __uint_as_float(static_cast<uint32_t>(both >> 32))};
    };
    // Computes for each split the factor of its sums, and its part of the common divisor. Each warp has a head, each
    // lane two splits.
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
    // A thread has two channels of a head, and loads the sums of this many splits at a time.
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

// Attention of spans of one token each. C is a multiple of 8. The numbers in the name are M, the number of query heads
// per block, and N, the maximum C. A kv head's keys are read from memory once for these M heads. partial: (spans,
// splits, H, C + 2) values. counters: (grid.z, grid.x), all 0 before and after the kernel. The number of splits, at
// most 64, depends on the device and not on the batch, so a span's results have the same bits in every batch. In
// bfloat16 precision, if `narrow` is not null, out is written only there, in bfloat16. Grid (G · ceil(H / G / M), a
// number of splits that includes all splits with keys, spans), block 128.
#define DECODE(heads, channels)                                                                                     \
    KERNEL_WITH(128, heads <= 4 ? 3 : 2)                                                                            \
    attention_decode_##heads##_##channels(Tokens tokens, Attention shape, int splits, int early, const float* q,    \
                                          float* partial, unsigned* counters, float* out, uint16_t* narrow) {       \
        LET_NEXT_START();                                                                                           \
        decode<heads, channels>(tokens, shape, splits, early, q, partial, counters, out, narrow);                   \
    }
#define DECODE_OF(channels) DECODE(1, channels) DECODE(2, channels) DECODE(4, channels) DECODE(8, channels)
DECODE_OF(64)
DECODE_OF(128)
DECODE_OF(256)

#define KERNELS_OF_THIS_FILE(X)                                                                               \
    X(attention_decode_1_64) X(attention_decode_2_64) X(attention_decode_4_64) X(attention_decode_8_64)       \
    X(attention_decode_1_128) X(attention_decode_2_128) X(attention_decode_4_128) X(attention_decode_8_128)   \
    X(attention_decode_1_256) X(attention_decode_2_256) X(attention_decode_4_256) X(attention_decode_8_256)
