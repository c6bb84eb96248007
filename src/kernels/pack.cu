// Int8 activations (ops/quantize.rs) in the layout of matmul_q8 (packed.cuh), from floats or from int8 values.
//
// Each row of a unit has four numbers. They are stored for 32 rows together; those of row 8n + 2t + c are at 8t + 2n +
// c. Memory is allocated for a multiple of 192 rows. The numbers of rows beyond the last one are never used.
#include "packed.cuh"
#include "quantize.cuh"

// Packs x (rows, I), int8 with scales (rows, I / group), as units. The group size is a multiple of 32 values and
// divides I. Grid (ceil(rows / 16), ceil(I / 512)), block 128.
KERNEL(128) pack_rows(const int8_t* x, const float* x_scales, int rows, int inputs, int group, PackedRows to) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) to.begin();
    const int units = inputs / UNIT, groups = inputs / group, parts = group / UNIT;
    const int unit = blockIdx.y * 16 + threadIdx.x / 8, g = threadIdx.x % 8;
    if (unit >= units) return;
    const int number = unit / parts, place = place_of(number, groups) * parts + unit % parts;
    uint32_t words[2][8];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int own = blockIdx.x * PACKED_ROWS + g + 8 * i, there = min(own, rows - 1);
        words_of(reinterpret_cast<const uint4*>(x + static_cast<long long>(there) * inputs + unit * UNIT), words[i]);
        int sums[2] = {};
#pragma unroll
        for (int k = 0; k < 8; k++) sums[k / 4] = dot4(words[i][k], ONES, sums[k / 4]);
        const float scale = x_scales[static_cast<long long>(there) * groups + number];
        if (!is_plain_of_rows(scale)) *to.odd = 1;
        float* const numbers = to.numbers_of(own, place, units);
        numbers[SCALE_AT * SCALED_ROWS] = scale, numbers[SUM_AT * SCALED_ROWS] = static_cast<float>(sums[0] + sums[1]);
#pragma unroll
        for (int k = 0; k < 2; k++) numbers[(HALVES_AT + k) * SCALED_ROWS] = static_cast<float>(sums[k]);
    }
    uint4* const values = to.values + (static_cast<long long>(blockIdx.x) * units + place) * 32 + 4 * g;
#pragma unroll
    for (int t = 0; t < 4; t++) values[t] = make_uint4(words[0][t], words[0][4 + t], words[1][t], words[1][4 + t]);
}

// Quantises values (rows, I) in groups of 32, and writes them as units. `ask` loads the operands of the four values at
// an index, and `make` computes the values from them. A warp packs a unit of 16 rows, and each lane writes its own 16
// bytes of the unit.
template <class Ask, class Make>
__device__ inline void pack(Ask ask, Make make, int rows, int inputs, PackedRows to) {
    WAIT_FOR_INPUT();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) to.begin();
    const int units = inputs / UNIT, unit = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (unit >= units) return;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first = blockIdx.y * PACKED_ROWS + g;
    auto at = [&](int i, int half) { return static_cast<long long>(first + 8 * i) * inputs + unit * UNIT + 16 * half + 4 * t; };
    auto there = [&](int i) { return first + 8 * i < rows; };
    // All loads come before the first write. The compiler cannot move a load before a write, because it must assume
    // that the write may change the loaded value.
    decltype(ask(0)) asked[2][2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (there(i)) asked[i][half] = ask(at(i, half));
        }
    }
    const int place = place_of(unit, units);
    uint32_t words[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float4 x[2];
        float largest = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            x[half] = make(there(i), at(i, half), asked[i][half]);
            largest = larger_or_none(largest, largest_of(x[half]));
        }
        for (int apart = 2; apart > 0; apart /= 2) largest = larger_or_none(largest, __shfl_xor_sync(FULL, largest, apart));
        const float scale = scale_of_largest(largest), inverse = inverse_of(scale);
        if (t == 0 && !is_plain_of_rows(scale)) *to.odd = 1;
        // The sums of the first and of the last 16 values, in one word.
        int sums = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            words[i][half] = quantized4(x[half], scale, inverse);
            sums += dot4(words[i][half], ONES, 0) * (half ? 1 << 16 : 1);
        }
        for (int apart = 2; apart > 0; apart /= 2) sums += __shfl_xor_sync(FULL, sums, apart);
        const int low = static_cast<int>(static_cast<uint32_t>(sums) << 16) >> 16, high = (sums - low) / (1 << 16);
        const int own = t == SUM_AT ? low + high : t == HALVES_AT ? low : high;
        to.numbers_of(first + 8 * i, place, units)[t * SCALED_ROWS] = t == SCALE_AT ? scale : static_cast<float>(own);
    }
    uint4* const values = to.values + (static_cast<long long>(blockIdx.y) * units + place) * 32;
    values[lane] = make_uint4(words[0][0], words[0][1], words[1][0], words[1][1]);
}

__device__ inline float4 four_at(const float* x, long long at) { return *reinterpret_cast<const float4*>(x + at); }

// Quantises x (rows, I), and packs it as units. Grid (ceil(I / 256), ceil(rows / 16)), block 256.
KERNEL(256) pack_floats(const float* x, int rows, int inputs, PackedRows to) {
    LET_NEXT_START();
    pack([&](long long at) { return four_at(x, at); }, [](bool, long long, const float4& x) { return x; }, rows, inputs, to);
}

struct GateAndUp {
    float4 gate, up;
};

// silu = silu(gate), and hidden = silu · up, all (rows, I), with the bits of elementwise.cu. Also writes hidden as
// units. Grid (ceil(I / 256), ceil(rows / 16)), block 256.
KERNEL(256) silu_mul_pack(const float* gate, const float* up, int rows, int inputs, float* silu, float* hidden, PackedRows to) {
    LET_NEXT_START();
    auto ask = [&](long long at) { return GateAndUp{four_at(gate, at), four_at(up, at)}; };
    auto make = [&](bool there, long long at, const GateAndUp& of) {
        const float4 x = {silu_of_ops(of.gate.x), silu_of_ops(of.gate.y), silu_of_ops(of.gate.z), silu_of_ops(of.gate.w)};
        const float4 out = {__fmul_rn(x.x, of.up.x), __fmul_rn(x.y, of.up.y), __fmul_rn(x.z, of.up.z), __fmul_rn(x.w, of.up.w)};
        if (there) *reinterpret_cast<float4*>(silu + at) = x, *reinterpret_cast<float4*>(hidden + at) = out;
        return out;
    };
    pack(ask, make, rows, inputs, to);
}

#define KERNELS_OF_THIS_FILE(X) X(pack_rows) X(pack_floats) X(silu_mul_pack)
