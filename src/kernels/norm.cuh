// Shared code of the RMSNorm kernels: the scale of a row, with the bits of ops/rms_norm.rs.
//
// The sum of squares has the order of ops/matmul.rs: 16 threads sum a stretch of 1024 values, and each thread adds
// every sixteenth value. The sums of the stretches are added one after the other.
#pragma once
#include "common.cuh"

// Maximum number of a row's values that a block keeps in shared memory. Without this, threads that sum in the order of
// ops would wait for device memory at each value.
constexpr int KEPT = 8 * STRETCH;
// The place of value i in this memory. Padding puts neighbouring stretches into different banks.
__device__ inline int place(int i) { return i + i / STRETCH * LANES; }

// Returns the scale of one row, in every thread of the block. `x` returns the row's values.
template <class Values>
__device__ inline float scale_of(Values x, int width, float eps) {
    constexpr int MOST = 16;  // stretches that a block of 256 sums together
    SHARED(float, sums, MOST + 1);
    int lane = threadIdx.x % LANES, mine = threadIdx.x / LANES, at_once = blockDim.x / LANES;
    float total = 0.0f;
    for (int first = 0; first < ceil_div(width, STRETCH); first += at_once) {
        int start = (first + mine) * STRETCH, end = min(start + STRETCH, width);
        float sum = 0.0f;
#pragma unroll 8
        for (int i = start + lane; i < end; i += LANES) {
            float value = x(i);
            sum = __fmaf_rn(value, value, sum);
        }
        sum = reduce_lanes(sum);
        if (lane == 0) sums[mine] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int i = 0; i < at_once && (first + i) * STRETCH < width; i++) {
                total = first + i == 0 ? sums[0] : __fadd_rn(total, sums[i]);
            }
            sums[MOST] = total;
        }
        __syncthreads();
    }
    float mean = __fdiv_rn(sums[MOST], static_cast<float>(width));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// Number of values that a thread loads before it uses the first of them, and number of weights that it loads before the
// input is complete. With 16 weights, the threads of a block have all weights of a row of 4096.
constexpr int AT_ONCE = 8, WEIGHTS = 16;

// A row whose norm is the input of a product and of nothing else.
struct Norm {
    const float* x;  // (width)
    const float* weight;
    float eps;
    int unused;
};

// The norm in bfloat16 of a row of at most KEPT values, which every block computes itself.
struct OwnNorm {
    Norm norm;
    int width;
    float weights[WEIGHTS];

    // Loads the norm's weights, which are available before the input.
    __device__ inline OwnNorm(const Norm& norm, int width) : norm(norm), width(width) {
#pragma unroll
        for (int k = 0; k < WEIGHTS; k++) {
            const int i = threadIdx.x + k * blockDim.x;
            if (i < width) weights[k] = norm.weight[i];
        }
    }

    // Writes the result of rms_norm for the row to `to` (width). `row` is shared memory for the row's values, in their
    // padded places. All threads of the block call this function when the input is complete. Afterwards all of them may
    // read the result.
    __device__ inline void make(float* row, uint16_t* to) {
        const int own = threadIdx.x, apart = blockDim.x;
        for (int first = own; first < width; first += AT_ONCE * apart) {
            float asked[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                if (first + k * apart < width) asked[k] = norm.x[first + k * apart];
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                if (first + k * apart < width) row[place(first + k * apart)] = asked[k];
            }
        }
        __syncthreads();
        const float scale = scale_of([&](int i) { return row[place(i)]; }, width, norm.eps);
        auto write = [&](int i, float weight) {
            to[i] = to_bf16(__fmul_rn(rounded<BF16>(__fmul_rn(row[place(i)], scale)), weight));
        };
#pragma unroll
        for (int k = 0; k < WEIGHTS; k++) {
            if (own + k * apart < width) write(own + k * apart, weights[k]);
        }
        for (int i = own + WEIGHTS * apart; i < width; i += apart) write(i, norm.weight[i]);
        __syncthreads();
    }
};
