// The rows of the embedding table for a pass's ids, converted to float32. -DWEIGHT, -DPRECISION.
#include "weights.cuh"

// out (rows, D) = rows ids[0], ids[apart], ids[2 · apart] … of table (V, D). If `spans` is not null, each span has one
// token, and the kernel advances spans and positions by one token, from those of the last pass to those of this pass.
// Grid (rows), block 256.
KERNEL(256) embedding(Matrix table, const int* ids, int apart, Span* spans, int* positions, float* out) {
    // The kernel waits before it lets the next one start. So every kernel after rope_table may read the results of
    // earlier passes as soon as it begins.
    WAIT_FOR_INPUT();
    LET_NEXT_START();
    if (spans && threadIdx.x == 0) {
        Span& span = spans[blockIdx.x];
        span.start++, span.keys++, positions[blockIdx.x]++;
    }
    Row row = row_of<WEIGHT>(table, ids[static_cast<int>(blockIdx.x) * apart]);
    out += static_cast<long long>(blockIdx.x) * table.inputs;
    // The table's row must come from memory, which is slow. So several values are loaded together, if a value takes few
    // registers.
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
