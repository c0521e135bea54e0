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
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
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

constexpr int kTileElements = 16 * 32;  // of bf16: 1 KiB

// Up to 16 rows and two panels (or one): each tile of activations meets four columns.
template <int Panels, class Sink>
inline void multiply_narrow(const Matrix<bf16>& m, int panel, const bf16* x, int row, int rows, const Sink& sink) {
    memory_is_written();
    const size_t column = m.column_size(), stride = m.inputs * sizeof(bf16);
    const bf16 *w = m.panel(panel), *from = x + static_cast<size_t>(row) * m.inputs;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < m.inputs; k += 32, w += kTileElements) {
        _tile_loadd(4, from + k, stride);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + column, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (Panels == 2) {
            _tile_loadd(6, w + 2 * column, 64);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(7, w + 3 * column, 64);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    alignas(64) float sums[16 * 32 * Panels];
    constexpr int kStride = 32 * Panels;
    _tile_stored(0, sums, kStride * sizeof(float));
    _tile_stored(1, sums + 16, kStride * sizeof(float));
    if (Panels == 2) {
        _tile_stored(2, sums + 32, kStride * sizeof(float));
        _tile_stored(3, sums + 48, kStride * sizeof(float));
    }
    memory_is_written();
    sink(row, rows, panel, Panels, sums, kStride);
}

// 17 to 32 rows and one panel: two tiles of activations meet two columns. `next`, read a bit with every step, is asked
// for ahead of its time.
template <class Sink>
inline void multiply_wide(const Matrix<bf16>& m, int panel, const bf16* x, int row, int rows, const char* next,
                          size_t next_step, const Sink& sink) {
    memory_is_written();
    const size_t column = m.column_size(), stride = m.inputs * sizeof(bf16);
    const bf16 *w = m.panel(panel), *upper = x + static_cast<size_t>(row) * m.inputs, *lower = upper + 16 * m.inputs;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < m.inputs; k += 32, w += kTileElements, next += next_step) {
        for (size_t line = 0; line < next_step; line += 64) __builtin_prefetch(next + line, 0, 2);
        _tile_loadd(6, w, 64);
        _tile_loadd(4, upper + k, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + column, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower + k, stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    alignas(64) float sums[32 * 32];
    _tile_stored(0, sums, 32 * sizeof(float));
    _tile_stored(1, sums + 16, 32 * sizeof(float));
    _tile_stored(2, sums + 16 * 32, 32 * sizeof(float));
    _tile_stored(3, sums + 16 * 32 + 16, 32 * sizeof(float));
    memory_is_written();
    sink(row, rows, panel, 1, sums, 32);
}

// sink(Σ_k x[r][k] · m[c][k]) for every row and the outputs of `panels`.
template <class Sink>
void multiply_with_tiles(const Matrix<bf16>& m, Range panels, const bf16* x, int rows, const Sink& sink) {
    if (rows <= 16) {
        shape_for_matrices(rows, rows);
        int i = panels.begin;
        for (; i + 2 <= panels.end; i += 2) multiply_narrow<2>(m, i, x, 0, rows, sink);
        if (i < panels.end) multiply_narrow<1>(m, i, x, 0, rows, sink);
        return;
    }
    const int blocks = (rows + 31) / 32, left = rows - (blocks - 1) * 32;
    const size_t share = round_up(m.panel_size() * sizeof(bf16) / (m.inputs / 32) / blocks, 64);
    const auto shape_for_last = [&] {
        left > 16 ? shape_for_matrices(16, left - 16) : shape_for_matrices(left, left);
    };
    blocks > 1 ? shape_for_matrices(16, 16) : shape_for_last();
    for (int i = panels.begin; i < panels.end; ++i) {
        const char* next = reinterpret_cast<const char*>(m.panel(i + 1));
        for (int b = 0; b < blocks; ++b, next += m.inputs / 32 * share) {
            const bool reshape = b + 1 == blocks && blocks > 1 && left < 32;
            if (reshape) shape_for_last();
            if (b + 1 == blocks && left <= 16)
                multiply_narrow<1>(m, i, x, b * 32, left, sink);
            else
                multiply_wide(m, i, x, b * 32, b + 1 == blocks ? left : 32, next, share, sink);
            if (reshape) shape_for_matrices(16, 16);
        }
    }
}

}  // namespace lab
#endif
