// Products of bfloat16 weights with few rows of activations in bfloat16, by tensor cores: out[row, o] = Σ_i x[row, i] ·
// w[o, i] (+ b[o]).
//
// Every weight is read once for all of the rows: for one as for 16 an mma takes it. A block has 16 rows of weights, those of
// a tile of mma; its warps take pieces of their inputs by turns, and the first pieces are asked for before the input is
// there. A lane asks for 16 bytes of two rows of weights. An mma adds up 16 inputs in whatever order: here the inputs that
// its k stands for are chosen so that those bytes are a lane's part of two tiles as they lie.
//
// Each row of x is a column of its own. The sums of a piece are made by themselves and then added to those before, as tensor
// cores cut off what a sum has no bits for, each time; the warps' sums are added one after the other. So a row has the same
// bits alone, in a batch and in swiglu. From the results of ops/matmul.rs their relative L2 distance stays under 1e-6.
#include "tensor.cuh"

constexpr int OUTPUTS = 16, WARPS = 8, PIECE = 128, CHUNKS = PIECE / 32, LANE_INPUTS = 8;
// Values of the tiles of sums that a warp has, each of 16 rows of weights and 8 rows of x.
constexpr int SUMS = OUTPUTS * 8;

// Leaves in `joined` (TILES, 4, 32) the sums of 16 rows of weights with `rows` rows of x, each `inputs` long: as the 32 lanes
// of an mma have four of each of its tiles. A lane brings the rows number lane / 4 and lane / 4 + 8. Waits for the input.
template <int TILES>
__device__ inline void multiply(const uint16_t* low, const uint16_t* high, const uint16_t* x, int inputs, int rows,
                                float* joined) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4;
    const int offset = lane % 4 * LANE_INPUTS;
    uint4 now[CHUNKS][2], next[CHUNKS][2];
    auto ask = [&](int first, uint4(&to)[CHUNKS][2]) {
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            int input = first + 32 * k + offset;
            to[k][0] = to[k][1] = make_uint4(0, 0, 0, 0);
            if (input >= inputs) continue;
            to[k][0] = load_once(low + input);
            to[k][1] = load_once(high + input);
        }
    };
    float sums[TILES][4] = {};
    auto use = [&](int first, const uint4(&from)[CHUNKS][2]) {
        float of_piece[TILES][4] = {};
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const int input = first + 32 * k + offset;
            const uint4 a = from[k][0], b = from[k][1];
            const uint32_t tiles[2][4] = {{a.x, b.x, a.y, b.y}, {a.z, b.z, a.w, b.w}};
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const int row = 8 * tile + group;
                // Rows and inputs that are not there are zeros.
                uint4 of_x = make_uint4(0, 0, 0, 0);
                if (row < rows && input < inputs) {
                    of_x = *reinterpret_cast<const uint4*>(x + static_cast<long long>(row) * inputs + input);
                }
                const uint32_t halves[2][2] = {{of_x.x, of_x.y}, {of_x.z, of_x.w}};
                multiply_tiles(of_piece[tile], tiles[0], halves[0]);
                multiply_tiles(of_piece[tile], tiles[1], halves[1]);
            }
        }
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int i = 0; i < 4; i++) sums[tile][i] = __fadd_rn(sums[tile][i], of_piece[tile][i]);
        }
    };
    // Two pieces are under way, all that a warp has of most matrices: each goes back to where it came from, for to move
    // one to the other's registers would be to wait for it.
    constexpr int ROUND = WARPS * PIECE;
    const int own = warp * PIECE;
    ask(own, now);
    ask(own + ROUND, next);
    WAIT_FOR_INPUT();
    for (int first = own; first < inputs; first += 2 * ROUND) {
        use(first, now);
        ask(first + 2 * ROUND, now);
        if (first + ROUND >= inputs) break;
        use(first + ROUND, next);
        ask(first + 3 * ROUND, next);
    }
    SHARED(float, parts, WARPS * TILES * SUMS);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int k = 0; k < 4; k++) parts[((warp * TILES + tile) * 4 + k) * 32 + lane] = sums[tile][k];
    }
    __syncthreads();
    if (threadIdx.x < TILES * SUMS) {
        float sum = parts[threadIdx.x];
        for (int from = 1; from < WARPS; from++) sum = __fadd_rn(sum, parts[from * TILES * SUMS + threadIdx.x]);
        joined[threadIdx.x] = sum;
    }
}

