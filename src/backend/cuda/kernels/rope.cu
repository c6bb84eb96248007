// RoPE (Su et al., 2021): pair i of a head is turned by position · frequency i. And what is cached then. -DPRECISION, -DCACHE.
#include "cache.cuh"

// cos and sin (rows, pairs) of the angle positions[row] · frequencies[pair]. The angle is float32 as in ops/rope.rs; its
// cosine and sine are taken in float64 and rounded, which is the nearest float32 but for a rare last bit.
// Grid (rows), block 128.
KERNEL(128) rope_table(const float* frequencies, const int* positions, int pairs, float* cos_out, float* sin_out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    float position = static_cast<float>(positions[blockIdx.x]);
    long long row = static_cast<long long>(blockIdx.x) * pairs;
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        double angle = static_cast<double>(__fmul_rn(position, frequencies[i]));
        cos_out[row + i] = rounded<PRECISION>(static_cast<float>(cos(angle)));
        sin_out[row + i] = rounded<PRECISION>(static_cast<float>(sin(angle)));
    }
}

// Queries or keys, (rows, heads, C), which are turned; or values. Keys and values are cached where there is but one span.
struct Turned {
    const float* x;
    float* out;        // null for values, which are not turned
    void* cache;       // (capacity, heads, C), or null
    const Span* span;  // whose the cache is; null without one
    int heads, unused;
};

constexpr int MOST_TURNED = 3;

struct AllTurned {
    Turned of[MOST_TURNED];
};

// out (rows, heads, C) = x turned by cos and sin (rows, C/2): (a, b) → (a·cos − b·sin, a·sin + b·cos), with the bits of
// ops/rope.rs. A pair is (2i, 2i + 1) where `neighbours`, else (i, i + C/2). And cache[start …] = out, or x, rounded to the
// nearest.
// Grid (rows, ceil(the most heads · C/2 / 128), how many are turned), block 128: a thread turns a pair.
KERNEL(128) rope(AllTurned all, const float* cos, const float* sin, int neighbours, int head_dim) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    // By numbers that the compiler knows: it would copy all of them otherwise.
    const Turned turned = blockIdx.z == 0 ? all.of[0] : blockIdx.z == 1 ? all.of[1] : all.of[2];
    const int pairs = head_dim / 2, number = blockIdx.y * blockDim.x + threadIdx.x, width = turned.heads * head_dim;
    if (number >= turned.heads * pairs) return;
    const int head = number / pairs, pair = number % pairs;
    const int first = head * head_dim + (neighbours ? 2 * pair : pair), second = neighbours ? first + 1 : first + pairs;
    const float* x = turned.x + static_cast<long long>(blockIdx.x) * width;
    float a = x[first], b = x[second];
    if (turned.out) {
        const long long table = static_cast<long long>(blockIdx.x) * pairs + pair;
        const float c = cos[table], s = sin[table];
        auto round = [](float x) { return rounded<PRECISION>(x); };
        const float low = round(__fsub_rn(round(__fmul_rn(a, c)), round(__fmul_rn(b, s))));
        const float high = round(__fadd_rn(round(__fmul_rn(a, s)), round(__fmul_rn(b, c))));
        float* out = turned.out + static_cast<long long>(blockIdx.x) * width;
        out[first] = a = low, out[second] = b = high;
    }
    if (turned.cache) {
        Cached* to = static_cast<Cached*>(turned.cache) + (static_cast<long long>(turned.span->start) + blockIdx.x) * width;
        to[first] = narrowed(CACHE{}, a), to[second] = narrowed(CACHE{}, b);
    }
}

#define KERNELS_OF_THIS_FILE(X) X(rope_table) X(rope)
