// What the kernels of attention in float32 arithmetic share, which are those for a cache of any number type. -DCACHE,
// -DPRECISION.
//
// Scaled dot-product attention (Vaswani et al., 2017): out = softmax(q · keysᵀ / √C + mask) · values. q and out are a pass's
// buffers (rows, H, C), of which a kernel takes the rows of `span`; keys and values are the cache (K, G, C) of its sequence,
// the pass's own rows already in it. Qk and scores are rounded as PRECISION says.
//
// attention_plain.cu has the bits of ops/attention.rs. attention_decode.cu, attention_prefill.cu and attention_split.cu make
// the softmax while the keys pass by (Milakov and Gimelshein, 2018): each keeps the largest score so far, and what was added
// up under a smaller one is scaled down. There the weights of the softmax stay float32, where ops rounds them too.
#pragma once
#include "attention_sizes.cuh"
#include "cache.cuh"

// scores = qk / √C, each rounded as PRECISION keeps it.
__device__ inline float score_of(float qk, float root) { return rounded<PRECISION>(__fdiv_rn(rounded<PRECISION>(qk), root)); }

__device__ inline float root_of(const Attention& shape) { return __fsqrt_rn(static_cast<float>(shape.head_dim)); }
