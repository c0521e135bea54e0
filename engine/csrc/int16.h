// Activations in int16 times int8 weights in vectors, where the processor has no VNNI: pairs are multiplied and added in
// whole numbers, so their order is of no matter. The first tile of rows keeps the panel
// that it widens, which fits the first-level cache, for the others.
#pragma once

#include "gemm.h"

#if !defined(LAB_VNNI)

namespace lab {

// w[0] * x[0] + w[1] * x[1] of the two int16 in every lane.
inline IntVec multiply_pairs(IntVec w, IntVec x) {
#if defined(__AVX512BW__)
    return reinterpret_cast<IntVec>(_mm512_madd_epi16(reinterpret_cast<__m512i>(w), reinterpret_cast<__m512i>(x)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return reinterpret_cast<IntVec>(_mm256_madd_epi16(reinterpret_cast<__m256i>(w), reinterpret_cast<__m256i>(x)));
#elif defined(__SSE2__) && !defined(__AVX__)
    return reinterpret_cast<IntVec>(_mm_madd_epi16(reinterpret_cast<__m128i>(w), reinterpret_cast<__m128i>(x)));
#else
    const auto low = [](IntVec v) { return reinterpret_cast<IntVec>(reinterpret_cast<UintVec>(v) << 16) >> 16; };
    return low(w) * low(x) + (w >> 16) * (x >> 16);
#endif
}

typedef int16_t HalfVec __attribute__((vector_size(kWidth * 4)));
typedef uint16_t UhalfVec __attribute__((vector_size(kWidth * 4)));

// Where a tile finds pair `pair` (0: inputs k and k + 1, 1: k + 2 and k + 3) of kWidth lanes: in bytes as they are packed,
// or widened already.
struct PackedWeights {
    const int8* at;
    template <int Pair>
    IntVec load_pair(size_t quad) const {
        HalfVec bytes;
        std::memcpy(&bytes, at + 4 * quad, sizeof bytes);
        if (Pair == 0) bytes = reinterpret_cast<HalfVec>(reinterpret_cast<UhalfVec>(bytes) << 8);
        return reinterpret_cast<IntVec>(bytes >> 8);
    }
};
struct PackedWeightsKept : PackedWeights {
    int32_t* kept;
    template <int Pair>
    IntVec load_pair(size_t quad) const {
        const IntVec pair = PackedWeights::load_pair<Pair>(quad);
        store(kept + index<Pair>(quad), pair);
        return pair;
    }
    // The pairs of a vector's lanes follow each other.
    template <int Pair>
    static size_t index(size_t quad) {
        return 2 * quad + Pair * kWidth;
    }
};
struct WidenedWeights {
    const int32_t* at;
    template <int Pair>
    IntVec load_pair(size_t quad) const {
        return load(at + PackedWeightsKept::index<Pair>(quad));
    }
};

constexpr int kQuadBytes = 4 * Panel<int8>::kLanes;
using AheadOfQuads = Ahead<1, (kQuadBytes + 63) / 64>;

template <int Rows, class Weights, class Sink>
__attribute__((noinline)) void multiply_int16_tile(const Matrix<int8>& m, const Weights& weights, int panel,
                                                   const Inputs<int8>& in, int row, const AheadOfQuads& next,
                                                   const Sink& sink) {
    constexpr int kLanes = Panel<int8>::kLanes, kVecs = kLanes / kWidth;
    const int16* x[Rows];
    for (int r = 0; r < Rows; ++r) x[r] = in.x + static_cast<size_t>(row + r) * m.inputs;
    IntVec acc[Rows][kVecs];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) acc[r][v] = IntVec{};
    const auto add_pairs = [&](auto pair, size_t k) {
        IntVec w[kVecs];
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) w[v] = weights.template load_pair<pair>(k / 4 * kLanes + v * kWidth);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            int32_t both;
            std::memcpy(&both, x[r] + k + 2 * pair, sizeof both);
#pragma GCC unroll 8
            for (int v = 0; v < kVecs; ++v) {
                acc[r][v] += multiply_pairs(w[v], IntVec{} + both);
                k = after(acc[r][v], k);
            }
        }
        return k;
    };
    for (size_t k = 0; k < static_cast<size_t>(m.inputs); k += 4) {
        next.ask(0, k / 4);
        add_pairs(std::integral_constant<int, 1>{}, add_pairs(std::integral_constant<int, 0>{}, k));
    }
    alignas(64) int32_t sums[Rows * kLanes];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) store(sums + r * kLanes + v * kWidth, acc[r][v]);
    deliver(m, in.scales, row, Rows, panel, 1, sums, kLanes, sink);
}

// `kept`: room for a panel as pairs of int16: inputs / 2 * lanes.
template <class Sink>
void multiply_with_vectors(const Matrix<int8>& m, Range panels, const Inputs<int8>& in, int rows, int32_t* kept,
                           const Sink& sink) {
    constexpr int kRows = kRegisters == 32 ? 6 : 4;
    for (int block = 0; block < rows; block += kRowBlock) {
        const int block_rows = rows - block < kRowBlock ? rows - block : kRowBlock, tiles = (block_rows + kRows - 1) / kRows;
        for (int i = panels.begin; i < panels.end; ++i) {
            const PackedWeights packed{m.panel(i)};
            AheadOfQuads next{{reinterpret_cast<const char*>(m.panel(i + 1))}, static_cast<size_t>(kQuadBytes / tiles)};
            for (int t = 0; t < tiles; ++t) {
                const Range range = part(block_rows, tiles, t);
                const int row = block + range.begin;
                with_rows(range.end - range.begin, [&](auto n) {
                    if (t > 0)
                        multiply_int16_tile<n>(m, WidenedWeights{kept}, i, in, row, next, sink);
                    else if (tiles > 1)
                        multiply_int16_tile<n>(m, PackedWeightsKept{packed, kept}, i, in, row, next, sink);
                    else
                        multiply_int16_tile<n>(m, packed, i, in, row, next, sink);
                });
                next.at[0] += m.panel_size() / tiles;
            }
        }
    }
}

}  // namespace lab
#endif
