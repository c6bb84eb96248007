// Weights in blocks of small integers: ggml's formats, with the rules and layouts of ops/blocks.
//
// A value is scale · (q − offset) + minimum. The functions of this file read 32 neighbouring values of a block at a
// time, a *group*. They return q as signed bytes (`codes`), four per word, the first in the lowest byte. A group has
// one *run* of 32 values, or two runs of 16 values: the values of a run share a scale. The functions also return the
// scale of each run, and the minimum of each run if the format has minima.
//
// Blocks are stored as in the model's file, without gaps. The size of a block determines at which byte of a word the
// next block begins. In all formats with float16 values, these values are at even addresses.
#pragma once
#include "common.cuh"

// Returns N words from any address, by loads of aligned words. Each word is combined from the two aligned words that it
// overlaps. The last aligned word is not read if no byte of it is needed.
template <int N>
__device__ inline void words_at(const uint8_t* at, uint32_t (&out)[N]) {
    uint32_t beyond = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) & 3);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(at - beyond);
    uint32_t word = words[0];
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t next = i + 1 < N || beyond != 0 ? words[i + 1] : 0;
        out[i] = __funnelshift_r(word, next, 8 * beyond);
        word = next;
    }
}

// Returns N words from an address that is a multiple of 4.
template <int N>
__device__ inline void aligned_words_at(const uint8_t* at, uint32_t (&out)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = reinterpret_cast<const uint32_t*>(at)[i];
}

__device__ inline float half_at(const uint8_t* at) { return half_to_float(*reinterpret_cast<const uint16_t*>(at)); }

constexpr uint32_t EACH = 0x01010101;  // times a byte: a word with this byte in all four places

// Subtracts `offset` from each byte of `word`. Every byte of `word` is below 128. Returns signed bytes.
__device__ inline uint32_t less(uint32_t word, uint32_t offset) {
    return ((word | 0x80 * EACH) - offset * EACH) ^ 0x80 * EACH;
}

// Moves the four low bits to bit 0 of the four bytes, the lowest bit to the lowest byte.
__device__ inline uint32_t spread(uint32_t bits) { return (bits & 15) * 0x00204081 & EACH; }

// Looks up four bytes of `table`. The four indices, 0 to 15, are in the low halves of the bytes of `numbers`.
__device__ inline uint32_t look_up(const uint32_t (&table)[4], uint32_t numbers) {
    uint32_t packed = numbers & 0x0f0f0f0f;
    packed = (packed | packed >> 4) & 0x00ff00ff;
    packed = (packed | packed >> 8) & 0xffff;
    uint32_t low = __byte_perm(table[0], table[1], packed & 0x7777);
    uint32_t high = __byte_perm(table[2], table[3], packed & 0x7777);
    return __byte_perm(low, high, 0x3210 | (packed & 0x8888) >> 1);
}

// Returns one word from any address.
__device__ inline uint32_t word_at(const uint8_t* at) {
    uint32_t word[1];
    words_at(at, word);
    return word[0];
}
__device__ inline uint32_t aligned_word_at(const uint8_t* at) { return *reinterpret_cast<const uint32_t*>(at); }

// Bytes from any address. Words are read at offsets that are multiples of 4, so their position within an aligned word
// is computed only once. The aligned word after the last byte may be read too.
struct Apart {
    const uint8_t* before;
    uint32_t bits;

    __device__ inline explicit Apart(const uint8_t* at) {
        const uint32_t beyond = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) & 3);
        before = at - beyond, bits = 8 * beyond;
    }
    __device__ inline uint32_t word(int at) const {
        return __funnelshift_r(aligned_word_at(before + at), aligned_word_at(before + at + 4), bits);
    }
};

// Two of the eight words of a group: `which` and `which` + 4. A lane needs these two for tensor cores.
struct Pair {
    uint32_t low, high;
};

// Unpacks one word of 4-bit numbers to two words.
__device__ inline Pair pair_of_nibbles(uint32_t word) { return {word & 0x0f0f0f0f, word >> 4 & 0x0f0f0f0f}; }

// Unpacks 32 numbers of 4 bits: byte i has number i in its low half and number i + 16 in its high half.
__device__ inline void nibbles(const uint32_t (&words)[4], uint32_t (&q)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) q[i] = words[i] & 0x0f0f0f0f, q[i + 4] = words[i] >> 4 & 0x0f0f0f0f;
}

