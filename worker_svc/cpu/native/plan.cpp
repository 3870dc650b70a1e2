#include "plan.h"

#include <algorithm>

#include "pieces.h"

namespace pagewire {
namespace {

constexpr int32_t kTokensPerPiece = kTokens;

int64_t num_weights(const Linear &linear) {
  int64_t count = 0;
  for (int32_t i = 0; i < linear.num_parts; ++i)
    count += int64_t{linear.parts[i].rows} * linear.parts[i].columns;
  return count;
}

bool takes_codes(const Linear &linear) {
  return !std::all_of(linear.parts, linear.parts + linear.num_parts,
                      [](const Matrix &matrix) { return is_float(matrix.kind); });
}

} // namespace

Plan::Plan(const Kernels &kernels, Pool &pool, const Model &model)
    : kernels_(kernels), pool_(pool), model_(model),
      layers_(model.layers, model.layers + model.num_layers),
      attention_(kernels, pool, model.num_heads / model.num_kv_heads, model.head_dim),
      greedy_head_(kernels, pool, model.head) {
  for (Layer &layer : layers_)
    for (Linear *linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
      layer_weights_ += num_weights(*linear);
      parts_.emplace_back(linear->parts, linear->parts + linear->num_parts);
      linear->parts = parts_.back().data();
    }
  query_size_ = model.num_heads * model.head_dim;
  qkv_size_ = query_size_ + 2 * model.num_kv_heads * model.head_dim;
  const int64_t widest =
      std::max({model.hidden_size, model.intermediate_size, query_size_});
  const int64_t groups = widest / kGroup * kMaxTokens;
  qkv_.reset(new float[int64_t{kMaxTokens} * qkv_size_]);
  attended_.reset(new float[int64_t{kMaxTokens} * query_size_]);
  gate_up_.reset(new float[2LL * kMaxTokens * model.intermediate_size]);
  normed_.reset(new float[int64_t{kMaxTokens} * model.hidden_size]);
  codes_.reset(new int16_t[groups * kGroup]);
  scales_.reset(new float[groups]);
  sums_.reset(new float[groups]);
  // Not left as the memory is: what no token has is multiplied too, and thrown away.
  if (kernels.takes_tiles) token_tiles_.reset(new TokenTiles[num_tiles(kMaxTokens, widest)]());
  input_.codes = codes_.get();
  input_.scales = scales_.get();
  input_.sums = sums_.get();
  input_.tiles = token_tiles_.get();
}

void Plan::forward(const Cache &cache, const Step &step, float *hidden) {
  const Awake awake(pool_, num_products(step) > model_.alone_products);
  tiles_.resize((int64_t{step.num_tokens} + kMaxTokens - 1) / kMaxTokens);
  for (size_t i = 0; i < tiles_.size(); ++i) {
    Tile &tile = tiles_[i];
    tile.begin = static_cast<int32_t>(i) * kMaxTokens;
    tile.end = std::min(tile.begin + kMaxTokens, step.num_tokens);
    attention_.cut(step, model_.num_kv_heads, tile.begin, tile.end, tile.items);
  }
  embed(step, hidden);
  for (int32_t i = 0; i < model_.num_layers; ++i) {
    const Pages pages = layer_pages(cache, i);
    // A tile's keys are written before those after it attend to them.
    for (const Tile &tile : tiles_) run_layer(layers_[i], pages, step, tile, hidden);
  }
}

void Plan::logits(const float *hidden, int32_t num_rows, float *output) {
  const Linear head{&model_.head, 1, nullptr};
  each_head_tile(hidden, num_rows, head, [&](int32_t begin) {
    multiply(head, output + int64_t{begin} * model_.head.rows, model_.head.rows, false);
  });
}

void Plan::greedy(const float *hidden, int32_t num_rows, int64_t *token_ids, float *largest) {
  const Linear head{&model_.head, 1, nullptr};
  each_head_tile(hidden, num_rows, head, [&](int32_t begin) {
    greedy_head_.run(input_, token_ids + begin, largest + begin);
  });
}

// Makes rows ready for the head's product, as many at a time as it takes.
template <typename Function>
void Plan::each_head_tile(const float *hidden, int32_t num_rows, const Linear &head,
                          Function function) {
  const int32_t size = model_.hidden_size;
  const Awake awake(pool_, num_weights(head) * num_rows > model_.alone_products);
  for (int32_t begin = 0; begin < num_rows; begin += kMaxTokens) {
    prepare(hidden + int64_t{begin} * size, size, model_.final_norm, size,
            std::min(kMaxTokens, num_rows - begin), head);
    function(begin);
  }
}

// Multiplications of a forward pass; of attention at most so many, windows left aside.
int64_t Plan::num_products(const Step &step) const {
  int64_t num_keys = 0; // of all tokens
  for (int32_t row = 0; row < step.num_rows; ++row) {
    const int64_t begin = step.query_starts[row], end = step.query_starts[row + 1];
    num_keys += (end - begin) * (step.positions[end - 1] + 1);
  }
  return layer_weights_ * step.num_tokens + 2 * num_keys * query_size_ * model_.num_layers;
}

void Plan::embed(const Step &step, float *hidden) {
  each_token(step.num_tokens, [&](int32_t token) {
    kernels_.unpack_row(model_.embedding, static_cast<int32_t>(step.token_ids[token]),
                        hidden + int64_t{token} * model_.hidden_size);
  });
}

void Plan::run_layer(const Layer &layer, const Pages &pages, const Step &step, const Tile &tile,
                     float *hidden) {
  const int32_t size = model_.hidden_size, inner = model_.intermediate_size;
  const int32_t count = tile.end - tile.begin;
  float *residual = hidden + int64_t{tile.begin} * size;
  prepare(residual, size, layer.input_norm, size, count, layer.qkv);
  multiply(layer.qkv, qkv_.get(), qkv_size_, false);
  place_queries(layer, pages, step, tile);
  Queries queries{};
  queries.query = qkv_.get();
  queries.output = attended_.get();
  queries.query_stride = qkv_size_;
  queries.output_stride = query_size_;
  queries.group_size = model_.num_heads / model_.num_kv_heads;
  queries.window = layer.window;
  queries.scale = model_.scale;
  attention_.run(pages, step, tile.items, queries, tile.begin);
  prepare(attended_.get(), query_size_, nullptr, query_size_, count, layer.output);
  multiply(layer.output, residual, size, true);
  prepare(residual, size, layer.output_norm, size, count, layer.gate_up);
  multiply(layer.gate_up, gate_up_.get(), 2 * inner, false);
  const bool has_codes = takes_codes(layer.down);
  input_.values = gate_up_.get();
  input_.stride = 2LL * inner;
  each_token(count, [&](int32_t token) {
    float *gate = gate_up_.get() + int64_t{token} * 2 * inner;
    kernels_.swiglu(gate, gate + inner, inner);
    if (has_codes) kernels_.quantize(gate, inner, token, input_);
  });
  multiply(layer.down, residual, size, true);
}

// Makes tokens ready for the next product, with a norm before it if there is one.
void Plan::prepare(const float *input, int64_t stride, const float *norm, int32_t size,
                   int32_t count, const Linear &next) {
  const bool has_codes = takes_codes(next);
  input_.values = norm ? normed_.get() : input;
  input_.stride = norm ? size : stride;
  input_.num_tokens = count;
  if (!norm && !has_codes) return;
  each_token(count, [&](int32_t token) {
    const float *values = input + token * stride;
    if (norm) {
      float *normed = normed_.get() + int64_t{token} * size;
      kernels_.rms_norm(values, norm, model_.eps, size, normed);
      values = normed;
    }
    if (has_codes) kernels_.quantize(values, size, token, input_);
  });
}

// All matrices in one piece of work, in pairs of row groups, which the kernels take together.
void Plan::multiply(const Linear &linear, float *output, int64_t stride, bool adds) {
  const int32_t pair_rows = 2 * kernels_.lanes;
  auto pairs_of = [&](const Matrix &matrix) { return (matrix.rows + pair_rows - 1) / pair_rows; };
  int32_t num_pairs = 0;
  for (int32_t i = 0; i < linear.num_parts; ++i) num_pairs += pairs_of(linear.parts[i]);
  const int32_t pieces = num_pieces(num_pairs, pool_.num_threads());
  auto piece = [&](int32_t index, int32_t) {
    // Of the pairs from that of the present matrix on.
    auto begin = static_cast<int32_t>(int64_t{num_pairs} * index / pieces);
    auto end = static_cast<int32_t>(int64_t{num_pairs} * (index + 1) / pieces);
    int32_t first_row = 0;
    for (int32_t i = 0; i < linear.num_parts && end > 0; ++i) {
      const Matrix &matrix = linear.parts[i];
      const int32_t pairs = pairs_of(matrix);
      if (begin < pairs) {
        const int32_t groups = (matrix.rows + kernels_.lanes - 1) / kernels_.lanes;
        kernels_.multiply(matrix, input_, 2 * std::max(begin, 0), std::min(2 * end, groups),
                          Output{output + first_row, stride,
                                 linear.bias ? linear.bias + first_row : nullptr, adds});
      }
      begin -= pairs;
      end -= pairs;
      first_row += matrix.rows;
    }
  };
  pool_.each(pieces, piece);
}

// Norms and rotates queries and keys, and writes keys and values to the cache.
void Plan::place_queries(const Layer &layer, const Pages &pages, const Step &step,
                         const Tile &tile) {
  const int32_t dim = model_.head_dim, heads = model_.num_heads, kv_heads = model_.num_kv_heads;
  each_token(tile.end - tile.begin, [&](int32_t token) {
    float *query = qkv_.get() + int64_t{token} * qkv_size_;
    float *key = query + query_size_, *value = key + kv_heads * dim;
    if (layer.query_norm) {
      for (int32_t h = 0; h < heads; ++h)
        kernels_.rms_norm(query + h * dim, layer.query_norm, model_.eps, dim, query + h * dim);
      for (int32_t h = 0; h < kv_heads; ++h)
        kernels_.rms_norm(key + h * dim, layer.key_norm, model_.eps, dim, key + h * dim);
    }
    const int64_t row = step.positions[tile.begin + token] * (dim / 2);
    // Keys follow queries.
    kernels_.rotate(query, heads + kv_heads, dim, model_.cosines + row, model_.sines + row);
    kernels_.write_kv(pages, step.slots[tile.begin + token], key, value);
  });
}

template <typename Function> void Plan::each_token(int32_t count, Function function) {
  auto piece = [&](int32_t index, int32_t) {
    const int32_t end = std::min(count, (index + 1) * kTokensPerPiece);
    for (int32_t token = index * kTokensPerPiece; token < end; ++token) function(token);
  };
  pool_.each((count + kTokensPerPiece - 1) / kTokensPerPiece, piece);
}

} // namespace pagewire
