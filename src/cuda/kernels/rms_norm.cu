// RMSNorm (Zhang and Sennrich, 2019): out = x / √(mean(x²) + ε) · weight, with the bits of ops/rms_norm.rs. -DPRECISION.
//
// Grid (rows), block: whole warps up to 256 threads; dynamic shared memory 4 · (width + 16 · ⌊width / 1024⌋) bytes up to a
// width of 8192, beyond it none.
#include "norm.cuh"
#include "quantize.cuh"

// Where the norm of all rows goes: to `out`, in bfloat16 to `narrow`, and in float32 quantised to `whole`, each where it is not
// null; quantised where the width is a multiple of 32.
struct Normed {
    float* out;
    uint16_t* narrow;
    Quantized whole;
};

// normed = RMSNorm of a row. `ask` gives what value i is made of, `make` makes it of that, and `again` gives it once more.
// Waits for the input.
template <class Ask, class Make, class Again>
__device__ inline void norm(Ask ask, Make make, Again again, const float* weight, float eps, int width, Normed normed) {
    DYNAMIC_SHARED(float, row);
    const bool kept = width <= KEPT;
    const int own = threadIdx.x, apart = blockDim.x;
    float weights[WEIGHTS];
#pragma unroll
    for (int k = 0; k < WEIGHTS; k++) {
        if (own + k * apart < width) weights[k] = weight[own + k * apart];
    }
    WAIT_FOR_INPUT();
    for (int first = own; first < width; first += AT_ONCE * apart) {
        decltype(ask(0)) asked[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (first + k * apart < width) asked[k] = ask(first + k * apart);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int i = first + k * apart;
            if (i >= width) continue;
            float value = make(i, asked[k]);
            if (kept) row[place(i)] = value;
        }
    }
    // The block reads what its other threads wrote.
    __syncthreads();
    auto value = [&](int i) { return kept ? row[place(i)] : again(i); };
    const float scale = kept ? scale_of([&](int i) { return row[place(i)]; }, width, eps) : scale_of(again, width, eps);
    const long long first_of_row = static_cast<long long>(blockIdx.x) * width;
    auto write = [&](int i, float weight) {
        float normal = rounded<PRECISION>(__fmul_rn(value(i), scale));
        float out = rounded<PRECISION>(__fmul_rn(normal, weight));
        if (normed.out) normed.out[first_of_row + i] = out;
        if (normed.narrow) normed.narrow[first_of_row + i] = to_bf16(out);
    };
#pragma unroll
    for (int k = 0; k < WEIGHTS; k++) {
        if (own + k * apart < width) write(own + k * apart, weights[k]);
    }
    for (int first = own + WEIGHTS * apart; first < width; first += AT_ONCE * apart) {
        // What is written may be where a weight is, for all that the compiler knows.
        float more[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (first + k * apart < width) more[k] = weight[first + k * apart];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (first + k * apart < width) write(first + k * apart, more[k]);
        }
    }
    if constexpr (Same<PRECISION, F32>::value) {
        if (!normed.whole.values) return;
        // A warp has 32 values that follow one another.
#pragma unroll 1
        for (int i = own; i < width; i += apart) {
            const float out = __fmul_rn(__fmul_rn(value(i), scale), weight[i]);
            quantize_group(out, normed.whole, first_of_row + i - own % 32);
        }
    }
}

// out (rows, width) = RMSNorm of x (rows, width); weight (width). Written in bfloat16 to `narrow` too, and in int8 to
// `whole`, where these are not null; out may be null.
KERNEL_WITH(256, 3) rms_norm(const float* x, const float* weight, float eps, int width, float* out, uint16_t* narrow,
                         Quantized whole) {
    LET_NEXT_START();
    x += static_cast<long long>(blockIdx.x) * width;
    auto value = [&](int i) { return x[i]; };
    norm(value, [](int, float x) { return x; }, value, weight, eps, width, {out, narrow, whole});
}

// sum = a + b, normed = RMSNorm of sum, all (rows, width). sum may be a or b; normed, narrow and whole are rms_norm's.
KERNEL_WITH(256, 3) add_rms_norm(const float* a, const float* b, const float* weight, float eps, int width, float* sum,
                         float* normed, uint16_t* narrow, Quantized whole) {
    LET_NEXT_START();
    long long row = static_cast<long long>(blockIdx.x) * width;
    a += row, b += row, sum += row;
    auto ask = [&](int i) { return float2{a[i], b[i]}; };
    auto add = [&](int i, float2 of) { return sum[i] = rounded<PRECISION>(__fadd_rn(of.x, of.y)); };
    norm(ask, add, [&](int i) { return sum[i]; }, weight, eps, width, {normed, narrow, whole});
}

#define KERNELS_OF_THIS_FILE(X) X(rms_norm) X(add_rms_norm)
