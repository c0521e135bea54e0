// Paged attention in AMX tiles, over the same tiles of keys and values as attention.h: both are tiles of weights as AMX
// loads them. Queries and softmax weights are bf16, sums fp32.
#pragma once

#include "amx.h"
#include "attention.h"

#if defined(LAB_AMX)

namespace lab {

// Tiles 0-3 hold sums, 4 queries, 5 softmax weights of 16 keys, 6 keys, 7 values.
inline void shape_for_attention(int rows) {
    TileShapes shapes;
    for (int tile : {0, 1, 2, 3, 4}) shapes.set(tile, rows, 64);
    shapes.set(5, rows, 32);
    shapes.set(6, 16, 64);
    shapes.set(7, 8, 64);
    shapes.apply();
}

// The tiles of keys and values that will be read after those at work: the rest of this sequence, then the next one.
class TilesAhead {
public:
    TilesAhead(const SequenceCache<bf16>* next_, int next_tiles_) : next(next_), next_tiles(next_tiles_) {}
    // Keys are asked for while keys are at work, values while values are, so that the memory always has something to do.
    void ask_keys(const SequenceCache<bf16>& now, int tile, int tiles) const {
        if (const bf16* at = find(now, tile, tiles)) ask(at, now.head_dim);
    }
    void ask_values(const SequenceCache<bf16>& now, int tile, int tiles) const {
        if (const bf16* at = find(now, tile, tiles)) ask(at + kTile * now.head_dim, now.head_dim);
    }

private:
    static constexpr int kDistance = 16;  // tiles, 64 KiB at 64 features: far enough for the memory, near enough to stay

    const SequenceCache<bf16>* next;  // null: nothing follows
    int next_tiles;

