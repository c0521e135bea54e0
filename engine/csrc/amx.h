// Matrix multiplication in AMX tiles: a tile of weights (16 pair rows x 16 outputs) lies in memory as it is loaded.
//
// One instruction adds to 16 x 16 sums the products of 16 rows and 32 inputs, inputs in ascending order: a row's sums
// do not depend on how many rows share the tile. Fewer rows take less time.
#pragma once

#include "matrix.h"

#if defined(LAB_AMX)
#include <sys/syscall.h>
#include <unistd.h>

namespace lab {

// What the system must grant once a process before it may use the tile registers.
inline bool may_use_tiles() {
#if defined(LAB_AMX_HEADER)
    return true;
#else
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#endif
}

struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int rows_, int row_bytes_) {
        rows[tile] = static_cast<uint8_t>(rows_);
        row_bytes[tile] = static_cast<uint16_t>(row_bytes_);
    }
    void apply() const { _tile_loadconfig(this); }
};

// Tiles 0-3 hold sums, 4 and 5 rows of activations, 6 and 7 weights. Tiles 0, 1 and 4 have `upper` rows, 2, 3 and 5 `lower`.
inline void shape_for_matrices(int upper, int lower) {
    TileShapes shapes;
    for (int tile : {0, 1, 4}) shapes.set(tile, upper, 64);
    for (int tile : {2, 3, 5}) shapes.set(tile, lower, 64);
    for (int tile : {6, 7}) shapes.set(tile, 16, 64);
    shapes.apply();
}

// The compiler does not know which memory the tile instructions read: what was written before must be there.
inline void memory_is_written() { asm volatile("" ::: "memory"); }

constexpr int kTileBytes = 1024, kTileRowBytes = 64;

// sum += rows of activations x weights; the registers' numbers must be literals.
#define LAB_MULTIPLY_TILES(T, sum, rows, weights)      \
    do {                                               \
        if constexpr (std::is_same<T, int8>::value)    \
            _tile_dpbssd(sum, rows, weights);          \
        else                                           \
            _tile_dpbf16ps(sum, rows, weights);        \
    } while (0)

// Up to 16 rows and two panels (or one): each tile of activations meets four columns.
template <int Panels, class T, class Sink>
inline void multiply_narrow(const Matrix<T>& m, int panel, const Inputs<T>& in, int row, int rows, const Sink& sink) {
    memory_is_written();
    const size_t column = m.column_size() * sizeof(T), row_bytes = m.inputs * sizeof(T);
    const char* w = reinterpret_cast<const char*>(m.panel(panel));
    const char* x = reinterpret_cast<const char*>(in.x) + row * row_bytes;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t at = 0; at < row_bytes; at += kTileRowBytes, w += kTileBytes) {
        _tile_loadd(4, x + at, row_bytes);
        _tile_loadd(6, w, kTileRowBytes);
        LAB_MULTIPLY_TILES(T, 0, 4, 6);
        _tile_loadd(7, w + column, kTileRowBytes);
        LAB_MULTIPLY_TILES(T, 1, 4, 7);
        if (Panels == 2) {
            _tile_loadd(6, w + 2 * column, kTileRowBytes);
            LAB_MULTIPLY_TILES(T, 2, 4, 6);
            _tile_loadd(7, w + 3 * column, kTileRowBytes);
            LAB_MULTIPLY_TILES(T, 3, 4, 7);
        }
    }
    constexpr int kStride = 32 * Panels;
    alignas(64) typename Types<T>::Sum sums[16 * kStride];
    _tile_stored(0, sums, kStride * 4);
    _tile_stored(1, sums + 16, kStride * 4);
    if (Panels == 2) {
        _tile_stored(2, sums + 32, kStride * 4);
        _tile_stored(3, sums + 48, kStride * 4);
    }
    memory_is_written();
    deliver(m, in.scales, row, rows, panel, Panels, sums, kStride, sink);
}

// 17 to 32 rows and one panel: two tiles of activations meet two columns. `next`, read a bit with every step, is asked
// for ahead of its time.
template <class T, class Sink>
inline void multiply_wide(const Matrix<T>& m, int panel, const Inputs<T>& in, int row, int rows, const char* next,
                          size_t next_step, const Sink& sink) {
    memory_is_written();
    const size_t column = m.column_size() * sizeof(T), row_bytes = m.inputs * sizeof(T);
    const char* w = reinterpret_cast<const char*>(m.panel(panel));
    const char *upper = reinterpret_cast<const char*>(in.x) + row * row_bytes, *lower = upper + 16 * row_bytes;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t at = 0; at < row_bytes; at += kTileRowBytes, w += kTileBytes, next += next_step) {
        for (size_t line = 0; line < next_step; line += 64) __builtin_prefetch(next + line, 0, 2);
        _tile_loadd(6, w, kTileRowBytes);
        _tile_loadd(4, upper + at, row_bytes);
        LAB_MULTIPLY_TILES(T, 0, 4, 6);
        _tile_loadd(7, w + column, kTileRowBytes);
        LAB_MULTIPLY_TILES(T, 1, 4, 7);
        _tile_loadd(5, lower + at, row_bytes);
        LAB_MULTIPLY_TILES(T, 2, 5, 6);
        LAB_MULTIPLY_TILES(T, 3, 5, 7);
    }
    alignas(64) typename Types<T>::Sum sums[32 * 32];
    _tile_stored(0, sums, 32 * 4);
    _tile_stored(1, sums + 16, 32 * 4);
    _tile_stored(2, sums + 16 * 32, 32 * 4);
    _tile_stored(3, sums + 16 * 32 + 16, 32 * 4);
    memory_is_written();
    deliver(m, in.scales, row, rows, panel, 1, sums, 32, sink);
}

// sink(Σ_k x[r][k] · m[c][k]) for every row and the outputs of `panels`.
template <class T, class Sink>
void multiply_with_tiles(const Matrix<T>& m, Range panels, const Inputs<T>& in, int rows, const Sink& sink) {
    if (rows <= 16) {
        shape_for_matrices(rows, rows);
        int i = panels.begin;
        for (; i + 2 <= panels.end; i += 2) multiply_narrow<2>(m, i, in, 0, rows, sink);
        if (i < panels.end) multiply_narrow<1>(m, i, in, 0, rows, sink);
        return;
    }
    const int blocks = (rows + 31) / 32, left = rows - (blocks - 1) * 32;
    const size_t steps = m.inputs / Panel<T>::kStep;
    const size_t share = round_up(m.panel_size() * sizeof(T) / steps / blocks, 64);
    const auto shape_for_last = [&] {
        left > 16 ? shape_for_matrices(16, left - 16) : shape_for_matrices(left, left);
    };
    blocks > 1 ? shape_for_matrices(16, 16) : shape_for_last();
    for (int i = panels.begin; i < panels.end; ++i) {
        const char* next = reinterpret_cast<const char*>(m.panel(i + 1));
        for (int b = 0; b < blocks; ++b, next += steps * share) {
            const bool reshape = b + 1 == blocks && blocks > 1 && left < 32;
            if (reshape) shape_for_last();
            if (b + 1 == blocks && left <= 16)
                multiply_narrow<1>(m, i, in, b * 32, left, sink);
            else
                multiply_wide(m, i, in, b * 32, b + 1 == blocks ? left : 32, next, share, sink);
            if (reshape) shape_for_matrices(16, 16);
        }
    }
}

}  // namespace lab
#endif
