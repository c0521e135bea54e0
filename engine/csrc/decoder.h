// A Llama-family decoder: a whole step, its phases one after another, on a team of threads.
//
// All new tokens of the step are rows; a mixed batch of prompt chunks and decodes needs no cases. The residual stream and
// all sums are fp32; weights and activations may be bf16 or int8, the key/value cache bf16.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "amx.h"
#include "attention.h"
#include "attention_amx.h"
#include "gemm.h"
#include "int16.h"
#include "int8.h"
#include "ops.h"
#include "step.h"
#include "threads.h"

namespace lab {

// T: type of the weights, K: type of the key/value cache.
template <class T, class K>
class Decoder final : public Model {
public:
    explicit Decoder(const Shape& shape)
        : shape_(shape),
          query_size_(shape.heads * shape.head_dim),
          kv_size_(shape.kv_heads * shape.head_dim),
          group_(shape.heads / shape.kv_heads),
          widest_(std::max({shape.hidden, query_size_, shape.intermediate})),
          tile_size_(2 * static_cast<size_t>(kTile) * shape.head_dim),
          head_stride_(shape.block_size / kTile * tile_size_),
          block_stride_(shape.kv_heads * head_stride_),
          score_stride_(round_up(shape.max_positions, kTile) + kTile),
          layers_(shape.layers),
          cache_(shape.layers * static_cast<size_t>(shape.num_blocks) * block_stride_),
          next_item_(shape.layers),
          next_claim_(kProducts * static_cast<size_t>(shape.layers) + 1),
          team_(shape.threads) {
        Arena counting(nullptr);
        place(counting);
        weights_ = Buffer<char>(counting.used());
        Arena arena(weights_.get());
        place(arena);
        for (int t = 0; t < shape.threads; ++t)
            scratch_.push_back({AttentionScratch(score_stride_), Buffer<int32_t>(kWidens ? padded<T>(widest_) / 2 * kLanes : 0), 0});
    }

    void set(int32_t weight, int32_t index, const void* data) override {
        const auto* matrix = static_cast<const typename Types<T>::Source*>(data);
        const auto copy = [&](float* to, size_t n) { std::memcpy(to, data, n * sizeof(float)); };
        Layer& layer = layers_[index];
        const size_t hidden = shape_.hidden, angles = static_cast<size_t>(shape_.rope_positions) * (shape_.head_dim / 2);
        switch (weight) {
            case kEmbedding: std::memcpy(embedding_, data, shape_.vocab * hidden * sizeof(*embedding_)); break;
            case kFinalNorm: copy(final_norm_, hidden); break;
            case kLmHead: lm_head_.pack(matrix, shape_.hidden); break;
            case kCosine: copy(cosine_, angles); break;
            case kSine: copy(sine_, angles); break;
            case kInputNorm: copy(layer.input_norm, hidden); break;
            case kQkv: layer.qkv.pack(matrix, shape_.hidden); break;
            case kQkvBias: copy(layer.qkv_bias, query_size_ + 2 * kv_size_); break;
            case kQNorm: copy(layer.q_norm, shape_.head_dim); break;
            case kKNorm: copy(layer.k_norm, shape_.head_dim); break;
            case kAttentionOut: layer.out.pack(matrix, query_size_); break;
            case kPostNorm: copy(layer.post_norm, hidden); break;
            case kGate: pack_half(layer.gate_up, matrix, 0); break;
            case kUp: pack_half(layer.gate_up, matrix, kHalf); break;
            case kDown: layer.down.pack(matrix, shape_.intermediate); break;
            default: break;
        }
    }
    char* weights() override { return weights_.get(); }
    size_t weight_bytes() const override { return weights_.count(); }

    const double* phase_seconds() const override { return phase_seconds_; }

