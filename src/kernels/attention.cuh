// Shared code of the float32 attention kernels, which read a cache of any number type. -DCACHE, -DPRECISION.
//
// Scaled dot-product attention (Vaswani et al., 2017): out = softmax(q · keysᵀ / √C + mask) · values. q and out are a
// pass's buffers (rows, H, C); a kernel uses only the rows of `span`. keys and values are the cache (K, G, C) of the
// span's sequence. It already has the rows of this pass. Qk and scores are rounded according to PRECISION.
//
// The results of attention_plain.cu have the bits of ops/attention.rs. attention_decode.cu, attention_prefill.cu and
// attention_split.cu use an online softmax (Milakov and Gimelshein, 2018): each keeps the largest score so far, and
// scales the earlier sums down when it finds a larger score. These three files leave the softmax weights in float32,
// but ops rounds them to PRECISION.
#pragma once
#include "attention_sizes.cuh"
#include "cache.cuh"

// scores = qk / √C. Both are rounded according to PRECISION.
__device__ inline float score_of(float qk, float root) { return rounded<PRECISION>(__fdiv_rn(rounded<PRECISION>(qk), root)); }

__device__ inline float root_of(const Attention& shape) { return __fsqrt_rn(static_cast<float>(shape.head_dim)); }
