// The rows of the embedding table for a pass's ids, converted to float32. -DWEIGHT, -DPRECISION.
#include "weights.cuh"

// out (rows, D) = rows ids[0], ids[apart], ids[2 · apart] … of table (V, D). If `spans` is not null, each row is a span
// of one token, and the kernel advances the spans and their positions to the next pass. Grid (rows), block 256.
KERNEL(256) embedding(Matrix table, const int* ids, int apart, Span* spans, int* positions, float* out) {
    // A kernel after rope_table may read the results of earlier passes as soon as it begins.
    WAIT_FOR_INPUT();
    LET_NEXT_START();
    if (spans && threadIdx.x == 0) {
        Span& span = spans[blockIdx.x];
        span.start++, span.keys++, positions[blockIdx.x]++;
    }
    Row row = row_of<WEIGHT>(table, ids[static_cast<int>(blockIdx.x) * apart]);
    out += static_cast<long long>(blockIdx.x) * table.inputs;
    // The first row of a pass has to wait for memory, so several of its values are loaded together, if a value takes
    // few registers.
    constexpr int AT_ONCE = Same<WEIGHT, I8>::value || IS_BLOCKS<WEIGHT> ? 1 : 8, THREADS = 256;
    for (int first = threadIdx.x; first < table.inputs; first += AT_ONCE * THREADS) {
        float values[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int at = first + i * THREADS;
            if (at < table.inputs) values[i] = weight_at<WEIGHT, PRECISION>(row, at);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int at = first + i * THREADS;
            if (at < table.inputs) out[at] = values[i];
        }
    }
}

#define KERNELS_OF_THIS_FILE(X) X(embedding)
