// Drawing the next token as generate/sampler.rs does: argmax, or softmax with a temperature, then top-k and top-p
// (nucleus sampling, Holtzman et al., 2020) by a given random number.
#include "common.cuh"

// Whether the pair of a value and its id goes before another: larger, and of equals the lower id. What is not a number
// goes before nothing.
__device__ inline bool before(float value, int id, float other, int other_id) {
    return value > other || (value == other && id < other_id);
}

// The first of the block's pairs, in its first thread. 256 threads.
__device__ inline void first_of_block(float& value, int& id) {
    SHARED(float, values, 8);
    SHARED(int, ids, 8);
    auto first_of_warp = [&] {
        for (int apart = 16; apart > 0; apart /= 2) {
            float other = __shfl_xor_sync(FULL, value, apart);
            int other_id = __shfl_xor_sync(FULL, id, apart);
            if (before(other, other_id, value, id)) value = other, id = other_id;
        }
    };
    first_of_warp();
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = value, ids[threadIdx.x / 32] = id;
    __syncthreads();
    if (threadIdx.x < 32) {
        value = values[threadIdx.x % 8], id = ids[threadIdx.x % 8];
        first_of_warp();
    }
}

// Whether it holds for some thread of the block, in every thread. 256 threads.
__device__ inline bool any_of_block(bool mine) {
    SHARED(unsigned, found, 8);
    unsigned of_warp = __ballot_sync(FULL, mine);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = of_warp;
    __syncthreads();
    unsigned all = 0;
    for (int warp = 0; warp < 8; warp++) all |= found[warp];
    return all != 0;
}

// What a block found in its part of a row of logits: the largest value and its id, and whether some value is not a number.
struct Largest {
    float value;
    int id, not_a_number, unused;
};

// What was drawn of a row.
struct Drawn {
    int id, not_a_number;
};

// No id: after every other.
constexpr int NONE = 0x7fffffff;

// drawn (rows), and shown (rows) where the processor sees it, = the id of the largest of each row of logits (rows, V), the
// lowest of equals; 0 where none is a number.
// parts: (rows, blocks); counters (rows): 0, and 0 again afterwards.
// Grid (blocks, at most 256; rows), block 256. The block of a row that is done last joins the others'.
KERNEL(256) argmax(const float* logits, int vocab, Largest* parts, unsigned* counters, Drawn* drawn, Drawn* shown) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    SHARED(int, last, 1);
    logits += static_cast<long long>(blockIdx.y) * vocab, parts += blockIdx.y * gridDim.x;
    float value = minus_infinity();
    int id = NONE;
    bool nan = false;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < vocab; i += gridDim.x * blockDim.x) {
        float logit = logits[i];
        nan |= logit != logit;
        if (before(logit, i, value, id)) value = logit, id = i;
    }
    nan = any_of_block(nan);
    first_of_block(value, id);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = {value, id, nan, 0};
        __threadfence();
        last[0] = atomicInc(&counters[blockIdx.y], gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last[0]) return;
    __threadfence();
    bool mine = threadIdx.x < gridDim.x;
    // Another block wrote these: not by way of a cache that may have older ones.
    const volatile Largest* part = parts + threadIdx.x;
    value = mine ? part->value : minus_infinity();
    id = mine ? part->id : NONE;
    nan = any_of_block(mine && part->not_a_number);
    first_of_block(value, id);
    if (threadIdx.x == 0) drawn[blockIdx.y] = shown[blockIdx.y] = {id == NONE ? 0 : id, nan};
}

// parts (rows, blocks): the largest of the logits / temperature that each block looks at. logits: (rows, V).
// Grid (blocks, at most 256; rows), block 256.
KERNEL(256) sample_max(const float* logits, int vocab, float temperature, Largest* parts) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    logits += static_cast<long long>(blockIdx.y) * vocab, parts += blockIdx.y * gridDim.x;
    float value = minus_infinity();
    int id = 0;
    bool nan = false;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < vocab; i += gridDim.x * blockDim.x) {
        float logit = logits[i];
        nan |= logit != logit;
        value = larger(value, __fdiv_rn(logit, temperature));
    }
    nan = any_of_block(nan);
    first_of_block(value, id);
    if (threadIdx.x == 0) parts[blockIdx.x] = {value, id, nan, 0};
}

