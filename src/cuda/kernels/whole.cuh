// Products in whole numbers: what int8 activations and int8 weights, or blocks, have in common. WEIGHT is I8 or a format.
//
// Over a *run*, in which every scale is constant, products are summed exactly. For blocks a run's scale and minimum join
// the sums of a group of 32; for int8 a group is one run. Group g is then added to partial sum g mod 16 (ops/blocks.rs and
// ops/quantize.rs, dot). Which thread does so is free, the order is not: so the bits are those of ops.
#pragma once
#include "weights.cuh"

constexpr uint32_t ONES = 0x01010101;

// What a group adds: scale · value.
struct Term {
    float scale, value;
};

// A group of blocks times 32 activations: `products` and `sums` have Σ x·q and Σ x of each run.
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
