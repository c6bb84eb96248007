// RMSNorm (Zhang and Sennrich, 2019): out = x / √(mean(x²) + ε) · weight, with the bits of ops/rms_norm.rs.
// -DPRECISION.
//
// Grid (rows), block: whole warps up to 256 threads; dynamic shared memory 4 · (width + 16 · ⌊width / 1024⌋) bytes up
// to a width of 8192, and none beyond it.
#include "norm.cuh"
#include "packed.cuh"
#include "quantize.cuh"

// The memory for the norm of all rows: `out` in float32, `narrow` in bfloat16, and `whole` and the units in int8,
// quantised from the float32 values. Each may be null. Quantised outputs need a width that is a multiple of 32.
struct Normed {
    float* out;
    uint16_t* narrow;
    Quantized whole;
    PackedRows packed;
};

// Applies `of` to each value, or to each pair of values.
template <class Of>
__device__ inline float map(float x, Of of) { return of(x); }
template <class Of>
__device__ inline float4 map(const float4& x, Of of) { return {of(x.x), of(x.y), of(x.z), of(x.w)}; }
template <class Of>
__device__ inline float map(float a, float b, Of of) { return of(a, b); }
template <class Of>
__device__ inline float4 map(const float4& a, const float4& b, Of of) {
    return {of(a.x, b.x), of(a.y, b.y), of(a.z, b.z), of(a.w, b.w)};
}

__device__ inline void narrow_to(uint16_t* to, float x) { *to = to_bf16(x); }
__device__ inline void narrow_to(uint16_t* to, const float4& x) {
    *reinterpret_cast<uint2*>(to) = {pair_bf16(x.x, x.y), pair_bf16(x.z, x.w)};
}

// Quantises four neighbouring values of each lane, from value `first` of row `row` on. Eight lanes have a group of 32
// values.
__device__ inline void quantize(const float4& x, bool there, int row, int first, int width, const Normed& to) {
    const float scale = scale_of_largest(largest_of_eight(largest_of(x)));
    const uint32_t bytes = quantized4(x, scale, inverse_of(scale));
    if (to.whole.values && there) {
        const long long at = static_cast<long long>(row) * width + first;
        if (first % 32 == 0) to.whole.scales[at / 32] = scale;
        *reinterpret_cast<uint32_t*>(to.whole.values + at) = bytes;
    }
    if (to.packed.values) pack_four(to.packed, bytes, scale, there, row, first / 32, width / 32, first / 4 % 8);
}
__device__ inline void quantize(float, bool, int, int, int, const Normed&) {}

// Number of elements T that a thread loads before it uses the first, and number of elements of weights that it loads
// before the input is complete. If T is four values, the threads of a block load all of a row of 4096.
constexpr int ASKED = 4;

