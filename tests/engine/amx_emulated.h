// The tile instructions of AMX that engine/csrc uses, as plain functions: its path under test on processors without it.
// Semantics as in Intel's Software Developer's Manual; registers are a thread's own. Included from engine/csrc/layout.h.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>

namespace lab_amx {

struct Tile {
    int rows = 0, row_bytes = 0;
    unsigned char data[16][64] = {};
};
inline thread_local Tile tiles[8];

inline float bf16_at(const unsigned char* row, int i) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, 2);
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

inline void loadconfig(const void* config) {
    const unsigned char* bytes = static_cast<const unsigned char*>(config);
    assert(bytes[0] == 1 && bytes[1] == 0);
    for (int t = 0; t < 8; ++t) {
        uint16_t row_bytes;
        std::memcpy(&row_bytes, bytes + 16 + 2 * t, 2);
        const int rows = bytes[48 + t];
        assert(row_bytes <= 64 && rows <= 16);
        tiles[t] = Tile{};
        tiles[t].rows = rows;
        tiles[t].row_bytes = row_bytes;
    }
}

inline void zero(int t) { std::memset(tiles[t].data, 0, sizeof tiles[t].data); }

inline void loadd(int t, const void* base, size_t stride) {
    Tile& tile = tiles[t];
    zero(t);
    for (int r = 0; r < tile.rows; ++r)
        std::memcpy(tile.data[r], static_cast<const unsigned char*>(base) + r * stride, tile.row_bytes);
}

inline void stored(int t, void* base, size_t stride) {
    const Tile& tile = tiles[t];
    for (int r = 0; r < tile.rows; ++r)
        std::memcpy(static_cast<unsigned char*>(base) + r * stride, tile.data[r], tile.row_bytes);
}

// sum[m][n] += a[m][2k] * b[k][2n] + a[m][2k + 1] * b[k][2n + 1], k ascending.
inline void dpbf16ps(int sum, int a, int b) {
    Tile& to = tiles[sum];
    const Tile &left = tiles[a], &right = tiles[b];
    assert(to.rows == left.rows && to.row_bytes == right.row_bytes && left.row_bytes == 4 * right.rows);
    float even[16][16], odd[16][16];
    for (int k = 0; k < right.rows; ++k)
        for (int n = 0; n < 16; ++n) {
            even[k][n] = bf16_at(right.data[k], 2 * n);
            odd[k][n] = bf16_at(right.data[k], 2 * n + 1);
        }
    for (int m = 0; m < to.rows; ++m) {
        float row[16];
        std::memcpy(row, to.data[m], 64);
        for (int k = 0; k < right.rows; ++k) {
            const float x = bf16_at(left.data[m], 2 * k), y = bf16_at(left.data[m], 2 * k + 1);
            for (int n = 0; n < 16; ++n) row[n] = row[n] + x * even[k][n] + y * odd[k][n];
        }
        std::memcpy(to.data[m], row, to.row_bytes);
    }
}

// The same for four int8 at a time, in whole numbers.
inline void dpbssd(int sum, int a, int b) {
    Tile& to = tiles[sum];
    const Tile &left = tiles[a], &right = tiles[b];
    assert(to.rows == left.rows && to.row_bytes == right.row_bytes && left.row_bytes == 4 * right.rows);
    for (int m = 0; m < to.rows; ++m) {
        int32_t row[16];
        std::memcpy(row, to.data[m], 64);
        for (int k = 0; k < right.rows; ++k)
            for (int n = 0; n < 16; ++n)
                for (int j = 0; j < 4; ++j)
                    row[n] += static_cast<int8_t>(left.data[m][4 * k + j]) * static_cast<int8_t>(right.data[k][4 * n + j]);
        std::memcpy(to.data[m], row, to.row_bytes);
    }
}

}  // namespace lab_amx

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig lab_amx::loadconfig
#define _tile_zero lab_amx::zero
#define _tile_loadd lab_amx::loadd
#define _tile_stored lab_amx::stored
#define _tile_dpbf16ps lab_amx::dpbf16ps
#define _tile_dpbssd lab_amx::dpbssd
