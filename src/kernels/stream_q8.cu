// Integer products of one row, for a decode pass, fused with the operations before and after them (stream_row.cuh).
// -DWEIGHT (I8 or a format with blocks of 32).
//
// A warp copies pieces of its rows to shared memory, and has several copies in flight while it multiplies another
// piece. A half warp has a row of weights: lane l has the groups l, l + 16, l + 32 …, which ops adds to its partial sum
// l. So the lanes exchange nothing before the 16 partial sums are joined.
#include "stream_row.cuh"

// A piece: the number of groups of a row that are copied together.
constexpr int PIECE = 32, PIECE_BYTES = Of::bytes(PIECE), SCALE_BYTES = Of::scale_bytes(PIECE);
constexpr int VALUES_ROOM = values_room(PIECE), ROOM = VALUES_ROOM + (APART ? up16(SCALE_BYTES + 12) : 0);
// Number of rows of a warp, and number of pieces of each row in shared memory.
constexpr int ROWS = 2, STAGE = ROWS * ROOM, STAGES = 4, RING = WARPS * STAGES * STAGE;

// A row of x in shared memory: the first 16 values of all groups, then the other 16 values of all groups. So
// neighbouring lanes read neighbouring 16 bytes.
struct Prepared : Row8 {
    using Row8::Row8;
    __device__ inline uint4& half(int half, int group) const { return reinterpret_cast<uint4*>(words)[half * groups + group]; }
    __device__ inline void put(int group, const uint4& low, const uint4& high) const { half(0, group) = low, half(1, group) = high; }
    __device__ inline void put_word(int group, int i, uint32_t word) const {
        reinterpret_cast<uint32_t*>(&half(i / 4, group))[i % 4] = word;
    }
};

// Returns the contribution of group `group` of x to a sum. `number` is the number of the same group of weights in its
// piece.
template <class W>
__device__ inline Term multiply(const InPiece& piece, int number, const Prepared& x, int group) {
    uint32_t q[8];
    float scale[2] = {}, minimum[2] = {};
    if constexpr (Same<W, I8>::value) {
        words_of(reinterpret_cast<const uint4*>(piece.bytes + 32 * number), q);
    } else {
        W::codes(piece.bytes + number * W::BYTES, 0, q);
    }
    scales_in<W>(piece, number, scale, minimum);
    const uint4 low = x.half(0, group), high = x.half(1, group);
    const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    int products[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) products[0] = dot4(words[i], q[i], products[0]);
    if constexpr (Same<W, I8>::value) {
        return {__fmul_rn(x.scales[group], scale[0]), static_cast<float>(products[0])};
    } else {
        float sums[2] = {};
        if (OF_SUMS) sums[0] = x.sum(0, group);
        if (Of::OFFSET) products[0] -= Of::OFFSET * static_cast<int>(__float_as_uint(sums[0]));
        return {x.scales[group], term_of<W>(scale, minimum, products, sums)};
    }
}