// Unpack the 32 numbers in 16 bytes: at any address, or at an address that is a multiple of 4.
__device__ inline void nibbles_at(const uint8_t* bytes, uint32_t (&q)[8]) {
    uint32_t words[4];
    words_at(bytes, words);
    nibbles(words, q);
}
__device__ inline void aligned_nibbles_at(const uint8_t* bytes, uint32_t (&q)[8]) {
    uint32_t words[4];
    aligned_words_at(bytes, words);
    nibbles(words, q);
}

struct Q8_0 {
    static constexpr int VALUES = 32, BYTES = 34, RUN = 32, OFFSET = 0;
    static constexpr bool MINIMA = false;
    static __device__ inline Pair pair(const uint8_t* block, int, int which) {
        return {word_at(block + 2 + 4 * which), word_at(block + 18 + 4 * which)};
    }
    static __device__ inline void codes(const uint8_t* block, int, uint32_t (&q)[8]) {
        words_at(block + 2, q);
    }
    static __device__ inline void scales(const uint8_t* block, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at(block);
    }
};

struct Q4_0 {
    static constexpr int VALUES = 32, BYTES = 18, RUN = 32, OFFSET = 8;
    static constexpr bool MINIMA = false;
    static __device__ inline Pair pair(const uint8_t* block, int, int which) {
        return pair_of_nibbles(word_at(block + 2 + 4 * which));
    }
    static __device__ inline void codes(const uint8_t* block, int, uint32_t (&q)[8]) {
        nibbles_at(block + 2, q);
    }
    static __device__ inline void scales(const uint8_t* block, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at(block);
    }
};

struct Q4_1 {
    static constexpr int VALUES = 32, BYTES = 20, RUN = 32, OFFSET = 0;
    static constexpr bool MINIMA = true;
    static __device__ inline Pair pair(const uint8_t* block, int, int which) {
        return pair_of_nibbles(aligned_word_at(block + 4 + 4 * which));
    }
    static __device__ inline void codes(const uint8_t* block, int, uint32_t (&q)[8]) {
        aligned_nibbles_at(block + 4, q);
    }
    static __device__ inline void scales(const uint8_t* block, int, float (&scale)[2], float (&minimum)[2]) {
        scale[0] = half_at(block), minimum[0] = half_at(block + 2);
    }
};

struct Q5_0 {
    static constexpr int VALUES = 32, BYTES = 22, RUN = 32, OFFSET = 16;
    static constexpr bool MINIMA = false;
    static __device__ inline Pair pair(const uint8_t* block, int, int which) {
        const Pair q = pair_of_nibbles(word_at(block + 6 + 4 * which));
        const uint32_t fifths = word_at(block + 2) >> (4 * which);
        return {q.low | spread(fifths) << 4, q.high | spread(fifths >> 16) << 4};
    }
    static __device__ inline void codes(const uint8_t* block, int, uint32_t (&q)[8]) {
        nibbles_at(block + 6, q);
        uint32_t fifths[1];
        words_at(block + 2, fifths);
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] |= spread(fifths[0] >> (4 * i)) << 4;
    }
    static __device__ inline void scales(const uint8_t* block, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at(block);
    }
};

struct Q5_1 {
    static constexpr int VALUES = 32, BYTES = 24, RUN = 32, OFFSET = 0;
    static constexpr bool MINIMA = true;
    static __device__ inline Pair pair(const uint8_t* block, int, int which) {
        const Pair q = pair_of_nibbles(aligned_word_at(block + 8 + 4 * which));
        const uint32_t fifths = aligned_word_at(block + 4) >> (4 * which);
        return {q.low | spread(fifths) << 4, q.high | spread(fifths >> 16) << 4};
    }
    static __device__ inline void codes(const uint8_t* block, int, uint32_t (&q)[8]) {
        aligned_nibbles_at(block + 8, q);
        uint32_t fifths[1];
        aligned_words_at(block + 4, fifths);
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] |= spread(fifths[0] >> (4 * i)) << 4;
    }
    static __device__ inline void scales(const uint8_t* block, int, float (&scale)[2], float (&minimum)[2]) {
        scale[0] = half_at(block), minimum[0] = half_at(block + 2);
    }
};

// Looks up the values of IQ4_NL and IQ4_XS (kvalues_iq4nl): -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89
// 113.
__device__ inline uint32_t non_linear(uint32_t numbers) {
    const uint32_t table[4] = {0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535};
    return look_up(table, numbers);
}
__device__ inline void look_up_non_linear(uint32_t (&q)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) q[i] = non_linear(q[i]);
}

