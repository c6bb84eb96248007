// What all kernels of attention share: its sizes, and which keys a token sees.
#pragma once
#include "common.cuh"

// Sizes that are the same in every pass. The query heads of a kv head, its group, follow one another.
struct Attention {
    int heads, kv_heads, head_dim;
    int window;  // keys that each token sees, its own the last of them; 0: all up to its own
};

// The first key that the token at `position` sees; the last is its own (ops/attention.rs, visible).
__device__ inline int first_visible(const Attention& shape, int position) {
    return shape.window > 0 ? max(position + 1 - shape.window, 0) : 0;
}