    int32_t step(const StepInput& in) override {
        if (const int32_t fault = check(shape_, in)) return fault;
        reserve(in);
        list_attention(in);
        std::fill_n(phase_seconds_, kPhases, 0.0);
        lap_ = Clock::now();
        team_.run([&](int thread) { run(in, thread); });
        return kFine;
    }

private:
    struct Layer {
        float *input_norm, *post_norm, *q_norm, *k_norm, *qkv_bias;  // null where the model has none
        Matrix<T> qkv, out, gate_up, down;
    };
    using Embedding = typename Types<T>::Embedding;
    static constexpr int kDigits = Types<T>::kDigits;
    // Whether rows are made ready for each matrix (make_ready).
    static constexpr bool kWidens = std::is_same<Activation<T>, int16>::value;
    static constexpr bool kMadeReady = !std::is_same<Staged<T>, Activation<T>>::value;
    static constexpr int kLanes = Panel<T>::kLanes, kHalf = kLanes / 2;
    // Tiles of AMX take bf16 keys and values of 32 features at a time.
    static constexpr bool kTileAttention = Panel<T>::kAmx && std::is_same<K, bf16>::value;

    void pack_half(Matrix<T>& m, const typename Types<T>::Source* rows, int first_lane) {
        m.pack(rows, shape_.intermediate, shape_.hidden,
               [&](int n) { return n / kHalf * kLanes + first_lane + n % kHalf; });
    }

    // A thread's own.
    struct Scratch {
        AttentionScratch attention;
        Buffer<int32_t> widened;  // a panel: see int16.h
        int products;             // matrices multiplied so far in this step
    };

    // Consecutive rows of one sequence, attended together; results go to rows `out` and on.
    struct AttentionItem {
        int seq, row, rows, out;
    };
    static constexpr int kItemRows = 16;
    static constexpr int kProducts = 4;  // matrices of a layer
    static constexpr int kClaims = 8;    // that the panels of a matrix are cut into for every thread but the first

    // Gives every weight its place, in the order in which a step reads them.
    void place(Arena& arena) {
        const int hidden = shape_.hidden, inner = shape_.intermediate, d = shape_.head_dim;
        const size_t angles = static_cast<size_t>(shape_.rope_positions) * (d / 2);
        embedding_ = arena.take<Embedding>(static_cast<size_t>(shape_.vocab) * hidden);
        cosine_ = arena.take<float>(angles);
        sine_ = arena.take<float>(angles);
        for (Layer& layer : layers_) {
            layer.input_norm = arena.take<float>(hidden);
            layer.qkv.place(arena, query_size_ + 2 * kv_size_, hidden);
            layer.qkv_bias = shape_.attention_bias ? arena.take<float>(query_size_ + 2 * kv_size_) : nullptr;
            layer.q_norm = shape_.qk_norm ? arena.take<float>(d) : nullptr;
            layer.k_norm = shape_.qk_norm ? arena.take<float>(d) : nullptr;
            layer.out.place(arena, hidden, query_size_);
            layer.post_norm = arena.take<float>(hidden);
            layer.gate_up.place(arena, (inner + kHalf - 1) / kHalf * kLanes, hidden);
            layer.down.place(arena, hidden, inner);
        }
        final_norm_ = arena.take<float>(hidden);
        lm_head_.place(arena, shape_.vocab, hidden);
    }

    void reserve(const StepInput& in) {
        const size_t rows = in.tokens;
        residual_.grow(rows * shape_.hidden);
        last_.grow(static_cast<size_t>(in.logits) * shape_.hidden);
        normed_.grow(rows * padded<T>(shape_.hidden));
        qkv_.grow(rows * (query_size_ + 2 * kv_size_));
        if (attends_with_tiles()) queries_.grow(rows * query_size_);
        attended_.grow(rows * padded<T>(query_size_));
        hidden_.grow(rows * padded<T>(shape_.intermediate));
        if (kMadeReady) {
            ready_.grow(kDigits * rows * padded<T>(widest_));
            row_scales_.grow(rows);
        }
    }
    bool attends_with_tiles() const { return kTileAttention && shape_.head_dim % 32 == 0; }