struct Iq4Nl {
    static constexpr int VALUES = 32, BYTES = 18, RUN = 32, OFFSET = 0;
    static constexpr bool MINIMA = false;
    static __device__ inline Pair pair(const uint8_t* block, int, int which) {
        const Pair q = pair_of_nibbles(word_at(block + 2 + 4 * which));
        return {non_linear(q.low), non_linear(q.high)};
    }
    static __device__ inline void codes(const uint8_t* block, int, uint32_t (&q)[8]) {
        nibbles_at(block + 2, q);
        look_up_non_linear(q);
    }
    static __device__ inline void scales(const uint8_t* block, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at(block);
    }
};

struct Mxfp4 {
    static constexpr int VALUES = 32, BYTES = 17, RUN = 32, OFFSET = 0;
    static constexpr bool MINIMA = false;
    // Looks up the doubled values of 4-bit floats: 0 1 2 3, 4 6 8 12, and the negatives of these.
    static __device__ inline uint32_t twice(uint32_t numbers) {
        const uint32_t table[4] = {0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc};
        return look_up(table, numbers);
    }
    static __device__ inline Pair pair(const uint8_t* block, int, int which) {
        const Pair q = pair_of_nibbles(word_at(block + 1 + 4 * which));
        return {twice(q.low), twice(q.high)};
    }
    static __device__ inline void codes(const uint8_t* block, int, uint32_t (&q)[8]) {
        nibbles_at(block + 1, q);
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = twice(q[i]);
    }
    static __device__ inline void scales(const uint8_t* block, int, float (&scale)[2], float (&)[2]) {
        uint32_t e = block[0];
        // The scale is 2^(e − 128). For e = 0 and e = 1, it is below the smallest normal number.
        scale[0] = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
};

// Returns the scale and the minimum of run `run` of Q4_K and Q5_K, from the first 16 bytes of a block. These are two
// float16 values, and twelve bytes with 6-bit scales and minima (ops/blocks/large.rs, six_bits). Blocks begin at
// multiples of 16 bytes, so the 16 bytes are loaded together.
__device__ inline void six_bits(const uint8_t* block, int run, float& scale, float& minimum) {
    const uint4 head = *reinterpret_cast<const uint4*>(block);
    const int by = run % 4 * 8;
    const uint32_t first = head.y >> by, second = head.z >> by, third = head.w >> by;
    const uint32_t s = run < 4 ? first & 63 : (third & 15) | (first >> 2 & 48);
    const uint32_t m = run < 4 ? second & 63 : (third >> 4 & 15) | (second >> 2 & 48);
    scale = __fmul_rn(half_to_float(static_cast<uint16_t>(head.x)), static_cast<float>(s));
    minimum = -__fmul_rn(half_to_float(static_cast<uint16_t>(head.x >> 16)), static_cast<float>(m));
}

// Returns the scales and the minima of runs `run` and `run` + 1, where `run` is even.
__device__ inline void six_bits_of_two(const uint8_t* block, int run, float (&scales)[2][2], float (&minima)[2][2]) {
    const uint4 head = *reinterpret_cast<const uint4*>(block);
    const int by = run % 4 * 8;
    const uint32_t first = head.y >> by, second = head.z >> by, third = head.w >> by;
    const bool low = run < 4;
    const uint32_t s = low ? first & 0x3f3f : (third & 0x0f0f) | (first >> 2 & 0x3030);
    const uint32_t m = low ? second & 0x3f3f : (third >> 4 & 0x0f0f) | (second >> 2 & 0x3030);
    const float scale = half_to_float(static_cast<uint16_t>(head.x)), minimum = half_to_float(static_cast<uint16_t>(head.x >> 16));
#pragma unroll
    for (int k = 0; k < 2; k++) {
        scales[k][0] = __fmul_rn(scale, static_cast<float>(s >> 8 * k & 255));
        minima[k][0] = -__fmul_rn(minimum, static_cast<float>(m >> 8 * k & 255));
    }
}

struct Q4K {
    static constexpr int VALUES = 256, BYTES = 144, RUN = 32, OFFSET = 0;
    static constexpr bool MINIMA = true;
    static __device__ inline Pair pair(const uint8_t* block, int group, int which) {
        const uint8_t* at = block + 16 + group / 2 * 32 + 4 * which;
        const int shift = group % 2 * 4;
        return {aligned_word_at(at) >> shift & 0x0f0f0f0f, aligned_word_at(at + 16) >> shift & 0x0f0f0f0f};
    }
    static __device__ inline void codes(const uint8_t* block, int group, uint32_t (&q)[8]) {
        const uint4* at = reinterpret_cast<const uint4*>(block + 16 + group / 2 * 32);
        uint4 a = at[0], b = at[1];
        const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        int shift = group % 2 * 4;
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = words[i] >> shift & 0x0f0f0f0f;
    }
    static __device__ inline void scales(const uint8_t* block, int group, float (&scale)[2], float (&minimum)[2]) {
        six_bits(block, group, scale[0], minimum[0]);
    }
};

struct Q5K {
    static constexpr int VALUES = 256, BYTES = 176, RUN = 32, OFFSET = 0;
    static constexpr bool MINIMA = true;
    static __device__ inline Pair pair(const uint8_t* block, int group, int which) {
        const uint8_t* fifths = block + 16 + 4 * which;
        const uint8_t* at = block + 48 + group / 2 * 32 + 4 * which;
        const int shift = group % 2 * 4;
        return {(aligned_word_at(at) >> shift & 0x0f0f0f0f) | (aligned_word_at(fifths) >> group & EACH) << 4,
                (aligned_word_at(at + 16) >> shift & 0x0f0f0f0f) | (aligned_word_at(fifths + 16) >> group & EACH) << 4};
    }
    static __device__ inline void codes(const uint8_t* block, int group, uint32_t (&q)[8]) {
        const uint4* fifths = reinterpret_cast<const uint4*>(block + 16);
        const uint4* at = reinterpret_cast<const uint4*>(block + 48 + group / 2 * 32);
        uint4 a = at[0], b = at[1], c = fifths[0], d = fifths[1];
        const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        const uint32_t uppers[8] = {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
        int shift = group % 2 * 4;
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = (words[i] >> shift & 0x0f0f0f0f) | (uppers[i] >> group & EACH) << 4;
    }
    static __device__ inline void scales(const uint8_t* block, int group, float (&scale)[2], float (&minimum)[2]) {
        six_bits(block, group, scale[0], minimum[0]);
    }
};

struct Q6K {
    static constexpr int VALUES = 256, BYTES = 210, RUN = 16, OFFSET = 32;
    static constexpr bool MINIMA = false;
    static __device__ inline Pair pair(const uint8_t* block, int group, int which) {
        const int half = group / 4, part = group % 4;
        const int lows = 64 * half + part % 2 * 32, uppers = 128 + 32 * half;
        const Apart bytes(block + 4 * which);
        auto word = [&](int beyond) {
            const uint32_t low = bytes.word(lows + beyond) >> (part / 2 * 4) & 0x0f0f0f0f;
            const uint32_t upper = part < 2 ? bytes.word(uppers + beyond) << (4 - 2 * part) : bytes.word(uppers + beyond) >> (2 * part - 4);
            return low | (upper & 0x30303030);
        };
        return {word(0), word(16)};
    }
    static __device__ inline void codes(const uint8_t* block, int group, uint32_t (&q)[8]) {
        int half = group / 4, part = group % 4;
        uint32_t lows[8], uppers[8];
        words_at(block + 64 * half + part % 2 * 32, lows);
        words_at(block + 128 + 32 * half, uppers);
        int shift = part / 2 * 4;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t low = lows[i] >> shift & 0x0f0f0f0f, upper = uppers[i] >> (2 * part) & 0x03030303;
            q[i] = low | upper << 4;
        }
    }
    static __device__ inline void scales(const uint8_t* block, int group, float (&scale)[2], float (&)[2]) {
        float d = half_at(block + 208);
#pragma unroll
        for (int run = 0; run < 2; run++) {
            int s = static_cast<int8_t>(block[192 + 2 * group + run]);
            scale[run] = __fmul_rn(d, static_cast<float>(s));
        }
    }
};

struct Q2K {
    static constexpr int VALUES = 256, BYTES = 84, RUN = 16, OFFSET = 0;
    static constexpr bool MINIMA = true;
    static __device__ inline Pair pair(const uint8_t* block, int group, int which) {
        const uint8_t* at = block + 16 + group / 4 * 32 + 4 * which;
        const int shift = group % 4 * 2;
        return {aligned_word_at(at) >> shift & 0x03030303, aligned_word_at(at + 16) >> shift & 0x03030303};
    }
    static __device__ inline void codes(const uint8_t* block, int group, uint32_t (&q)[8]) {
        aligned_words_at(block + 16 + group / 4 * 32, q);
        int shift = group % 4 * 2;
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = q[i] >> shift & 0x03030303;
    }
    static __device__ inline void scales(const uint8_t* block, int group, float (&scale)[2], float (&minimum)[2]) {
        float d = half_at(block + 80), e = half_at(block + 82);
#pragma unroll
        for (int run = 0; run < 2; run++) {
            uint32_t both = block[2 * group + run];
            scale[run] = __fmul_rn(d, static_cast<float>(both & 15));
            minimum[run] = -__fmul_rn(e, static_cast<float>(both >> 4));
        }
    }
};

struct Q3K {
    static constexpr int VALUES = 256, BYTES = 110, RUN = 16, OFFSET = 4;
    static constexpr bool MINIMA = false;
    static __device__ inline Pair pair(const uint8_t* block, int group, int which) {
        const Apart bytes(block + 4 * which);
        auto word = [&](int beyond) {
            const uint32_t low = bytes.word(32 + group / 4 * 32 + beyond) >> (group % 4 * 2) & 0x03030303;
            const uint32_t third = bytes.word(beyond) >> group & EACH;
            return low | third << 2;
        };
        return {word(0), word(16)};
    }
    static __device__ inline void codes(const uint8_t* block, int group, uint32_t (&q)[8]) {
        uint32_t lows[8], thirds[8];
        words_at(block + 32 + group / 4 * 32, lows);
        words_at(block, thirds);
        int shift = group % 4 * 2;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t low = lows[i] >> shift & 0x03030303, third = thirds[i] >> group & EACH;
            q[i] = low | third << 2;
        }
    }
    static __device__ inline void scales(const uint8_t* block, int group, float (&scale)[2], float (&)[2]) {
        const uint8_t* packed = block + 96;
        float d = half_at(block + 108);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int run = 2 * group + i;
            int low = packed[run % 8] >> (run / 8 * 4) & 15, upper = packed[8 + run % 4] >> (run / 4 * 2) & 3;
            scale[i] = __fmul_rn(d, static_cast<float>((low | upper << 4) - 32));
        }
    }
};

