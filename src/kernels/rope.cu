// RoPE (Su et al., 2021): pair i of a head is rotated by position · frequency i. The kernel `rope` can also cache the
// result. -DPRECISION, -DCACHE.
#include "cache.cuh"

// Computes cos and sin (rows, pairs) of the angle positions[row] · frequencies[pair]. The angle is float32, as in
// ops/rope.rs. Its cosine and sine are computed in float64 and rounded, which gives the nearest float32 except for a
// rare last bit. Grid (rows), block 128.
KERNEL(128) rope_table(const float* frequencies, const int* positions, int pairs, float* cos_out, float* sin_out) {
    // The kernel waits before it lets the next one start. So when the next kernel begins, the pass's embedding is
    // complete, and so are the spans that it advanced.
    WAIT_FOR_INPUT();
    LET_NEXT_START();
    float position = static_cast<float>(positions[blockIdx.x]);
    long long row = static_cast<long long>(blockIdx.x) * pairs;
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        double angle = static_cast<double>(__fmul_rn(position, frequencies[i]));
        cos_out[row + i] = rounded<PRECISION>(static_cast<float>(cos(angle)));
        sin_out[row + i] = rounded<PRECISION>(static_cast<float>(sin(angle)));
    }
}

// A tensor (rows, heads, C): queries or keys, which are rotated, or values. Keys and values are cached if there is only
// one span.
struct Turned {
    const float* x;
    float* out;        // null for values, which are not rotated
    void* cache;       // (capacity, heads, C), or null
    const Span* span;  // the span of the cache's sequence; null without a cache
    int heads, unused;
};

// Maximum number of rotated tensors, and maximum number of pairs per thread.
constexpr int MOST_TURNED = 3, PAIRS = 4;

struct AllTurned {
    Turned of[MOST_TURNED];
};

// out (rows, heads, C) = x rotated by cos and sin (rows, C/2): (a, b) → (a·cos − b·sin, a·sin + b·cos), with the bits
// of ops/rope.rs. A pair is (2i, 2i + 1) if `neighbours`, else (i, i + C/2). Also writes `out`, or `x` if it is not
// rotated, to the cache from position start on, rounded to the nearest. Grid (rows, at least ceil(the largest number of
// heads · C/2 / 512), number of tensors), block 128: a thread rotates up to four pairs.
KERNEL(128) rope(AllTurned all, const float* cos, const float* sin, int neighbours, int head_dim) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    // Selects by constant indices, because otherwise the compiler would copy all tensors.
    const Turned turned = blockIdx.z == 0 ? all.of[0] : blockIdx.z == 1 ? all.of[1] : all.of[2];
    const int pairs = head_dim / 2, width = turned.heads * head_dim, all_pairs = turned.heads * pairs;
    const float* x = turned.x + static_cast<long long>(blockIdx.x) * width;
    // For each pair of the thread: the places of its first and second value, and its number in its head. Only one
    // division per thread is needed.
    struct Place {
        int first, second, pair;
        bool there;
    } places[PAIRS];
    const int apart = gridDim.y * blockDim.x, heads_apart = apart / pairs, pairs_apart = apart % pairs;
    int number = blockIdx.y * blockDim.x + threadIdx.x, head = number / pairs, pair = number % pairs;
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        const int first = head * head_dim + (neighbours ? 2 * pair : pair);
        places[k] = {first, neighbours ? first + 1 : first + pairs, pair, number < all_pairs};
        number += apart, head += heads_apart, pair += pairs_apart;
        if (pair >= pairs) pair -= pairs, head++;
    }
    float2 asked[PAIRS], cos_and_sin[PAIRS];
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        const Place at = places[k];
        if (!at.there) break;
        asked[k] = {x[at.first], x[at.second]};
        const long long table = static_cast<long long>(blockIdx.x) * pairs + at.pair;
        if (turned.out) cos_and_sin[k] = {cos[table], sin[table]};
    }
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        const Place at = places[k];
        if (!at.there) break;
        float a = asked[k].x, b = asked[k].y;
        if (turned.out) {
            const float c = cos_and_sin[k].x, s = cos_and_sin[k].y;
            auto round = [](float x) { return rounded<PRECISION>(x); };
            const float low = round(__fsub_rn(round(__fmul_rn(a, c)), round(__fmul_rn(b, s))));
            const float high = round(__fadd_rn(round(__fmul_rn(a, s)), round(__fmul_rn(b, c))));
            float* out = turned.out + static_cast<long long>(blockIdx.x) * width;
            out[at.first] = a = low, out[at.second] = b = high;
        }
        if (turned.cache) {
            Cached* to =
                static_cast<Cached*>(turned.cache) + (static_cast<long long>(turned.span->start) + blockIdx.x) * width;
            to[at.first] = narrowed(CACHE{}, a), to[at.second] = narrowed(CACHE{}, b);
        }
    }
}

#define KERNELS_OF_THIS_FILE(X) X(rope_table) X(rope)
