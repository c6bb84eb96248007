// Converts weights in blocks or int8 to bfloat16, for matmul_bf16 and matmul_wgmma. -DWEIGHT (I8 or a format).
#include "weights.cuh"

// out (O, I) = w (O, I), each value rounded as in bfloat16 products. The sizes are those of matvec. A thread converts a
// unit of a row: 32 values of a block, or 16 of int8. Grid (at least O times the number of units), block 256.
KERNEL(256) unpack_bf16(Matrix w, uint16_t* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    using Weights = Unit<WEIGHT>;
    constexpr int VALUES = Weights::VALUES;
    const int units = w.inputs / VALUES;
    const long long own = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, row = own / units;
    if (row >= w.outputs) return;
    float values[VALUES];
    Weights::widen(Weights::load(row_of<WEIGHT>(w, static_cast<int>(row)), static_cast<int>(own - row * units)), values);
    uint4* const to = reinterpret_cast<uint4*>(out + own * VALUES);
#pragma unroll
    for (int i = 0; i < VALUES; i += 8) {
        to[i / 8] = make_uint4(pair_bf16(values[i], values[i + 1]), pair_bf16(values[i + 2], values[i + 3]),
                               pair_bf16(values[i + 4], values[i + 5]), pair_bf16(values[i + 6], values[i + 7]));
    }
}

#define KERNELS_OF_THIS_FILE(X) X(unpack_bf16)