// Which row of x, and which of the first eight rows of weights, sum number i of `joined` belongs to; the next eight are
// two times 32 further on.
__device__ inline int row_of_sum(int i) { return i / SUMS * 8 + i % 4 * 2 + i / 32 % 2; }
__device__ inline int output_of_sum(int i) { return i % 32 / 4; }

template <int TILES>
__device__ inline void matvec(const Products& products, const uint16_t* x, int rows) {
    Part part = part_of(products, blockIdx.x, OUTPUTS);
    const Product& product = products.of[part.product];
    const int inputs = product.matrix.inputs, outputs = product.matrix.outputs, group = threadIdx.x % 32 / 4;
    const uint16_t* weights = static_cast<const uint16_t*>(product.matrix.values);
    auto row_of = [&](int output) { return weights + static_cast<long long>(min(output, outputs - 1)) * inputs; };
    SHARED(float, joined, TILES * SUMS);
    multiply<TILES>(row_of(part.first + group), row_of(part.first + group + 8), x, inputs, rows, joined);
    const int i = threadIdx.x;
    if (i >= TILES * SUMS) return;
    const int row = row_of_sum(i), output = part.first + output_of_sum(i) + i / 64 % 2 * 8;
    if (row >= rows || output >= outputs) return;
    product.out[static_cast<long long>(row) * outputs + output] = finished<BF16>(joined[i], product.bias, output);
}

// Up to three products of x (rows, I) with w (O, I), into out (rows, O) each; rows is at most the number in the name, I a
// multiple of 8.
// Grid (Σ ceil(O / 16)), the products one after the other; block 256.
KERNEL_WITH(256, 2) matvec_bf16_8(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    matvec<1>(products, x, rows);
}
KERNEL_WITH(256, 2) matvec_bf16_16(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    matvec<2>(products, x, rows);
}

// The gated half of the feed-forward network (Shazeer, 2020): the first eight of a block's rows of weights are gate's, the
// others the same of up.
template <int TILES>
__device__ inline void swiglu(const uint16_t* x, int rows, const Gated& gated, uint16_t* narrow) {
    const int inputs = gated.gate.inputs, outputs = gated.gate.outputs, first = blockIdx.x * 8;
    const int own = min(first + static_cast<int>(threadIdx.x) % 32 / 4, outputs - 1);
    const long long start = static_cast<long long>(own) * inputs;
    SHARED(float, joined, TILES * SUMS);
    multiply<TILES>(static_cast<const uint16_t*>(gated.gate.values) + start,
                    static_cast<const uint16_t*>(gated.up.values) + start, x, inputs, rows, joined);
    __syncthreads();
    const int i = threadIdx.x;
    if (i >= TILES * SUMS || i / 64 % 2 == 1) return;
    const int row = row_of_sum(i), output = first + output_of_sum(i);
    if (row >= rows || output >= outputs) return;
    const float gate = finished<BF16>(joined[i], gated.gate_bias, output);
    const float up = finished<BF16>(joined[i + 64], gated.up_bias, output), silu = rounded<BF16>(silu_of_ops(gate));
    const uint16_t hidden = to_bf16(__fmul_rn(silu, up));
    const long long at = static_cast<long long>(row) * outputs + output;
    if (narrow) {
        narrow[at] = hidden;
        return;
    }
    gated.gate_out[at] = gate, gated.up_out[at] = up, gated.silu[at] = silu, gated.hidden[at] = from_bf16(hidden);
}

// gate = x · w1ᵀ, silu(gate), up = x · w3ᵀ and silu · up, (rows, F) each, with the bits of matvec_bf16, silu and mul. Sizes
// as matvec_bf16's. Where `narrow` is not null, only silu · up is written, in bfloat16, and there.
// Grid (ceil(F / 8)), block 256.
KERNEL_WITH(256, 2) swiglu_bf16_8(const uint16_t* x, int rows, Gated gated, uint16_t* narrow) {
    LET_NEXT_START();
    swiglu<1>(x, rows, gated, narrow);
}
KERNEL_WITH(256, 2) swiglu_bf16_16(const uint16_t* x, int rows, Gated gated, uint16_t* narrow) {
    LET_NEXT_START();
    swiglu<2>(x, rows, gated, narrow);
}

#define KERNELS_OF_THIS_FILE(X) X(matvec_bf16_8) X(matvec_bf16_16) X(swiglu_bf16_8) X(swiglu_bf16_16)