struct Iq4Xs {
    static constexpr int VALUES = 256, BYTES = 136, RUN = 32, OFFSET = 0;
    static constexpr bool MINIMA = false;
    static __device__ inline Pair pair(const uint8_t* block, int group, int which) {
        const Pair q = pair_of_nibbles(aligned_word_at(block + 8 + 16 * group + 4 * which));
        return {non_linear(q.low), non_linear(q.high)};
    }
    static __device__ inline void codes(const uint8_t* block, int group, uint32_t (&q)[8]) {
        aligned_nibbles_at(block + 8 + 16 * group, q);
        look_up_non_linear(q);
    }
    static __device__ inline void scales(const uint8_t* block, int group, float (&scale)[2], float (&)[2]) {
        int uppers = *reinterpret_cast<const uint16_t*>(block + 2);
        int low = block[4 + group / 2] >> (group % 2 * 4) & 15, upper = uppers >> (2 * group) & 3;
        scale[0] = __fmul_rn(half_at(block), static_cast<float>((low | upper << 4) - 32));
    }
};

// A group of 32 values, in the form in which it is multiplied.
template <class W>
struct Group {
    uint32_t q[8];
    float scale[2], minimum[2];
};

// Reads group number `group` of a row of blocks.
template <class W>
__device__ inline Group<W> group_of(const uint8_t* row, int group) {
    constexpr int GROUPS = W::VALUES / 32;
    const uint8_t* block = row + static_cast<long long>(group / GROUPS) * W::BYTES;
    Group<W> out;
    W::codes(block, group % GROUPS, out.q);
    if (W::OFFSET) {
#pragma unroll
        for (int i = 0; i < 8; i++) out.q[i] = less(out.q[i], W::OFFSET);
    }
    W::scales(block, group % GROUPS, out.scale, out.minimum);
    return out;
}

// Returns value i of a group: scale · q, plus the minimum (ops/blocks.rs, dequantize).
template <class W>
__device__ inline float value_of(const Group<W>& group, int i) {
    float q = static_cast<float>(static_cast<int8_t>(group.q[i / 4] >> (i % 4 * 8)));
    float value = __fmul_rn(group.scale[i / W::RUN], q);
    return W::MINIMA ? __fadd_rn(value, group.minimum[i / W::RUN]) : value;
}