// probs (rows, V) = e^(logits / temperature − the largest of the row's `count` parts), with the bits of ops/softmax.rs.
// Grid (ceil(V / 256), rows), block 256.
KERNEL(256) sample_exp(const float* logits, int vocab, float temperature, const Largest* parts, int count, float* probs) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    SHARED(float, largest, 1);
    long long row = static_cast<long long>(blockIdx.y) * vocab;
    logits += row, probs += row, parts += blockIdx.y * count;
    if (threadIdx.x < 32) {
        float max = minus_infinity();
        for (int i = threadIdx.x; i < count; i += 32) max = larger(max, parts[i].value);
        max = max_of_warp(max);
        if (threadIdx.x == 0) largest[0] = max;
    }
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < vocab) probs[i] = exp_of_ops(__fsub_rn(__fdiv_rn(logits[i], temperature), largest[0]));
}

// Each row of probs (rows, V) /= its sum, which has the order of ops/softmax.rs: term i goes to partial sum i mod 16. Only so are tokens
// equally likely here that are so there.
// Grid (1, rows), block 512: all load, sixteen add.
KERNEL(512) sample_sum(float* probs, int vocab) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    constexpr int AT_ONCE = 4096;
    probs += static_cast<long long>(blockIdx.y) * vocab;
    SHARED(float, terms, AT_ONCE);
    SHARED(float, total, 1);
    float sum = 0.0f;
    for (int first = 0; first < vocab; first += AT_ONCE) {
        int count = min(AT_ONCE, vocab - first);
        for (int i = threadIdx.x; i < count; i += blockDim.x) terms[i] = probs[first + i];
        __syncthreads();
        if (threadIdx.x < LANES) {
#pragma unroll 16
            for (int i = threadIdx.x; i < count; i += LANES) sum = __fadd_rn(sum, terms[i]);
        }
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        sum = reduce_lanes(sum);
        if (threadIdx.x == 0) total[0] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) probs[i] = __fdiv_rn(probs[i], total[0]);
}

// The probability of a candidate as a whole number of 2⁻⁶⁰: whole numbers have the same sum in every order.
constexpr double WHOLE = 1152921504606846976.0;  // 2⁶⁰

__device__ inline uint64_t whole(float prob) { return static_cast<uint64_t>(static_cast<double>(prob) * WHOLE); }

constexpr int DIGITS = 10;         // bits of a rank that are found at once
constexpr int BINS = 1 << DIGITS;  // one for each thread
constexpr int LEVELS = 6;          // 30 bits of the probability, which is at most 1, and 30 of the id

// Larger for the likelier token and, of equals, for the lower id; 0 for what is no candidate.
__device__ inline uint64_t rank(int id, float prob) {
    if (!(prob > 0.0f)) return 0;
    return static_cast<uint64_t>(__float_as_uint(prob)) << 30 | static_cast<uint64_t>(0x3fffffff - id);
}

// A rank, and the sum of the weights of the candidates of that rank and above.
struct Reached {
    uint64_t rank, sum;
};

// The sum of x over the block's threads that come before this one, and over this one, in each of them. 1024 threads.
__device__ inline uint64_t sum_up_to(uint64_t x) {
    SHARED(uint64_t, warps, 32);
    int lane = threadIdx.x % 32;
    auto scan = [&](uint64_t x) {
        for (int apart = 1; apart < 32; apart *= 2) {
            uint64_t other = __shfl_sync(FULL, x, lane >= apart ? lane - apart : lane);
            x += lane >= apart ? other : 0;
        }
        return x;
    };
    x = scan(x);
    if (lane == 31) warps[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x < 32) warps[lane] = scan(warps[lane]);
    __syncthreads();
    uint64_t all_before = threadIdx.x < 32 ? 0 : warps[threadIdx.x / 32 - 1];
    __syncthreads();
    return all_before + x;
}

