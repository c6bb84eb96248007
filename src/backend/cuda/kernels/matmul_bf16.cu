// Products with many rows of activations in bfloat16, by tensor cores: out[row, o] = Σ_i x[row, i] · w[o, i] (+ b[o]).
#include "tensor.cuh"

// Where 16 bytes, number `chunk` of four, of row `row` of a tile lie in shared memory: so that eight rows at the same
// chunk lie in all banks.
constexpr int DEPTH = 32;
__device__ inline int place(int row, int chunk) { return row * DEPTH + (chunk ^ (row / 2 & 3)) * 8; }

// The product in bfloat16, by tensor cores: x (rows, I) and w (O, I) in bfloat16, I a multiple of 8, sums in float32. A
// block has 128 rows × 128 outputs, a warp 64 × 32; tiles of 32 inputs come by copies of their own, two ahead.
// Grid (ceil(rows / 128), ceil(O / 128)), block 256. Blocks side by side read the same weights.
KERNEL(256) matmul_bf16(Product product, const uint16_t* x, int rows) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    constexpr int SIDE = 128, STAGES = 3, TILE = SIDE * DEPTH;
    SHARED(uint16_t, tiles, STAGES * 2 * TILE);  // of each stage that of x, and that of w
    const Matrix& matrix = product.matrix;
    const int inputs = matrix.inputs, outputs = matrix.outputs, steps = ceil_div(inputs, DEPTH);
    const int first_row = blockIdx.x * SIDE, first_output = blockIdx.y * SIDE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp % 2 * 64, warp_output = warp / 2 * 32;
    const uint16_t* weights = static_cast<const uint16_t*>(matrix.values);

    auto load = [&](int step) {
        uint16_t* to = tiles + step % STAGES * 2 * TILE;
        for (int i = threadIdx.x; i < 2 * SIDE * 4; i += blockDim.x) {
            bool of_w = i >= SIDE * 4;
            int row = i / 4 % SIDE, chunk = i % 4, input = step * DEPTH + 8 * chunk;
            // Rows that are not there are the last one again; inputs that are not there are zeros.
            int there = of_w ? min(first_output + row, outputs - 1) : min(first_row + row, rows - 1);
            const uint16_t* from = (of_w ? weights : x) + static_cast<long long>(there) * inputs + input;
            uint16_t* at = to + (of_w ? TILE : 0) + place(row, chunk);
            if (input < inputs) {
                copy16_async(at, from);
            } else {
                *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
            }
        }
    };

    float sums[4][4][4] = {};  // row tile, output tile, what a lane has of them
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) load(step);
        close_copies();
    }
    for (int step = 0; step < steps; step++) {
        wait_for_copies<STAGES - 2>();
        // Everybody's copies are there, and everybody has done with the stage that is filled next.
        __syncthreads();
        if (step + STAGES - 1 < steps) load(step + STAGES - 1);
        close_copies();
        const uint16_t* x_tile = tiles + step % STAGES * 2 * TILE;
        const uint16_t* w_tile = x_tile + TILE;
#pragma unroll
        for (int half = 0; half < DEPTH / 16; half++) {
            uint32_t a[4][4], b[4][2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = warp_row + 16 * i + lane % 16, chunk = 2 * half + lane / 16;
                load_matrices<false>(a[i], x_tile + place(row, chunk));
            }
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                int row = warp_output + 8 * j + lane / 16 * 8 + lane % 8, chunk = 2 * half + lane / 8 % 2;
                uint32_t four[4];
                load_matrices<false>(four, w_tile + place(row, chunk));
                b[j][0] = four[0], b[j][1] = four[1], b[j + 1][0] = four[2], b[j + 1][1] = four[3];
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) multiply_tiles(sums[i][j], a[i], b[j]);
            }
        }
    }
    wait_for_copies<0>();
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int row = first_row + warp_row + 16 * i + lane / 4 + k / 2 * 8;
                int output = first_output + warp_output + 8 * j + lane % 4 * 2 + k % 2;
                if (row >= rows || output >= outputs) continue;
                float sum = sums[i][j][k];
                if (product.bias) sum = __fadd_rn(sum, product.bias[output]);
                product.out[static_cast<long long>(row) * outputs + output] = rounded<BF16>(sum);
            }
        }
    }
}

#define KERNELS_OF_THIS_FILE(X) X(matmul_bf16)
