// One step of a Llama-like model: from token ids to hidden states, and from those to logits.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "greedy_head.h"
#include "kernels.h"
#include "pool.h"

namespace pagewire {

// Several matrices of the same columns, whose rows follow each other.
struct Linear {
  const Matrix *parts;
  int32_t num_parts;
  const float *bias; // of all rows, or null
};

struct Layer {
  const float *input_norm;
  const float *query_norm; // [head_dim] or null
  const float *key_norm;
  const float *output_norm; // after attention
  Linear qkv, output, gate_up, down;
  int32_t window; // 0: none
};

struct Model {
  int32_t num_layers, hidden_size, intermediate_size;
  int32_t num_heads, num_kv_heads, head_dim;
  float eps, scale;
  const Layer *layers;
  const float *final_norm;
  Matrix embedding, head;
  const float *cosines; // [max_model_len][head_dim / 2]
  const float *sines;
  int64_t alone_products; // multiplications that the caller's thread does alone
};

struct Cache {
  uint16_t *data; // [num_layers][keys, values][num_blocks][num_kv_heads * head_dim * block_size]
  int64_t num_blocks;
  int32_t block_size, num_kv_heads, head_dim;
};

struct Step {
  int32_t num_tokens, num_rows;
  const int64_t *token_ids;     // [num_tokens]
  const int64_t *positions;     // [num_tokens]
  const int64_t *slots;         // [num_tokens]
  const int64_t *block_tables;  // [num_rows][table_width]
  const int64_t *query_starts;  // [num_rows + 1]
  int64_t table_width;
};

Pages layer_pages(const Cache &cache, int32_t layer);

// Queries of one row that one thread attends to, for one KV head.
struct Item {
  int32_t row, first_token, num_tokens, kv_head;
};

// Attention of tokens that are rotated and in the cache.
class Attention {
public:
  Attention(const Kernels &kernels, Pool &pool, int32_t group_size, int32_t head_dim);
  // Pieces of work for tokens [begin, end) of a step.
  void cut(const Step &step, int32_t num_kv_heads, int32_t begin, int32_t end,
           std::vector<Item> &items) const;
  // `queries` keeps pointer, stride and shape of token `begin`; the rest is filled in.
  void run(const Pages &pages, const Step &step, const std::vector<Item> &items,
           const Queries &queries, int32_t begin);

private:
  const Kernels &kernels_;
  Pool &pool_;
  int32_t queries_per_item_; // tokens
  int64_t scratch_size_;
  std::unique_ptr<float[]> scratch_; // of each thread
};

class Plan {
public:
  Plan(const Kernels &kernels, Pool &pool, const Model &model);
  void forward(const Cache &cache, const Step &step, float *hidden);
  void logits(const float *hidden, int32_t num_rows, float *output);
  // Of each row the lowest token id with the largest logit, and that logit; see GreedyHead.
  void greedy(const float *hidden, int32_t num_rows, int64_t *token_ids, float *largest);

private:
  struct Tile {
    int32_t begin, end;
    std::vector<Item> items;
  };
  int64_t num_products(const Step &step) const;
  void embed(const Step &step, float *hidden);
  void run_layer(const Layer &layer, const Pages &pages, const Step &step, const Tile &tile,
                 float *hidden);
  void prepare(const float *input, int64_t stride, const float *norm, int32_t size, int32_t count,
               const Linear &next);
  void multiply(const Linear &linear, float *output, int64_t stride, bool adds);
  void place_queries(const Layer &layer, const Pages &pages, const Step &step, const Tile &tile);
  template <typename Function> void each_token(int32_t count, Function function);
  template <typename Function>
  void each_head_tile(const float *hidden, int32_t num_rows, const Linear &head,
                      Function function);

  const Kernels &kernels_;
  Pool &pool_;
  Model model_;
  std::vector<Layer> layers_;
  std::vector<std::vector<Matrix>> parts_;
  int64_t layer_weights_ = 0; // of all layers
  Attention attention_;
  GreedyHead greedy_head_;
  int32_t qkv_size_, query_size_;
  std::vector<Tile> tiles_;
  std::unique_ptr<float[]> qkv_, attended_, gate_up_, normed_;
  std::unique_ptr<int16_t[]> codes_;
  std::unique_ptr<float[]> scales_, sums_;
  std::unique_ptr<TokenTiles[]> token_tiles_;
  Activations input_{};
};

} // namespace pagewire
