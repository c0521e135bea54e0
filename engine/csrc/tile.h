// The one micro-kernel: rows of activations times pair rows, added up in registers.
//
// Every sum runs over its inputs in ascending order in one accumulator, whatever the number of rows or panels taken at
// once. This is what makes a request's numbers bitwise independent of the batch and of the chunks it is computed in.
#pragma once

#include <type_traits>

#include "layout.h"

namespace lab {

// Panels taken at once by a tile of `rows` rows: enough independent sums to hide the latency of a multiply-add.
template <int Lanes>
constexpr int panels_at_once(int rows) {
    const int fit = kAccumulators / (rows * (Lanes / kWidth > 0 ? Lanes / kWidth : 1));
    return fit < 1 ? 1 : (fit > 6 ? 6 : fit);
}

template <int Lanes, int Rows, int Panels>
struct Accumulators {
    static constexpr int kVecs = Lanes / kWidth;
    Vec sum[Panels][Rows][kVecs];

    void clear() {
#pragma GCC unroll 32
        for (int p = 0; p < Panels; ++p)
#pragma GCC unroll 32
            for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 32
                for (int v = 0; v < kVecs; ++v) sum[p][r][v] = Vec{};
    }
};

// Asks for memory that a later tile will need, a little with every pair row, so that the next loads do not wait.
// Goes to the second-level cache: the first holds the panels and the rows at work.
template <int Panels, int Lines>
struct Ahead {
    const char* at[Panels];
    size_t step;  // bytes a pair row

    // Inlined by force: gcc takes a function that only prefetches for one without effect, and drops the call.
    __attribute__((always_inline)) void ask(int panel, size_t row) const {
#pragma GCC unroll 8
        for (int line = 0; line < Lines; ++line) __builtin_prefetch(at[panel] + row * step + 64 * line, 0, 2);
    }
};
struct NothingAhead {
    void ask(int, size_t) const {}
};

// `k`, but known to the compiler only once `sum` is. Without it the compiler loads the inputs and weights of a second half
// early, runs out of registers and spills sums in the innermost loop. It is no instruction: the processor is as free
// as before to start loads early.
template <class V>
inline __attribute__((always_inline)) size_t after(V sum, size_t k) {
#if defined(__AVX512F__)
    asm("" : "+r"(k) : "v"(sum));
#elif defined(__AVX__)
    asm("" : "+r"(k) : "x"(sum));
#else
    (void)sum;
#endif
    return k;
}

// Adds one half of pair row k of `w` times that input of every row.
template <int Half, class T, class X, int Lanes, int Rows, int Panels>
inline __attribute__((always_inline)) void accumulate_half(Accumulators<Lanes, Rows, Panels>& acc, int panel,
                                                           const T* w, const X* const (&x)[Rows], size_t k) {
    constexpr int kVecs = Lanes / kWidth;
    Vec half[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) half[v] = load_half<Lanes, Half>(w + k * Lanes, v * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) acc.sum[panel][r][v] += half[v] * widen(x[r][k + Half]);
}

// sum[p][r][lane] += Σ_k x[r][k] · w[p][k][lane], k = 0 .. inputs-1. An odd last input reads only its own half.
template <class T, class X, int Lanes, int Rows, int Panels, class Next>
inline __attribute__((always_inline)) void accumulate(Accumulators<Lanes, Rows, Panels>& acc, const T* const (&w)[Panels],
                                                      const X* const (&x)[Rows], int inputs, const Next& next) {
    const size_t even = inputs & ~1;
    for (size_t k = 0; k < even; k += 2) {
#pragma GCC unroll 8
        for (int p = 0; p < Panels; ++p) {
            next.ask(p, k / 2);
            accumulate_half<0>(acc, p, w[p], x, k);
            accumulate_half<1>(acc, p, w[p], x, after(acc.sum[p][Rows - 1][Lanes / kWidth - 1], k));
        }
    }
    if (inputs & 1)
        for (int p = 0; p < Panels; ++p) accumulate_half<0>(acc, p, w[p], x, even);
}

#if defined(__AVX512BF16__)
// The same with bf16 activations: vdpbf16ps multiplies a pair row of 16 lanes by a pair of inputs, in fp32 sums.
template <int Lanes, int Rows, int Panels, class Next>
inline __attribute__((always_inline)) void accumulate(Accumulators<Lanes, Rows, Panels>& acc,
                                                      const bf16* const (&w)[Panels], const bf16* const (&x)[Rows],
                                                      int inputs, const Next& next) {
    const auto multiply_add = [&](int p, size_t k, size_t mask) {
        for (int r = 0; r < Rows; ++r) {
            uint32_t pair = 0;
            std::memcpy(&pair, x[r] + k, mask);
            const __m512bh inputs_pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair)));
            for (int v = 0; v < Lanes / kWidth; ++v) {
                const __m512i weights = _mm512_loadu_si512(w[p] + k * Lanes + 2 * v * kWidth);
                Vec& sum = acc.sum[p][r][v];
                sum = reinterpret_cast<Vec>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                             reinterpret_cast<__m512bh>(weights), inputs_pair));
            }
        }
    };
    const size_t even = inputs & ~1;
    for (size_t k = 0; k < even; k += 2)
#pragma GCC unroll 8
        for (int p = 0; p < Panels; ++p) {
            next.ask(p, k / 2);
            multiply_add(p, k, 4);
        }
    if (inputs & 1)
        for (int p = 0; p < Panels; ++p) multiply_add(p, even, 2);  // the pair's other half is 0
}
#endif

// Calls f(std::integral_constant<int, n>) for n in 1..kMaxRows: the row count becomes a compile-time constant.
template <class F>
inline void with_rows(int n, F&& f) {
    switch (n) {
        case 1: f(std::integral_constant<int, 1>{}); break;
        case 2: f(std::integral_constant<int, 2>{}); break;
        case 3: f(std::integral_constant<int, 3>{}); break;
        case 4: f(std::integral_constant<int, 4>{}); break;
        case 5: f(std::integral_constant<int, 5>{}); break;
        default: f(std::integral_constant<int, 6>{}); break;
    }
}

// Part `i` of `parts` nearly equal parts of `total` items: [begin, end).
struct Range {
    int begin, end;
};
inline Range part(int total, int parts, int i) {
    return {static_cast<int>(static_cast<int64_t>(total) * i / parts),
            static_cast<int>(static_cast<int64_t>(total) * (i + 1) / parts)};
}

}  // namespace lab