// The candidate at which the sum of `weight`, from the likeliest on, has `reached` what it should, or else the least
// likely one. Candidates are those of rank `cut`, more than 0, and above; rank 0 where there are none. Nothing is sorted:
// the digits of the rank are found one after the other, each time only among the candidates that share those before.
template <class Weight, class Stop>
__device__ inline Reached reach(const float* probs, int vocab, uint64_t cut, Weight weight, Stop reached) {
    SHARED(uint64_t, sums, BINS);
    SHARED(unsigned, counts, BINS);
    SHARED(unsigned, found, 2);   // the bin in which the sum is reached, and the last that has candidates, as threads
    SHARED(uint64_t, before, 1);  // the sum of the bins before it
    SHARED(uint64_t, only, 1);
    uint64_t prefix = 0, sum = 0;
    for (int level = 0; level < LEVELS; level++) {
        int shift = DIGITS * (LEVELS - 1 - level);
        sums[threadIdx.x] = 0, counts[threadIdx.x] = 0;
        if (threadIdx.x == 0) found[0] = BINS, found[1] = 0;
        __syncthreads();
        for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
            uint64_t own = rank(id, probs[id]);
            if (own < cut || own >> (shift + DIGITS) != prefix) continue;
            int bin = static_cast<int>(own >> shift & (BINS - 1));
            atomicAdd(&sums[bin], weight(probs[id]));
            atomicAdd(&counts[bin], 1u);
        }
        __syncthreads();
        // The first thread has the last bin, that of the likeliest.
        int bin = BINS - 1 - static_cast<int>(threadIdx.x);
        uint64_t here = sums[bin], all = sum_up_to(here);
        bool any = counts[bin] > 0;
        if (any && reached(sum + all)) atomicMin(&found[0], threadIdx.x);
        if (any) atomicMax(&found[1], threadIdx.x);
        __syncthreads();
        unsigned chosen = found[0] < BINS ? found[0] : found[1];
        if (threadIdx.x == chosen) before[0] = all - here;
        __syncthreads();
        bin = BINS - 1 - static_cast<int>(chosen);
        unsigned count = counts[bin];
        if (count == 0) return {0, 0};
        sum += before[0];
        prefix = prefix << DIGITS | static_cast<uint64_t>(bin);
        if (count == 1 || level == LEVELS - 1) {
            sum += sums[bin];
            // Its other digits are those of the only one that begins so.
            for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
                uint64_t own = rank(id, probs[id]);
                if (own >= cut && own >> shift == prefix) only[0] = own;
            }
            __syncthreads();
            prefix = only[0];
            __syncthreads();
            break;
        }
        __syncthreads();
    }
    return {prefix, sum};
}

// drawn (rows), and shown (rows) where the processor sees it, = the token that the sampler draws from each row of probs (rows, V) by its one of `randoms` (rows), from 0
// to 1: of the top_k likeliest (0: all), and of those of the shortest run of likeliest ones that has a share of top_p of
// their probability (1: all), the one at which the sum of those at least as likely passes that part of the whole. 0 where
// no probability is more than 0. parts: (rows, count) of sample_max. Sums are of whole numbers of 2⁻⁶⁰; the choice is that
// of the CPU, where sums are float64, but within 1e-6 of an edge.
// Grid (1, rows), block 1024. V < 2³⁰.
KERNEL_WITH(1024, 1) sample_draw(const float* probs, int vocab, int top_k, float top_p, const double* randoms, const Largest* parts,
                         int count, Drawn* drawn_at, Drawn* shown_at) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    probs += static_cast<long long>(blockIdx.y) * vocab;
    SHARED(uint64_t, total, 1);
    uint64_t cut = 1;
    if (top_k > 0) {
        auto one = [](float) { return uint64_t{1}; };
        cut = reach(probs, vocab, cut, one, [&](uint64_t count) { return count >= static_cast<uint64_t>(top_k); }).rank;
        cut = cut == 0 ? 1 : cut;
    }
    if (threadIdx.x == 0) total[0] = 0;
    __syncthreads();
    uint64_t mine = 0;
    for (int id = threadIdx.x; id < vocab; id += blockDim.x) mine += rank(id, probs[id]) >= cut ? whole(probs[id]) : 0;
    atomicAdd(total, mine);
    __syncthreads();
    double sum = static_cast<double>(total[0]);
    if (top_p < 1.0f) {
        double enough = static_cast<double>(top_p) * sum;
        Reached least = reach(probs, vocab, cut, whole, [=](uint64_t sum) { return static_cast<double>(sum) >= enough; });
        cut = least.rank == 0 ? 1 : least.rank;
        sum = static_cast<double>(least.sum);
    }
    double target = sum * randoms[blockIdx.y];
    uint64_t drawn =
        reach(probs, vocab, cut, whole, [=](uint64_t sum) { return static_cast<double>(sum) > target; }).rank;
    if (threadIdx.x != 0) return;
    int nan = 0;
    for (int i = 0; i < count; i++) nan |= parts[blockIdx.y * count + i].not_a_number;
    drawn_at[blockIdx.y] = shown_at[blockIdx.y] = {drawn == 0 ? 0 : 0x3fffffff - static_cast<int>(drawn & 0x3fffffff), nan};
}

#define KERNELS_OF_THIS_FILE(X) X(argmax) X(sample_max) X(sample_exp) X(sample_sum) X(sample_draw)
