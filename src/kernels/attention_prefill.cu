// Attention of spans of many tokens, in tiles, for the cases that attention_bf16.cu and attention_split.cu do not
// support. -DCACHE, -DPRECISION.
#include "attention_prefill.cuh"

// Attention of a span of any number of tokens. C is a multiple of 8 and at most N, the number in the name. A block has
// M = 64 rows, and with N = 256, M = 32 rows. Grid (ceil(T · H/G / M), G), block 256, dynamic shared memory 4 · ((M +
// 32) · (N + 4) + M · 36) bytes.
KERNEL(256) attention_prefill_64(Attention shape, const float* q, const Span* span, const void* keys,
                                 const void* values, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    prefill<64, 64>(shape, blockIdx.y, blockIdx.x * 64, q, span, keys, values, out);
}
KERNEL(256) attention_prefill_128(Attention shape, const float* q, const Span* span, const void* keys,
                                  const void* values, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    prefill<128, 64>(shape, blockIdx.y, blockIdx.x * 64, q, span, keys, values, out);
}
KERNEL(256) attention_prefill_256(Attention shape, const float* q, const Span* span, const void* keys,
                                  const void* values, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    prefill<256, 32>(shape, blockIdx.y, blockIdx.x * 32, q, span, keys, values, out);
}

#define KERNELS_OF_THIS_FILE(X) X(attention_prefill_64) X(attention_prefill_128) X(attention_prefill_256)
