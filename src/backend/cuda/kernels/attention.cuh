// What the kernels of attention share: which rows and keys there are.
#pragma once
#include "cache.cuh"

// Sizes that are the same in every pass. The query heads of a kv head, its group, follow one another.
struct Attention {
    int heads, kv_heads, head_dim;
    int window;  // keys that each token sees, its own the last of them; 0: all up to its own
};

// The first key that the token at `position` sees; the last is its own (ops/attention.rs, visible).
__device__ inline int first_visible(const Attention& shape, int position) {
    return shape.window > 0 ? max(position + 1 - shape.window, 0) : 0;
}

// scores = qk / √C, each rounded as PRECISION keeps it.
__device__ inline float score_of(float qk, float root) { return rounded<PRECISION>(__fdiv_rn(rounded<PRECISION>(qk), root)); }

__device__ inline float root_of(const Attention& shape) { return __fsqrt_rn(static_cast<float>(shape.head_dim)); }
