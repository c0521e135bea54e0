// Paged attention over the tiles of layout.h: several (token, query head) rows share every load of a key or value.
#pragma once

#include "buffer.h"
#include "ops.h"
#include "tile.h"

namespace lab {

// The keys and values of one layer and one key/value head of a sequence, found through its block table.
template <class K>
struct SequenceCache {
    const K* head;          // tile 0 of block 0 for this layer and head
    size_t block_stride;    // elements from a block to the next
    const int32_t* blocks;  // the block table
    int tiles_per_block, head_dim;

    const K* keys(int tile) const {
        const size_t tile_size = 2 * static_cast<size_t>(kTile) * head_dim;
        return head + blocks[tile / tiles_per_block] * block_stride + (tile % tiles_per_block) * tile_size;
    }
    // The value column of features [16 c, 16 c + 16).
    const K* values(int tile, int c) const { return keys(tile) + kTile * head_dim + c * kTile * kTile; }
};

// What attention keeps between its two passes, for 16 rows of at most `stride` keys.
struct AttentionScratch {
    Buffer<float> scores;
    Buffer<bf16> weights;  // for tiles only: the other path puts them in the place of the scores
    size_t stride;

    explicit AttentionScratch(size_t stride_) : scores(16 * stride_), weights(16 * stride_), stride(stride_) {}
};

// Writes one token's key and value (head_dim floats each) at `offset` of its tile.
template <class K>
inline void write_token(K* tile, int head_dim, int offset, const float* key, const float* value) {
    K* values = tile + kTile * head_dim;
    for (int d = 0; d < head_dim; d += kTile) {
        K narrow_key[kTile], narrow_value[kTile];
        for (int i = 0; i < kTile; i += kWidth) {
            store(narrow_key + i, load(key + d + i));
            store(narrow_value + i, load(value + d + i));
        }
        for (int i = 0; i < kTile; ++i) {
            tile[pair_index(tile, kTile, d + i, offset)] = narrow_key[i];
            values[d * kTile + pair_index(values, kTile, offset, i)] = narrow_value[i];
        }
    }
}

template <class K, int Rows, int Tiles>
inline void score_tiles(const SequenceCache<K>& cache, int tile, int tiles, const float* const (&query)[Rows],
                        float* const (&scores)[Rows]) {
    constexpr int kVecs = kTile / kWidth;
    const K* keys[Tiles];
    Ahead<Tiles, 4 * kTile * sizeof(K) / 64> next;  // the keys of the next tiles and the values behind them
    next.step = 4 * kTile * sizeof(K);
    for (int t = 0; t < Tiles; ++t) {
        keys[t] = cache.keys(tile + t);
        const int later = tile + Tiles + t;
        next.at[t] = reinterpret_cast<const char*>(cache.keys(later < tiles ? later : tiles - 1));
    }
    Accumulators<kTile, Rows, Tiles> acc;
    acc.clear();
    accumulate(acc, keys, query, cache.head_dim, next);
    for (int t = 0; t < Tiles; ++t)
        for (int r = 0; r < Rows; ++r)
            for (int v = 0; v < kVecs; ++v) store(scores[r] + (tile + t) * kTile + v * kWidth, acc.sum[t][r][v]);
}

template <class K, class X, int Rows, int Columns>
inline void add_up_values(const SequenceCache<K>& cache, int column, int keys, const float* const (&weights)[Rows],
                          const float (&scale)[Rows], X* const (&out)[Rows]) {
    constexpr int kVecs = kTile / kWidth;
    Accumulators<kTile, Rows, Columns> acc;
    acc.clear();
    for (int tile = 0; tile * kTile < keys; ++tile) {
        const K* values[Columns];
        const float* tile_weights[Rows];
        for (int c = 0; c < Columns; ++c) values[c] = cache.values(tile, column + c);
        for (int r = 0; r < Rows; ++r) tile_weights[r] = weights[r] + tile * kTile;
        const int left = keys - tile * kTile;
        accumulate(acc, values, tile_weights, left < kTile ? left : kTile, NothingAhead{});
    }
    for (int c = 0; c < Columns; ++c)
        for (int r = 0; r < Rows; ++r)
            for (int v = 0; v < kVecs; ++v)
                store(out[r] + (column + c) * kTile + v * kWidth, acc.sum[c][r][v] * scale[r]);
}

// `Rows` queries (already scaled by 1/sqrt(head_dim)) against the first visible[r] keys of the cache.
// `scratch`: Rows x `scratch_stride` floats, scratch_stride a multiple of kTile and at least max(visible).
// Keys that only other rows of the tile may see get weight 0, which adds exactly nothing.
template <class K, class X, int Rows>
inline void attend(const SequenceCache<K>& cache, const float* const (&query)[Rows], const int (&visible)[Rows],
                   float* scratch, size_t scratch_stride, X* const (&out)[Rows]) {
    constexpr int kAtOnce = panels_at_once<kTile>(Rows);
    int keys = 0;
    float* scores[Rows];
    const float* weights[Rows];
    float scale[Rows];
    for (int r = 0; r < Rows; ++r) {
        keys = visible[r] > keys ? visible[r] : keys;
        weights[r] = scores[r] = scratch + r * scratch_stride;
    }
    const int tiles = (keys + kTile - 1) / kTile;
    int tile = 0;
    for (; tile + kAtOnce <= tiles; tile += kAtOnce) score_tiles<K, Rows, kAtOnce>(cache, tile, tiles, query, scores);
    for (; tile < tiles; ++tile) score_tiles<K, Rows, 1>(cache, tile, tiles, query, scores);
    for (int r = 0; r < Rows; ++r) scale[r] = softmax_weights(scores[r], visible[r], tiles * kTile, scores[r]);
    const int columns = cache.head_dim / kTile;
    int column = 0;
    for (; column + kAtOnce <= columns; column += kAtOnce)
        add_up_values<K, X, Rows, kAtOnce>(cache, column, keys, weights, scale, out);
    for (; column < columns; ++column) add_up_values<K, X, Rows, 1>(cache, column, keys, weights, scale, out);
}

}  // namespace lab
