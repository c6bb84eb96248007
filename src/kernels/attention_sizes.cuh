// Shared code of all attention kernels: sizes, and the visible keys of a token.
#pragma once
#include "common.cuh"

// Sizes that are the same in every pass. The query heads that share a kv head (its group) are consecutive.
struct Attention {
    int heads, kv_heads, head_dim;
    int window;  // number of keys that each token sees, its own included; 0: all up to its own
};

// The first key that the token at `position` sees. The last key that it sees is its own (ops/attention.rs, visible).
__device__ inline int first_visible(const Attention& shape, int position) {
    return shape.window > 0 ? max(position + 1 - shape.window, 0) : 0;
}
