// Integer products: shared code for int8 activations with int8 weights, or with blocks. WEIGHT is I8 or a format.
//
// A *run* is a sequence of values in which every scale is constant. Its products are summed exactly. For blocks, the
// sums of a group of 32 are combined with each run's scale and minimum. For int8, a group is one run. The contribution
// of group g is then added to partial sum g mod 16 (ops/blocks.rs and ops/quantize.rs, dot). Any thread may do this,
// but the order is fixed, so the bits are those of ops.
#pragma once
#include "weights.cuh"

constexpr uint32_t ONES = 0x01010101;

__device__ inline void words_of(const uint4* at, uint32_t (&words)[8]) {
    const uint4 a = at[0], b = at[1];
    words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
    words[4] = b.x, words[5] = b.y, words[6] = b.z, words[7] = b.w;
}

// The contribution of a group to a sum: scale · value.
struct Term {
    float scale, value;
};

// A group of blocks times 32 activations. `products` has Σ x·q of each run, and `sums` has Σ x.
template <class W>
__device__ inline float term_of(const float (&scale)[2], const float (&minimum)[2], const int (&products)[2],
                                const float (&sums)[2]) {
    constexpr int RUNS = 32 / W::RUN;
    float term = __fmul_rn(scale[0], static_cast<float>(products[0]));
    if (RUNS == 2) term = __fmaf_rn(scale[1], static_cast<float>(products[1]), term);
    if (W::MINIMA) {
        term = __fmaf_rn(minimum[0], sums[0], term);
        if (RUNS == 2) term = __fmaf_rn(minimum[1], sums[1], term);
    }
    return term;
}