// Computes the RMSNorm of a row into `normed`. A thread reads its values as type T: four values if the width is a
// multiple of 4, else one. `ask` loads the operands of element i, `make` computes the element from them, and `again`
// returns the same element later. Waits for the input.
template <class T, class Ask, class Make, class Again>
__device__ inline void norm(Ask ask, Make make, Again again, const float* weight, float eps, int width, const Normed& normed) {
    constexpr int EACH = sizeof(T) / sizeof(float);
    DYNAMIC_SHARED(float, row);
    const bool kept = width <= KEPT;
    const int own = threadIdx.x, apart = blockDim.x, count = width / EACH;
    // The first element of the warp: its lanes work together, so they must do the same number of steps.
    const int of_warp = own - own % 32;
    auto weight_of = [&](int i) { return reinterpret_cast<const T*>(weight)[i]; };
    T weights[ASKED] = {};
#pragma unroll
    for (int k = 0; k < ASKED; k++) {
        if (own + k * apart < count) weights[k] = weight_of(own + k * apart);
    }
    WAIT_FOR_INPUT();
    if (normed.packed.values && blockIdx.x == 0 && own == 0) normed.packed.begin();
    auto in_row = [&](int i) -> T& { return *reinterpret_cast<T*>(row + place(EACH * i)); };
    for (int first = own; first < count; first += ASKED * apart) {
        decltype(ask(0)) asked[ASKED];
#pragma unroll
        for (int k = 0; k < ASKED; k++) {
            if (first + k * apart < count) asked[k] = ask(first + k * apart);
        }
#pragma unroll
        for (int k = 0; k < ASKED; k++) {
            int i = first + k * apart;
            if (i >= count) continue;
            const T value = make(i, asked[k]);
            if (kept) in_row(i) = value;
        }
    }
    // After this barrier, a thread may read the values that other threads of the block wrote.
    __syncthreads();
    const float scale = kept ? scale_of([&](int i) { return row[place(i)]; }, width, eps)
                             : scale_of([&](int i) { return again(float{}, i); }, width, eps);
    const long long first_of_row = static_cast<long long>(blockIdx.x) * width;
    auto write = [&](int i, const T& weight) {
        const bool there = i < count;
        T out = {};
        if (there) {
            const T value = kept ? in_row(i) : again(T{}, i);
            const T normal = map(value, [&](float x) { return rounded<PRECISION>(__fmul_rn(x, scale)); });
            out = map(normal, weight, [](float x, float weight) { return rounded<PRECISION>(__fmul_rn(x, weight)); });
            if (normed.out) *reinterpret_cast<T*>(normed.out + first_of_row + EACH * i) = out;
            if (normed.narrow) narrow_to(normed.narrow + first_of_row + EACH * i, out);
        }
        if constexpr (Same<PRECISION, F32>::value) {
            if (normed.whole.values || normed.packed.values) quantize(out, there, blockIdx.x, EACH * i, width, normed);
        }
    };
#pragma unroll
    for (int k = 0; k < ASKED; k++) {
        if (of_warp + k * apart < count) write(own + k * apart, weights[k]);
    }
#pragma unroll 1
    for (int k = ASKED; of_warp + k * apart < count; k++) {
        const int i = own + k * apart;
        write(i, i < count ? weight_of(i) : T{});
    }
}

template <class T>
__device__ inline void norm_of(const float* x, const float* weight, float eps, int width, const Normed& normed) {
    auto again = [&](auto as, int i) { return reinterpret_cast<const decltype(as)*>(x)[i]; };
    norm<T>([&](int i) { return again(T{}, i); }, [](int, const T& x) { return x; }, again, weight, eps, width, normed);
}

// out (rows, width) = RMSNorm of x (rows, width); weight (width). If `narrow`, `whole` and the units of `packed` are
// not null, the result is also written there: in bfloat16 to `narrow`, in int8 to the others. out may be null.
KERNEL_WITH(256, 3) rms_norm(const float* x, const float* weight, float eps, int width, float* out, uint16_t* narrow,
                         Quantized whole, PackedRows packed) {
    LET_NEXT_START();
    x += static_cast<long long>(blockIdx.x) * width;
    const Normed normed = {out, narrow, whole, packed};
    if (width % 4 == 0) {
        norm_of<float4>(x, weight, eps, width, normed);
    } else {
        norm_of<float>(x, weight, eps, width, normed);
    }
}

template <class T>
__device__ inline void norm_of_sum(const float* a, const float* b, const float* weight, float eps, int width, float* sum,
                                   const Normed& normed) {
    struct Two {
        T a, b;
    };
    auto ask = [&](int i) { return Two{reinterpret_cast<const T*>(a)[i], reinterpret_cast<const T*>(b)[i]}; };
    auto again = [&](auto as, int i) { return reinterpret_cast<const decltype(as)*>(sum)[i]; };
    auto add = [&](int i, const Two& of) {
        return reinterpret_cast<T*>(sum)[i] = map(of.a, of.b, [](float a, float b) { return rounded<PRECISION>(__fadd_rn(a, b)); });
    };
    norm<T>(ask, add, again, weight, eps, width, normed);
}

// sum = a + b, normed = RMSNorm of sum, all (rows, width). sum may be a or b. `normed` and the parameters after it are
// the outputs of rms_norm.
KERNEL_WITH(256, 3) add_rms_norm(const float* a, const float* b, const float* weight, float eps, int width, float* sum,
                         float* normed, uint16_t* narrow, Quantized whole, PackedRows packed) {
    LET_NEXT_START();
    long long row = static_cast<long long>(blockIdx.x) * width;
    a += row, b += row, sum += row;
    const Normed to = {normed, narrow, whole, packed};
    if (width % 4 == 0) {
        norm_of_sum<float4>(a, b, weight, eps, width, sum, to);
    } else {
        norm_of_sum<float>(a, b, weight, eps, width, sum, to);
    }
}

#define KERNELS_OF_THIS_FILE(X) X(rms_norm) X(add_rms_norm)