    // The last layer is computed for the rows that need logits only: nothing later reads the others.
    void list_attention(const StepInput& in) {
        all_items_.clear();
        last_items_.clear();
        for (int s = 0, logit = 0; s < in.seqs; ++s) {
            const int end = in.query_start[s + 1];
            for (int row = in.query_start[s]; row < end; row += kItemRows)
                all_items_.push_back({s, row, end - row < kItemRows ? end - row : kItemRows, row});
            for (; logit < in.logits && in.logit_rows[logit] < end; ++logit)
                last_items_.push_back({s, in.logit_rows[logit], 1, logit});
        }
        for (auto& next : next_item_) next.store(0, std::memory_order_relaxed);
        for (auto& next : next_claim_) next.store(0, std::memory_order_relaxed);
    }

    using Clock = std::chrono::steady_clock;

    // No thread goes on before all have finished `phase`; the first one books the time.
    void end(Phase phase, int thread) {
        team_.barrier();
        if (thread != 0) return;
        const auto now = Clock::now();
        phase_seconds_[phase] += std::chrono::duration<double>(now - lap_).count();
        lap_ = now;
    }

    void run(const StepInput& in, int thread) {
        scratch_[thread].products = 0;
        embed(in, thread);
        end(kEmbedPhase, thread);
        for (int i = 0; i < shape_.layers; ++i) {
            const Layer& layer = layers_[i];
            const bool last = i + 1 == shape_.layers;
            norm(residual_.get(), layer.input_norm, in.tokens, layer.qkv, thread);
            end(kNormPhase, thread);
            const int width = query_size_ + 2 * kv_size_;
            multiply(layer.qkv, normed_rows(), in.tokens, thread, sums(qkv_.get(), width, Write::kSet));
            end(kQkvPhase, thread);
            finish_qkv(in, layer, i, thread);
            end(kCachePhase, thread);
            attend_items(in, last ? last_items_ : all_items_, i, thread);
            if (last) copy_logit_rows(in, thread);
            end(kAttentionPhase, thread);
            feed_forward(layer, last ? last_.get() : residual_.get(), last ? in.logits : in.tokens, thread);
        }
        norm(last_.get(), final_norm_, in.logits, lm_head_, thread);
        end(kNormPhase, thread);
        multiply(lm_head_, normed_rows(), in.logits, thread, sums(in.out, shape_.vocab, Write::kSet));
        end(kHeadPhase, thread);
    }

    // Attention's output projection and the gated MLP, both added to the residual stream.
    void feed_forward(const Layer& layer, float* residual, int rows, int thread) {
        const int hidden = shape_.hidden, inner = shape_.intermediate;
        multiply(layer.out, ready(attended_, query_size_, rows, layer.out, thread), rows, thread, sums(residual, hidden, Write::kAdd));
        end(kOutPhase, thread);
        norm(residual, layer.post_norm, rows, layer.gate_up, thread);
        end(kNormPhase, thread);
        multiply(layer.gate_up, normed_rows(), rows, thread, StoreGated<T>{hidden_.get(), padded<T>(inner), inner});
        end(kGateUpPhase, thread);
        multiply(layer.down, ready(hidden_, inner, rows, layer.down, thread), rows, thread, sums(residual, hidden, Write::kAdd));
        end(kDownPhase, thread);
    }

    static StoreSums<T> sums(float* y, int outputs, Write write) {
        return {y, static_cast<size_t>(outputs), outputs, write};
    }

    // Rows of x are padded to m.inputs. Panels are claimed a few at a time, so that a thread whose core is slower, or lent to
    // somebody else, does less; who computes one does not change its result.
    template <class Sink>
    void multiply(const Matrix<T>& m, const Inputs<T>& x, int rows, int thread, const Sink& sink) {
        if (rows == 0) return;
        const int claims = std::min(kClaims * (team_.size() - 1) + 1, m.panels());
        std::atomic<int>& next = next_claim_[scratch_[thread].products++];
        for (int claim; (claim = next.fetch_add(1, std::memory_order_relaxed)) < claims;)
            multiply_panels(m, part(m.panels(), claims, claim), x, rows, thread, sink);
    }

