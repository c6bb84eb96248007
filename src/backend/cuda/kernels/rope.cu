// RoPE (Su et al., 2021): pair i of a head is turned by position · frequency i. -DPRECISION.
#include "common.cuh"

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

// What is turned: queries or keys, (rows, heads, C).
struct Turned {
    const float* x;
    float* out;
    int heads, unused;
};

struct AllTurned {
    Turned of[MOST_TOGETHER];
};

// out (rows, heads, C) = x turned by cos and sin (rows, C/2): (a, b) → (a·cos − b·sin, a·sin + b·cos), with the bits of
// ops/rope.rs. A pair is (2i, 2i + 1) where `neighbours`, else (i, i + C/2).
// Grid (rows, ceil(the most heads · C/2 / 128), how many are turned), block 128: a thread turns a pair.
KERNEL(128) rope(AllTurned all, const float* cos, const float* sin, int neighbours, int head_dim) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    const Turned& turned = all.of[blockIdx.z];
    const float* x = turned.x;
    float* out = turned.out;
    int pairs = head_dim / 2, number = blockIdx.y * blockDim.x + threadIdx.x;
    if (number >= turned.heads * pairs) return;
    int head = number / pairs, pair = number % pairs;
    long long table = static_cast<long long>(blockIdx.x) * pairs + pair;
    long long start = (static_cast<long long>(blockIdx.x) * turned.heads + head) * head_dim;
    long long first = start + (neighbours ? 2 * pair : pair), second = neighbours ? first + 1 : first + pairs;
    float a = x[first], b = x[second], c = cos[table], s = sin[table];
    auto round = [](float x) { return rounded<PRECISION>(x); };
    out[first] = round(__fsub_rn(round(__fmul_rn(a, c)), round(__fmul_rn(b, s))));
    out[second] = round(__fadd_rn(round(__fmul_rn(a, s)), round(__fmul_rn(b, c))));
}

#define KERNELS_OF_THIS_FILE(X) X(rope_table) X(rope)
