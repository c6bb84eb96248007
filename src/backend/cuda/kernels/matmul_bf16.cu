// Products with many rows of activations in bfloat16, by tensor cores: out[row, o] = Σ_i x[row, i] · w[o, i] (+ b[o]).
#include "tensor.cuh"

// Inputs that a tile has, and tiles that are in shared memory at a time: one is multiplied, the others come by copies that
// go on by themselves.
constexpr int DEPTH = 32, STAGES = 4;

// Of a tile's four times 16 bytes of row `row`, number `chunk` lies in place chunk ^ swizzle(row): so that eight rows at the
// same chunk lie in all banks. Rows that are a multiple of eight apart have the same.
__device__ inline int swizzle(int row) { return row / 2 & 3; }

// A block has ROWS × OUTPUTS of one of the products, each of its DOWN · ACROSS warps a part of these. Every sum is over the
// inputs in their order, 16 at a time, whatever the sizes.
template <int ROWS, int OUTPUTS, int DOWN, int ACROSS>
__device__ inline void multiply(const Products& products, const uint16_t* x, int rows) {
    constexpr int THREADS = 32 * DOWN * ACROSS, WARP_ROWS = ROWS / DOWN, WARP_OUTPUTS = OUTPUTS / ACROSS;
    constexpr int A = WARP_ROWS / 16, B = WARP_OUTPUTS / 8, TILE = (ROWS + OUTPUTS) * DEPTH;
    DYNAMIC_SHARED(uint16_t, tiles);  // of each stage that of x, and that of w
    const Part part = part_of(products, blockIdx.y, OUTPUTS);
    const Product& product = products.of[part.product];
    const int inputs = product.matrix.inputs, outputs = product.matrix.outputs, steps = ceil_div(inputs, DEPTH);
    const int first_row = blockIdx.x * ROWS, first_output = part.first;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp % DOWN * WARP_ROWS, warp_output = warp / DOWN * WARP_OUTPUTS;
    const uint16_t* weights = static_cast<const uint16_t*>(product.matrix.values);

    // A thread copies the same chunk of some rows, each THREADS / 4 from the next.
    const int own_row = threadIdx.x / 4, own_chunk = threadIdx.x % 4;
    const int own_place = own_row * DEPTH + (own_chunk ^ swizzle(own_row)) * 8;
    auto copy = [&](int step, const uint16_t* from, int first, int count, uint16_t* tile, auto each) {
        const int input = step * DEPTH + 8 * own_chunk;
#pragma unroll
        for (int k = 0; k < each.value; k++) {
            // Rows that are not there are the last one again; inputs that are not there are zeros.
            const int row = min(first + own_row + k * (THREADS / 4), count - 1);
            uint16_t* to = tile + own_place + k * (THREADS / 4) * DEPTH;
            if (input < inputs) {
                copy16_async(to, from + static_cast<long long>(row) * inputs + input);
            } else {
                *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
            }
        }
    };
    auto copy_x = [&](int step) {
        copy(step, x, first_row, rows, tiles + step % STAGES * TILE, Number<ROWS * 4 / THREADS>{});
    };
    auto copy_w = [&](int step) {
        uint16_t* tile = tiles + step % STAGES * TILE + ROWS * DEPTH;
        copy(step, weights, first_output, outputs, tile, Number<OUTPUTS * 4 / THREADS>{});
    };

    // What the warp multiplies next, and what comes after it.
    uint32_t a[2][A][4], b[2][B][2];
    auto load = [&](int step, int half) {
        const uint16_t* x_tile = tiles + step % STAGES * TILE;
        const uint16_t* w_tile = x_tile + ROWS * DEPTH;
        const int x_row = lane % 16, w_row = lane / 16 * 8 + lane % 8;
        const uint16_t* x_from = x_tile + (warp_row + x_row) * DEPTH + ((2 * half + lane / 16) ^ swizzle(x_row)) * 8;
        const uint16_t* w_from =
            w_tile + (warp_output + w_row) * DEPTH + ((2 * half + lane / 8 % 2) ^ swizzle(w_row)) * 8;
#pragma unroll
        for (int i = 0; i < A; i++) load_matrices<false>(a[half][i], x_from + 16 * i * DEPTH);
#pragma unroll
        for (int j = 0; j < B; j += 2) {
            uint32_t four[4];
            load_matrices<false>(four, w_from + 8 * j * DEPTH);
            b[half][j][0] = four[0], b[half][j][1] = four[1], b[half][j + 1][0] = four[2], b[half][j + 1][1] = four[3];
        }
    };

    float sums[A][B][4] = {};  // row tile, output tile, what a lane has of them
    // Weights are there before the kernel before this one has ended.
    for (int step = 0; step < STAGES - 1 && step < steps; step++) copy_w(step);
    WAIT_FOR_INPUT();
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) copy_x(step);
        close_copies();
    }
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    load(0, 0);
    for (int step = 0; step < steps; step++) {
#pragma unroll
        for (int half = 0; half < DEPTH / 16; half++) {
            if (half == 0) {
                load(step, 1);
                // Everybody has loaded all of the stage before this one.
                if (step + STAGES - 1 < steps) copy_x(step + STAGES - 1), copy_w(step + STAGES - 1);
                close_copies();
            } else {
                // Everybody's copies of the next stage are there.
                wait_for_copies<STAGES - 2>();
                __syncthreads();
                if (step + 1 < steps) load(step + 1, 0);
            }
#pragma unroll
            for (int i = 0; i < A; i++) {
#pragma unroll
                for (int j = 0; j < B; j++) multiply_tiles(sums[i][j], a[half][i], b[half][j]);
            }
        }
    }
    wait_for_copies<0>();
#pragma unroll
    for (int i = 0; i < A; i++) {
#pragma unroll
        for (int j = 0; j < B; j++) {
#pragma unroll
            for (int down = 0; down < 2; down++) {
                const int row = first_row + warp_row + 16 * i + lane / 4 + 8 * down;
                const int output = first_output + warp_output + 8 * j + lane % 4 * 2;
                if (row >= rows || output >= outputs) continue;
                float* to = product.out + static_cast<long long>(row) * outputs + output;
                const float first = finished<BF16>(sums[i][j][2 * down], product.bias, output);
                if (output + 1 == outputs) {
                    *to = first;
                    continue;
                }
                const float second = finished<BF16>(sums[i][j][2 * down + 1], product.bias, output + 1);
                if (outputs % 2 == 0) {
                    *reinterpret_cast<float2*>(to) = {first, second};
                } else {
                    to[0] = first, to[1] = second;
                }
            }
        }
    }
}

// Up to three products of x (rows, I) with w (O, I), both in bfloat16, into out (rows, O) each, with sums in float32; I is a
// multiple of 8.
// Grid (ceil(rows / 128), Σ ceil(O / 256)), the products one after the other; block 256; shared memory 98,304 bytes. Blocks
// side by side read the same weights.
KERNEL_WITH(256, 1) matmul_bf16_256(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    multiply<128, 256, 2, 4>(products, x, rows);
}

// The same with the same bits, where so large parts would not be enough for all multiprocessors.
// Grid (ceil(rows / 64), Σ ceil(O / 64)), block 128; shared memory 32,768 bytes.
KERNEL_WITH(128, 4) matmul_bf16_64(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    multiply<64, 64, 2, 2>(products, x, rows);
}

#define KERNELS_OF_THIS_FILE(X) X(matmul_bf16_256) X(matmul_bf16_64)