    template <class Sink>
    void multiply_panels(const Matrix<T>& m, Range panels, const Inputs<T>& x, int rows, int thread, const Sink& sink) {
#if defined(LAB_AMX)
        if constexpr (Panel<T>::kAmx)
            multiply_with_tiles(m, panels, x, kDigits * rows, sink);
        else
#endif
            multiply_with_vectors(m, panels, x, kDigits * rows, scratch_[thread].widened.get(), sink);
    }

    // Rows of `width` values as `m` takes them: as they are, or made ready, which needs all of a row at once.
    Inputs<T> ready(const Buffer<Staged<T>>& rows, int width, int count, const Matrix<T>& m, int thread) {
        if constexpr (kMadeReady) {
            const Range range = rows_of(count, thread);
            for (int row = range.begin; row < range.end; ++row)
                make_row_ready(rows.get() + row * padded<T>(width), width, row, m);
            team_.barrier();
            return {ready_.get(), row_scales_.get()};
        } else {
            return {rows.get(), nullptr};
        }
    }
    // norm() has made its rows ready already.
    Inputs<T> normed_rows() const {
        if constexpr (kMadeReady)
            return {ready_.get(), row_scales_.get()};
        else
            return {normed_.get(), nullptr};
    }
    void make_row_ready(const float* row, int width, int index, const Matrix<T>& m) {
        const size_t length = padded<T>(width);
        Activation<T>* digits = ready_.get() + kDigits * index * length;
        row_scales_.get()[index] = make_ready(row, width, m, digits);
        for (int d = 0; d < kDigits; ++d)
            std::memset(static_cast<void*>(digits + d * length + width), 0, (length - width) * sizeof *digits);
    }

    Range rows_of(int rows, int thread) const { return part(rows, team_.size(), thread); }

    void embed(const StepInput& in, int thread) {
        const Range rows = rows_of(in.tokens, thread);
        for (int row = rows.begin; row < rows.end; ++row) {
            const Embedding* from = embedding_ + static_cast<size_t>(in.token_ids[row]) * shape_.hidden;
            float* to = residual_.get() + static_cast<size_t>(row) * shape_.hidden;
            for (int i = 0; i < shape_.hidden; ++i) to[i] = widen(from[i]);
        }
    }

    // Rows for `m`.
    void norm(const float* x, const float* weight, int rows, const Matrix<T>& m, int thread) {
        const Range range = rows_of(rows, thread);
        for (int row = range.begin; row < range.end; ++row) {
            const size_t at = row;
            rms_norm(x + at * shape_.hidden, weight, shape_.hidden, shape_.eps,
                     normed_.get() + at * padded<T>(shape_.hidden));
            if constexpr (kMadeReady) make_row_ready(normed_.get() + at * padded<T>(shape_.hidden), shape_.hidden, row, m);
            (void)m;
        }
    }

    // Bias, query/key norm and rotary embedding; queries are scaled, keys and values go to the cache.
    void finish_qkv(const StepInput& in, const Layer& layer, int index, int thread) {
        const int width = query_size_ + 2 * kv_size_, d = shape_.head_dim;
        const float scale = 1.0f / std::sqrt(static_cast<float>(d));
        const Range rows = rows_of(in.tokens, thread);
        for (int row = rows.begin; row < rows.end; ++row) {
            float* q = qkv_.get() + static_cast<size_t>(row) * width;
            float* k = q + query_size_;
            if (layer.qkv_bias)
                for (int i = 0; i < width; ++i) q[i] += layer.qkv_bias[i];
            const size_t angle = static_cast<size_t>(in.positions[row]) * (d / 2);
            for (int h = 0; h < shape_.heads + shape_.kv_heads; ++h) {
                float* head = q + h * d;
                const float* weight = h < shape_.heads ? layer.q_norm : layer.k_norm;
                if (weight) rms_norm(head, weight, d, shape_.eps, head);
                rotate(head, cosine_ + angle, sine_ + angle, d);
            }
            for (int i = 0; i < query_size_; ++i) q[i] *= scale;
            if (attends_with_tiles()) copy_queries(in.tokens, row, q);
            const int slot = in.slot_mapping[row];
            for (int h = 0; h < shape_.kv_heads; ++h)
                write_token(tile_of(index, slot, h), d, slot % kTile, k + h * d, k + kv_size_ + h * d);
        }
        if (attends_with_tiles()) clear_behind(in, index, thread);
    }

