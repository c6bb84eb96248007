// The rows of the embedding table that a pass's ids name, widened. -DWEIGHT, -DPRECISION.
#include "weights.cuh"

// out (rows, D) = rows ids[0], ids[apart], ids[2 · apart] … of table (V, D). Where `spans` is not null each row is a span of
// one token, and they and their positions are made those of the pass after theirs.
// Grid (rows), block 128.
KERNEL(128) embedding(Matrix table, const int* ids, int apart, Span* spans, int* positions, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    if (spans && threadIdx.x == 0) {
        Span& span = spans[blockIdx.x];
        span.start++, span.keys++, positions[blockIdx.x]++;
    }
    Row row = row_of<WEIGHT>(table, ids[static_cast<int>(blockIdx.x) * apart]);
    out += static_cast<long long>(blockIdx.x) * table.inputs;
    for (int i = threadIdx.x; i < table.inputs; i += blockDim.x) out[i] = weight_at<WEIGHT, PRECISION>(row, i);
}

#define KERNELS_OF_THIS_FILE(X) X(embedding)
