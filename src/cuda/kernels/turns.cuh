// What a product of one row makes of its results where they are queries, keys and values: RoPE (rope.cu), and the cache.
#pragma once
#include "common.cuh"

// What becomes of one of the products by RoPE: `out` is its result turned, and `cache` from the span's start on that, or the
// result where out is null, in the cache's number type; each where it is not null.
struct Turned {
    float* out;
    void* cache;
};

// Of all products of one row: by these tables (C/2), in pairs as rope.cu has them, in heads of C values.
struct Turns {
    Turned of[MOST_PRODUCTS];
    const float* cos;
    const float* sin;
    const Span* span;
    int neighbours, head_dim;

    // By numbers that the compiler knows: it would copy all of them otherwise.
    __device__ inline Turned at(int product) const { return product == 0 ? of[0] : product == 1 ? of[1] : of[2]; }

    // Where pair `number` of a product begins, and its second value; and its number in its head.
    struct Place {
        int first, second, pair;
    };
    __device__ inline Place place(int number) const {
        const int pairs = head_dim / 2, head = number / pairs, pair = number % pairs;
        const int first = head * head_dim + (neighbours ? 2 * pair : pair);
        return {first, neighbours ? first + 1 : first + pairs, pair};
    }
};

// Where what is added to the only product goes, and what: `sum` (rows, O) = `to` + the product, where it is not null.
struct Added {
    const float* to;
    float* sum;
};