    // The tile of a head that holds the token at `slot`.
    K* tile_of(int index, int slot, int head) {
        K* block = layer_cache(index) + slot / shape_.block_size * block_stride_;
        return block + head * head_stride_ + slot % shape_.block_size / kTile * tile_size_;
    }

    // Queries as tiles take them: [key/value head][row][query of the group][head_dim], so that they follow each other.
    void copy_queries(int tokens, int row, const float* q) {
        const int values = group_ * shape_.head_dim;
        for (int h = 0; h < shape_.kv_heads; ++h) {
            bf16* to = queries_.get() + (static_cast<size_t>(h) * tokens + row) * values;
            for (int i = 0; i < values; i += kWidth) store(to + i, load(q + h * values + i));
        }
    }

    // Behind the last token of every sequence whose tile was begun in this step; in later steps it is clear already.
    void clear_behind(const StepInput& in, int index, int thread) {
#if defined(LAB_AMX)
        if constexpr (kTileAttention) {
            const Range seqs = part(in.seqs, team_.size(), thread);
            for (int s = seqs.begin; s < seqs.end; ++s) {
                const int last = in.query_start[s + 1] - 1, offset = last < 0 ? 0 : in.slot_mapping[last] % kTile;
                if (last - offset < in.query_start[s]) continue;
                for (int h = 0; h < shape_.kv_heads; ++h)
                    clear_values_behind(tile_of(index, in.slot_mapping[last], h), shape_.head_dim, offset);
            }
        }
#endif
        (void)in, (void)index, (void)thread;
    }

    // Items are handed out one by one, since their lengths differ; who computes one does not change its result.
    void attend_items(const StepInput& in, const std::vector<AttentionItem>& items, int index, int thread) {
        const int total = static_cast<int>(items.size()) * shape_.kv_heads;
        for (int i; (i = next_item_[index].fetch_add(1, std::memory_order_relaxed)) < total;) {
            const int next = i + team_.size();  // most likely this thread's
            attend_item(in, items[i / shape_.kv_heads], i % shape_.kv_heads, next < total ? &items[next / shape_.kv_heads] : nullptr,
                        next % shape_.kv_heads, index, thread);
        }
    }

    SequenceCache<K> cache_of(const StepInput& in, const AttentionItem& item, int head, int index) {
        return {layer_cache(index) + head * head_stride_, block_stride_,
                in.block_tables + static_cast<size_t>(item.seq) * in.table_width, shape_.block_size / kTile, shape_.head_dim};
    }

    // `next` (or null) and `next_head`: what will be attended after it.
    void attend_item(const StepInput& in, const AttentionItem& item, int head, const AttentionItem* next, int next_head,
                     int index, int thread) {
        const int width = query_size_ + 2 * kv_size_, d = shape_.head_dim;
        const SequenceCache<K> cache = cache_of(in, item, head, index);
        if (attends_with_tiles()) return attend_in_tiles(in, item, head, cache, next, next_head, index, thread);
        const int queries = item.rows * group_, parts = (queries + kMaxRows - 1) / kMaxRows;
        for (int p = 0; p < parts; ++p) {
            const Range range = part(queries, parts, p);
            with_rows(range.end - range.begin, [&](auto n) {
                const float* query[n];
                Staged<T>* out[n];
                int visible[n];
                for (int r = 0; r < n; ++r) {
                    const int row = (range.begin + r) / group_, h = head * group_ + (range.begin + r) % group_;
                    query[r] = qkv_.get() + static_cast<size_t>(item.row + row) * width + h * d;
                    out[r] = attended_row(item.out + row) + h * d;
                    visible[r] = in.positions[item.row + row] + 1;
                }
                attend<K, Staged<T>, n>(cache, query, visible, scratch_[thread].attention.scores.get(), score_stride_, out);
            });
        }
    }