// Multiplies x with the rows of weights of this warp, two per turn. `row_of(turn)` returns the row of a lane's half.
// `input` waits for x and writes it to shared memory. `finish(turn, sum, asked)` receives the complete product in the
// first lane of each half. `asked` is the result of `early(turn)`, which is called when the turn begins. The ring is at
// `memory`. Waits for the input. All threads of the block call it.
template <class RowOf, class Input, class Early, class Finish>
__device__ inline void stream(unsigned char* memory, const Prepared& x, int turns, RowOf row_of, Input input, Early early,
                              Finish finish) {
    // `lows` holds the offset within 16 bytes (From::low) of the rows of the last LOWS turns.
    constexpr int LOWS = 8;
    static_assert(STAGES <= LOWS, "a turn is multiplied before its place is used again");
    const int lane = threadIdx.x % HALF, groups = x.groups, pieces = ceil_div(groups, PIECE);
    unsigned char* const ring = memory + threadIdx.x / 32 * (STAGES * STAGE) + threadIdx.x % 32 / HALF * ROOM;
    const SharedPlace to_ring = shared_place(ring);
    From from = {};
    uint32_t lows = 0;
    int next = 0, next_piece = 0;
    auto ask = [&](int stage) {
        if (next < turns) {
            if (next_piece == 0) {
                from = row_of(next);
                const int at = next % LOWS * 4;
                lows = (lows & ~(15u << at)) | from.low() << at;
            }
            const int count = min(groups - next_piece * PIECE, PIECE);
            const SharedPlace to = to_ring + stage * STAGE;
            copy_piece<PIECE_BYTES, Of::ALIGNED>(to, from.bytes, static_cast<int>(bytes_of<WEIGHT>(32 * count)));
            from.bytes += PIECE_BYTES;
            if constexpr (APART) {
                copy_piece<SCALE_BYTES, false>(to + VALUES_ROOM, reinterpret_cast<const uint8_t*>(from.scales), 4 * count);
                from.scales += PIECE;
            }
            if (++next_piece == pieces) next_piece = 0, next++;
        }
        close_copies();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) ask(stage);
    input();
    int stage = 0;
    for (int turn = 0; turn < turns; turn++) {
        float sum = 0.0f;
        const auto asked = early(turn);
        uint32_t low = lows >> (turn % LOWS * 4) & 15;
        for (int first = 0; first < groups; first += PIECE) {
            ask(stage == 0 ? STAGES - 1 : stage - 1);
            wait_for_copies<STAGES - 1>();
            __syncwarp();
            const unsigned char* const at = ring + stage * STAGE;
            const InPiece piece = {at + (APART || Of::ALIGNED ? 0 : low),
                                   reinterpret_cast<const float*>(at + VALUES_ROOM + (APART ? low : 0))};
#pragma unroll
            for (int number = lane; number < PIECE; number += LANES) {
                if (first + number >= groups) break;
                const Term term = multiply<WEIGHT>(piece, number, x, first + number);
                sum = __fmaf_rn(term.scale, term.value, sum);
            }
            low = (low + (APART ? SCALE_BYTES : PIECE_BYTES)) & 15;
            // A piece that all lanes have read may be replaced.
            __syncwarp();
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        finish(turn, reduce_lanes(sum), asked);
    }
    wait_for_copies<0>();
}

// Up to three products of a row x (I) with weights w (O, I). Each product writes out (O). If there is a single product,
// the kernel can also add another tensor to it, with the bits of add. Or results can be rotated and cached, with the
// bits of rope and cache. I is a multiple of 32 and, for a norm, at most KEPT. `units` is Σ ceil(O / 2). Grid:
// ceil(units / 8), but at most as many blocks as fit on the device; block 256; shared memory: the ring, x, and for a
// norm 4 · (I + 16 · ⌊I / 1024⌋) bytes.
KERNEL_WITH(256, 4) stream_q8_1(Products products, Source source, int units, Added added, int cache_type, Turns turns) {
    LET_NEXT_START();
    DYNAMIC_SHARED(unsigned char, memory);
    const Prepared x(memory + RING, products.of[0].matrix.inputs / 32);
    OwnInput<Prepared> own(source, x);
    const Finish finish = {products, added, turns, cache_type};
    // Neighbouring rows belong to neighbouring blocks, so the rows of the last turn are spread over all blocks.
    const int warps = gridDim.x * WARPS, first = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    const int own_units = first < units ? ceil_div(units - first, warps) : 0;
    auto output = [&](int turn) { return output_of<ROWS / 2>(products, turns, first + turn * warps, 0, threadIdx.x % 32 / HALF); };
    auto row_of = [&](int turn) { return from_of(products, output(turn)); };
    auto early = [&](int turn) { return finish.ask(output(turn)); };
    stream(memory, x, own_units, row_of, [&] { own.make(); }, early, [&](int turn, float sum, float2 asked) {
        finish.write(output(turn), sum, asked);
    });
}

// Computes in the feed-forward network (Shazeer, 2020): gate = x · w1ᵀ, silu(gate), up = x · w3ᵀ and silu · up, (F)
// each, with the bits of silu and mul. x is as for stream_q8_1. Half 0 of a warp has rows of gate, and half 1 the same
// rows of up. A block computes a tile of 32 hidden values. If `to` is given, the hidden values are also written there,
// quantised; then F must be a multiple of 32. Grid: ceil(F / 32), but at most as many blocks as fit on the device;
// block 256; shared memory as for stream_q8_1.
KERNEL_WITH(256, 4) stream_gated_q8_1(Gated gated, Source source, Quantized to) {
    LET_NEXT_START();
    constexpr int TURNS = TILE / WARPS;
    DYNAMIC_SHARED(unsigned char, memory);
    SHARED(float, hidden, 2 * TILE);
    const Prepared x(memory + RING, gated.gate.inputs / 32);
    OwnInput<Prepared> own(source, x);
    const int outputs = gated.gate.outputs, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int block = blockIdx.x, blocks = gridDim.x;
    auto in_tile = [&](int turn) { return TURNS * warp + turn % TURNS; };
    auto first_of = [&](int turn) { return (block + turn / TURNS * blocks) * TILE; };
    auto row_of = [&](int turn) {
        const Matrix& matrix = lane < HALF ? gated.gate : gated.up;
        return from_of(matrix, min(first_of(turn) + in_tile(turn), outputs - 1));
    };
    auto early = [](int) { return 0; };
    const int own_turns = turns_of(ceil_div(outputs, TILE)) * TURNS;
    stream(memory, x, own_turns, row_of, [&] { own.make(); }, early, [&](int turn, float sum, int) {
        float* const tile = hidden + turn / TURNS % 2 * TILE;
        const int first = first_of(turn);
        const float product = finish_gated(gated, first + in_tile(turn), sum);
        if (lane == 0) tile[in_tile(turn)] = product;
        if (!to.values || turn % TURNS != TURNS - 1) return;
        // The next tile uses the other half of this memory. The tile after the next one uses this half again; all
        // threads have finished with it by then.
        __syncthreads();
        if (warp == 0) quantize_group(tile[lane], to, first);
    });
}

#define KERNELS_OF_THIS_FILE(X) X(stream_q8_1) X(stream_gated_q8_1)