    const bf16* find(const SequenceCache<bf16>& now, int tile, int tiles) const {
        const int at = tile + kDistance, later = at - tiles;
        if (at < tiles) return now.keys(at);
        return next && later < next_tiles ? next->keys(later) : nullptr;
    }
    static void ask(const bf16* half, int head_dim) {
        const char* at = reinterpret_cast<const char*>(half);
        for (size_t line = 0; line < kTile * head_dim * sizeof(bf16); line += 64) __builtin_prefetch(at + line, 0, 2);
    }
};

// scores[r][key] = query[r] · key for the keys of `Tiles` tiles.
template <int Tiles>
inline void score_with_tiles(const SequenceCache<bf16>& cache, int tile, const bf16* queries, AttentionScratch& scratch) {
    const size_t query_bytes = cache.head_dim * sizeof(bf16), score_bytes = scratch.stride * sizeof(float);
    const bf16* keys[4];
    for (int t = 0; t < Tiles; ++t) keys[t] = cache.keys(tile + t);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int d = 0; d < cache.head_dim; d += 32) {
        const int at = d * kTile;
        _tile_loadd(4, queries + d, query_bytes);
        _tile_loadd(6, keys[0] + at, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (Tiles == 1) continue;
        _tile_loadd(6, keys[1] + at, 64);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(6, keys[2] + at, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(6, keys[3] + at, 64);
        _tile_dpbf16ps(3, 4, 6);
    }
    float* scores = scratch.scores.get() + tile * kTile;
    _tile_stored(0, scores, score_bytes);
    if (Tiles == 1) return;
    _tile_stored(1, scores + kTile, score_bytes);
    _tile_stored(2, scores + 2 * kTile, score_bytes);
    _tile_stored(3, scores + 3 * kTile, score_bytes);
}

// sums[r][feature] = Σ_key weight[r][key] · value[key][feature] for `Columns` columns of 16 features.
template <int Columns>
inline void add_up_with_tiles(const SequenceCache<bf16>& cache, int column, int tiles, const AttentionScratch& scratch,
                              const TilesAhead& ahead, float* sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int tile = 0; tile < tiles; ++tile) {
        const bf16* values = cache.values(tile, column);
        if (column == 0) ahead.ask_values(cache, tile, tiles);
        _tile_loadd(5, scratch.weights.get() + tile * kTile, scratch.stride * sizeof(bf16));
        _tile_loadd(7, values, 64);
        _tile_dpbf16ps(0, 5, 7);
        if (Columns == 1) continue;
        _tile_loadd(7, values + kTile * kTile, 64);
        _tile_dpbf16ps(1, 5, 7);
        _tile_loadd(7, values + 2 * kTile * kTile, 64);
        _tile_dpbf16ps(2, 5, 7);
        _tile_loadd(7, values + 3 * kTile * kTile, 64);
        _tile_dpbf16ps(3, 5, 7);
    }
    constexpr int kStride = Columns * kTile * sizeof(float);
    _tile_stored(0, sums, kStride);
    if (Columns == 1) return;
    _tile_stored(1, sums + kTile, kStride);
    _tile_stored(2, sums + 2 * kTile, kStride);
    _tile_stored(3, sums + 3 * kTile, kStride);
}

// `rows` (at most 16) queries, one after another, already scaled, against the first visible[r] keys of the cache;
// head_dim a multiple of 32. Values behind the last key of its tile must be finite: see clear_values_behind.
template <class X>
inline void attend_with_tiles(const SequenceCache<bf16>& cache, const bf16* queries, int rows, const int* visible,
                              AttentionScratch& scratch, const TilesAhead& ahead, X* const* out) {
    shape_for_attention(rows);
    memory_is_written();
    int keys = 0;
    for (int r = 0; r < rows; ++r) keys = visible[r] > keys ? visible[r] : keys;
    const int tiles = (keys + kTile - 1) / kTile;
    int tile = 0;
    for (; tile + 4 <= tiles; tile += 4) {
        for (int t = tile; t < tile + 4; ++t) ahead.ask_keys(cache, t, tiles);
        score_with_tiles<4>(cache, tile, queries, scratch);
    }
    for (; tile < tiles; ++tile) {
        ahead.ask_keys(cache, tile, tiles);
        score_with_tiles<1>(cache, tile, queries, scratch);
    }
    memory_is_written();
    float scale[16];
    for (int r = 0; r < rows; ++r)
        scale[r] = softmax_weights(scratch.scores.get() + r * scratch.stride, visible[r], tiles * kTile,
                                   scratch.weights.get() + r * scratch.stride);
    memory_is_written();
    const int columns = cache.head_dim / kTile;
    alignas(64) float sums[16 * 4 * kTile];
    for (int column = 0; column < columns;) {
        const int at_once = column + 4 <= columns ? 4 : 1;
        if (at_once == 4)
            add_up_with_tiles<4>(cache, column, tiles, scratch, ahead, sums);
        else
            add_up_with_tiles<1>(cache, column, tiles, scratch, ahead, sums);
        memory_is_written();
        for (int r = 0; r < rows; ++r)
            for (int i = 0; i < at_once * kTile; i += kWidth)
                store(out[r] + column * kTile + i, load(sums + r * at_once * kTile + i) * scale[r]);
        column += at_once;
    }
}

// Zeros the values of the tokens behind `offset` in a tile: a whole tile is multiplied, and what an earlier owner of the
// block left there may be no number, which weight 0 does not undo.
inline void clear_values_behind(bf16* tile, int head_dim, int offset) {
    bf16* values = tile + kTile * head_dim;
    for (int column = 0; column < head_dim / kTile; ++column, values += kTile * kTile) {
        int token = offset + 1;
        if (token % 2) {
            for (int d = 0; d < kTile; ++d) values[pair_index(values, kTile, token, d)] = bf16{0};
            ++token;
        }
        std::memset(static_cast<void*>(values + token * kTile), 0, (kTile - token) * kTile * sizeof(bf16));
    }
}

}  // namespace lab
#endif