    // The same, 16 queries at a time.
    void attend_in_tiles(const StepInput& in, const AttentionItem& item, int head, const SequenceCache<K>& cache,
                         const AttentionItem* next, int next_head, int index, int thread) {
#if defined(LAB_AMX)
        if constexpr (kTileAttention) {
            const int d = shape_.head_dim, queries = item.rows * group_;
            const size_t first = (static_cast<size_t>(head) * in.tokens + item.row) * group_;
            const SequenceCache<K> later = cache_of(in, next ? *next : item, next_head, index);
            // Rows of one sequence follow each other: its tiles are in the cache already.
            const bool other = next && (next->seq != item.seq || next_head != head);
            const TilesAhead ahead(other ? &later : nullptr, other ? (in.context_lens[next->seq] + kTile - 1) / kTile : 0);
            for (int begin = 0; begin < queries; begin += 16) {
                const int rows = queries - begin < 16 ? queries - begin : 16;
                Staged<T>* out[16];
                int visible[16];
                for (int r = 0; r < rows; ++r) {
                    const int row = (begin + r) / group_, h = head * group_ + (begin + r) % group_;
                    out[r] = attended_row(item.out + row) + h * d;
                    visible[r] = in.positions[item.row + row] + 1;
                }
                attend_with_tiles(cache, queries_.get() + (first + begin) * d, rows, visible, scratch_[thread].attention, ahead, out);
            }
        }
#endif
        (void)in, (void)item, (void)head, (void)cache, (void)next, (void)next_head, (void)index, (void)thread;
    }

    Staged<T>* attended_row(int row) { return attended_.get() + row * padded<T>(query_size_); }

    void copy_logit_rows(const StepInput& in, int thread) {
        const Range rows = rows_of(in.logits, thread);
        for (int i = rows.begin; i < rows.end; ++i)
            std::memcpy(last_.get() + static_cast<size_t>(i) * shape_.hidden,
                        residual_.get() + static_cast<size_t>(in.logit_rows[i]) * shape_.hidden,
                        shape_.hidden * sizeof(float));
    }

    K* layer_cache(int index) { return cache_.get() + index * static_cast<size_t>(shape_.num_blocks) * block_stride_; }

    const Shape shape_;
    const int query_size_, kv_size_, group_, widest_;
    const size_t tile_size_, head_stride_, block_stride_, score_stride_;
    std::vector<Layer> layers_;
    Embedding* embedding_ = nullptr;
    float *cosine_ = nullptr, *sine_ = nullptr, *final_norm_ = nullptr;
    Matrix<T> lm_head_;
    Buffer<char> weights_;
    Buffer<K> cache_;
    Buffer<float> residual_, last_, qkv_;
    Buffer<Staged<T>> normed_, attended_, hidden_;
    Buffer<bf16> queries_;
    Buffer<Activation<T>> ready_;
    Buffer<float> row_scales_;
    std::vector<Scratch> scratch_;  // one a thread
    std::vector<AttentionItem> all_items_, last_items_;
    std::vector<std::atomic<int>> next_item_;   // one a layer
    std::vector<std::atomic<int>> next_claim_;  // one a matrix
    double phase_seconds_[kPhases] = {};
    Clock::time_point lap_;
    Team team_;
};

}  // namespace lab
