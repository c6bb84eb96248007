// RMSNorm (Zhang and Sennrich, 2019): out = x / √(mean(x²) + ε) · weight, with the bits of ops/rms_norm.rs. -DPRECISION.
//
// Grid (rows), block: whole warps up to 256 threads; dynamic shared memory 4 · (width + 16 · ⌊width / 1024⌋) bytes up to a
// width of 8192, beyond it none. The sum of squares has the order of ops/matmul.rs: 16 threads take
// a stretch of 1024 values, each every sixteenth; the stretches follow one another.
#include "common.cuh"

// Values of a row that a block keeps in shared memory: what threads sum in the order of ops they would wait for long, value
// by value, in the device's.
constexpr int KEPT = 8 * STRETCH;
// Where value i of those lies: two stretches side by side lie in different banks.
__device__ inline int place(int i) { return i + i / STRETCH * LANES; }

// The scale of one row, of which `x` gives the values, in every thread of the block.
template <class Values>
__device__ inline float scale_of(Values x, int width, float eps) {
    constexpr int MOST = 16;  // stretches that a block of 256 sums at once
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

// Where the norm of all rows goes: to `out`, and in bfloat16 to `narrow`, each where it is not null.
struct Normed {
    float* out;
    uint16_t* narrow;
};

template <class Values>
__device__ inline void normalise(Values x, const float* weight, float eps, int width, Normed normed) {
    const float scale = scale_of(x, width, eps);
    const long long row = static_cast<long long>(blockIdx.x) * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float normal = rounded<PRECISION>(__fmul_rn(x(i), scale));
        float value = rounded<PRECISION>(__fmul_rn(normal, weight[i]));
        if (normed.out) normed.out[row + i] = value;
        if (normed.narrow) normed.narrow[row + i] = to_bf16(value);
    }
}

// normed = RMSNorm of a row, whose value i `make` makes, and `again` gives it once more.
template <class Make, class Again>
__device__ inline void norm(Make make, Again again, const float* weight, float eps, int width, Normed normed) {
    DYNAMIC_SHARED(float, row);
    const bool kept = width <= KEPT;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float value = make(i);
        if (kept) row[place(i)] = value;
    }
    // The block reads what its other threads wrote.
    __syncthreads();
    if (kept) {
        normalise([&](int i) { return row[place(i)]; }, weight, eps, width, normed);
    } else {
        normalise(again, weight, eps, width, normed);
    }
}

// out (rows, width) = RMSNorm of x (rows, width); weight (width). Written in bfloat16 to `narrow` too, where that is not null;
// out may be null.
KERNEL(256) rms_norm(const float* x, const float* weight, float eps, int width, float* out, uint16_t* narrow) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    long long row = static_cast<long long>(blockIdx.x) * width;
    auto value = [&](int i) { return x[row + i]; };
    norm(value, value, weight, eps, width, {out, narrow});
}

// sum = a + b, normed = RMSNorm of sum, all (rows, width). sum may be a or b; normed and narrow are rms_norm's.
KERNEL(256) add_rms_norm(const float* a, const float* b, const float* weight, float eps, int width, float* sum,
                         float* normed, uint16_t* narrow) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    long long row = static_cast<long long>(blockIdx.x) * width;
    a += row, b += row, sum += row;
    auto add = [&](int i) { return sum[i] = rounded<PRECISION>(__fadd_rn(a[i], b[i])); };
    norm(add, [&](int i) { return sum[i]; }, weight, eps, width, {normed, narrow});
}

#define KERNELS_OF_THIS_FILE(X) X(rms_norm) X(add_rms_norm)
