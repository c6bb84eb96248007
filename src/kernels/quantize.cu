// int8 quantisation in groups: x ≈ q · scale, scale = max |x| / 127, with the bits of ops/quantize.rs.
#include "quantize.cuh"

// Quantises x (rows, width) to values (rows, width) and scales (rows, ceil(width / group)). The first group of a row
// begins at its start, and the last group may be short. Ties are rounded away from zero. A group with NaN has the scale
// NaN. Grid (rows, ceil(groups / 4)), block 128: a warp computes a group.
KERNEL(128) quantize(const float* x, int width, int group, int8_t* values, float* scales) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    int groups = ceil_div(width, group), mine = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (mine >= groups) return;
    long long row = static_cast<long long>(blockIdx.x) * width;
    int start = mine * group, end = min(start + group, width);
    x += row, values += row;
    float largest = 0.0f;
    for (int i = start + lane; i < end; i += 32) largest = larger_or_none(largest, fabsf(x[i]));
    for (int apart = 16; apart > 0; apart /= 2) {
        largest = larger_or_none(largest, __shfl_xor_sync(FULL, largest, apart));
    }
    float scale = scale_of_largest(largest);
    if (lane == 0) scales[static_cast<long long>(blockIdx.x) * groups + mine] = scale;
    for (int i = start + lane; i < end; i += 32) {
        values[i] = static_cast<int8_t>(quantized(x[i], scale));
    }
}

// The same for groups of 32 values. The width is a multiple of 32. A thread quantises four values. Grid (ceil(rows ·
// width / 512)), block 128.
KERNEL(128) quantize_32(const float* x, long long count, int8_t* values, float* scales) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    const long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
    const bool there = first < count;
    const float4 four = there ? *reinterpret_cast<const float4*>(x + first) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float scale = scale_of_largest(largest_of_eight(largest_of(four)));
    if (!there) return;
    if (threadIdx.x % 8 == 0) scales[first / 32] = scale;
    *reinterpret_cast<uint32_t*>(values + first) = quantized4(four, scale, inverse_of(scale));
}

#define KERNELS_OF_THIS_FILE(X) X(quantize) X(quantize_32)
