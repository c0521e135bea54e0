// Activations in two int8 digits times int8 weights with VNNI: products are added up in whole numbers, so their order is
// of no matter.
#pragma once

#include "matrix.h"

#if defined(LAB_VNNI)

namespace lab {

// sum[lane] += Σ_j x[j] · w[lane][j] over the four inputs of a lane. VNNI wants one side unsigned: it gets x + 128, and
// 128 times the lane's total is taken off at the end.
constexpr int32_t kShift = 128;
inline IntVec broadcast_quad(const int8* x) {
    uint32_t quad;
    std::memcpy(&quad, x, sizeof quad);
    return reinterpret_cast<IntVec>(_mm512_set1_epi32(static_cast<int>(quad ^ 0x80808080u)));
}
inline IntVec add_quads(IntVec sum, IntVec weights, IntVec x) {
    return reinterpret_cast<IntVec>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(x),
                                                        reinterpret_cast<__m512i>(weights)));
}

template <int Rows, class Sink>
__attribute__((noinline)) void multiply_int8_tile(const Matrix<int8>& m, int panel, const Inputs<int8>& in, int row,
                                                  const Sink& sink) {
    constexpr int kLanes = Panel<int8>::kLanes, kVecs = kLanes / kWidth;
    const int8 *w = m.panel(panel), *x = in.x + static_cast<size_t>(row) * m.inputs;
    IntVec acc[Rows][kVecs] = {};
    for (int k = 0; k < m.inputs; k += 4, w += 4 * kLanes) {
        IntVec weights[kVecs];
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) std::memcpy(&weights[v], w + 4 * v * kWidth, sizeof weights[v]);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const IntVec quad = broadcast_quad(x + static_cast<size_t>(r) * m.inputs + k);
#pragma GCC unroll 8
            for (int v = 0; v < kVecs; ++v) acc[r][v] = add_quads(acc[r][v], weights[v], quad);
        }
    }
    alignas(64) int32_t sums[Rows * kLanes];
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < kVecs; ++v)
            store(sums + r * kLanes + v * kWidth,
                  acc[r][v] - kShift * load(m.totals + static_cast<size_t>(panel) * kLanes + v * kWidth));
    deliver(m, in.scales, row, Rows, panel, 1, sums, kLanes, sink);
}

template <class Sink>
void multiply_with_vectors(const Matrix<int8>& m, Range panels, const Inputs<int8>& in, int rows, int32_t*, const Sink& sink) {
    constexpr int kMaxPairs = kMaxRows / 2;  // both digits of a row go into one tile
    const int pairs = rows / 2, tiles = (pairs + kMaxPairs - 1) / kMaxPairs;
    for (int i = panels.begin; i < panels.end; ++i)
        for (int t = 0; t < tiles; ++t) {
            const Range range = part(pairs, tiles, t);
            switch (range.end - range.begin) {
                case 1: multiply_int8_tile<2>(m, i, in, 2 * range.begin, sink); break;
                case 2: multiply_int8_tile<4>(m, i, in, 2 * range.begin, sink); break;
                default: multiply_int8_tile<6>(m, i, in, 2 * range.begin, sink); break;
            }
        }
}

}  // namespace lab
#endif
