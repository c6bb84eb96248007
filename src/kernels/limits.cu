// Kernels that measure a device, and a kernel that generates random data on it.
#include "common.cuh"

// Reads `count` times 16 bytes. A thread writes to out (1) if the XOR of all words that it read is one certain number
// of the 2³² possible ones. Without this write, the compiler would remove the reads. Grid: as many blocks as fill the
// device, block 512.
KERNEL(512) read_words(const uint4* bytes, long long count, unsigned* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    unsigned all = 0;
    // Starts eight loads before it uses the result of the first.
    for (; i + 7 * step < count; i += 8 * step) {
        uint4 words[8];
#pragma unroll
        for (int k = 0; k < 8; k++) words[k] = bytes[i + k * step];
#pragma unroll
        for (int k = 0; k < 8; k++) all ^= words[k].x ^ words[k].y ^ words[k].z ^ words[k].w;
    }
    for (; i < count; i += step) all ^= bytes[i].x ^ bytes[i].y ^ bytes[i].z ^ bytes[i].w;
    if (all == 0x5eed5eed) *out = all;
}

// out[i] = noise: random weights, as in files/noise.rs. In every block of `block` bytes, the eight bytes from byte `at`
// on are changed: bits that are not in `keep` are cleared, and bits that are in `set` are set. The noise is splitmix64
// of seed + i (Steele, Lea and Flood, 2014). 8 ≤ block, at < block. Grid (ceil(count / 256)), block 256.
KERNEL(256) random_words(uint64_t* out, long long count, uint64_t seed, uint64_t keep, uint64_t set, int block, int at) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    uint64_t x = (seed + static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    x = x ^ x >> 31;
    // Two changed ranges of eight bytes can overlap this word: the last range that begins at or before the word's first
    // byte, and the range of the next block. A range before the first block does not exist.
    long long first = 8 * i;
    long long place = (first + block - at) / block * block - block + at;
#pragma unroll
    for (int k = 0; k < 2; k++, place += block) {
        if (place < 0) continue;
        long long shift = (place - first) * 8;
        if (shift <= -64 || shift >= 64) continue;
        uint64_t kept = shift < 0 ? ~(~keep >> -shift) : ~(~keep << shift);
        x = x & kept | (shift < 0 ? set >> -shift : set << shift);
    }
    out[i] = x;
}

#define KERNELS_OF_THIS_FILE(X) X(read_words) X(random_words)
