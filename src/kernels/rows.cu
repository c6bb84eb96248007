// Selects rows of a pass.
#include "common.cuh"

// out (spans, width) = the last row of each span in x (rows of the pass, width).
// Grid (spans, ceil(width / 512)), block 128.
KERNEL(128) last_rows(const float* x, int width, const Span* spans, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    constexpr int EACH_BLOCK = 512;
    Span span = spans[blockIdx.x];
    const float* from = x + (static_cast<long long>(span.first) + span.tokens - 1) * width;
    out += static_cast<long long>(blockIdx.x) * width;
    int end = min(width, static_cast<int>(blockIdx.y + 1) * EACH_BLOCK);
    for (int i = blockIdx.y * EACH_BLOCK + threadIdx.x; i < end; i += blockDim.x) out[i] = from[i];
}

#define KERNELS_OF_THIS_FILE(X) X(last_rows)
