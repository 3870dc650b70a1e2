// What a variant of the kernels offers: one table of functions per instruction set.
// A variant's file is compiled with flags of its own, so nothing here may instantiate a template
// or an inline function of the standard library: the linker would keep one copy for all variants.
#pragma once

#include <cstdint>

namespace pagewire {

constexpr int kGroup = 32;      // weights that share a scale: GGML's block
constexpr int kKeyTile = 64;    // keys that a query reduces at a time, from position 0 on
constexpr int kMaxTokens = 128; // tokens of one matrix product
constexpr int kTokens = 4;      // for which a group of weights is unpacked at once
constexpr int kTileTokens = 16; // of a tile, at most

enum Kind : int32_t { kQ4 = 0, kQ8 = 1, kQ4K = 2, kQ5K = 3, kQ6K = 4, kF16 = 5, kBF16 = 6 };

// Matrices of 16-bit floats are multiplied with activations as they are, others with codes.
static constexpr bool is_float(int32_t kind) { return kind == kF16 || kind == kBF16; }

// Rows of a weight matrix, `lanes` side by side. See linear.h, super_blocks.h and float_linear.h for
// the layouts.
struct Matrix {
  const uint8_t *data;
  int32_t kind;
  int32_t rows;
  int32_t columns;
};

// Codes of a group of some tokens, split into bytes: code = 256 * high + low.
struct alignas(64) TokenTiles {
  int8_t high[kTileTokens][kGroup];
  uint8_t low[kTileTokens][kGroup];
};

// Tokens as they are and, for matrices that take them so, quantized: 16 bits, one scale for each
// group of a token. Those that a product takes at once lie side by side, and all their groups after
// each other.
struct Activations {
  const float *values; // [num_tokens] at stride
  int64_t stride;
  int16_t *codes;    // [num_tokens / kTokens, rounded up][groups][kTokens][kGroup]
  float *scales;     // the same without [kGroup]
  float *sums;       // the same, scale times the sum of the codes
  TokenTiles *tiles; // [num_tokens / kTileTokens, rounded up][groups], of kernels that take them
  int32_t num_tokens;
};

// Of Activations::tiles, for so many tokens and columns.
static constexpr int64_t num_tiles(int32_t num_tokens, int64_t columns) {
  return (int64_t{num_tokens} + kTileTokens - 1) / kTileTokens * (columns / kGroup);
}

// Where a matrix product goes: out[token * stride + row], plus bias, or added to what is there.
struct Output {
  float *data;
  int64_t stride;
  const float *bias; // [rows] or null
  bool adds;
};

// The paged cache of one layer, float16. Keys lie transposed, so that lanes are positions.
struct Pages {
  uint16_t *keys;   // [num_blocks][num_kv_heads][head_dim][block_size]
  uint16_t *values; // [num_blocks][num_kv_heads][block_size][head_dim]
  int32_t block_size;
  int32_t num_kv_heads;
  int32_t head_dim;
};

// Queries of one sequence that lie side by side, and one KV head.
struct Queries {
  const float *query; // of the first token: [num_tokens] at query_stride, all its heads
  float *output;      // the same, at output_stride
  int64_t query_stride;
  int64_t output_stride;
  const int64_t *block_table;
  int32_t first_position;
  int32_t num_tokens;
  int32_t kv_head;
  int32_t group_size; // query heads of a KV head
  int32_t window;     // keys that a query sees, itself included; 0: all
  float scale;
};

// The largest value of a row so far, and its lowest place; a NaN once there was one.
struct Largest {
  float value;
  int32_t place;
};

struct Kernels {
  const char *name;
  int32_t lanes;
  bool takes_tiles; // whether it multiplies Activations::tiles
  // Bytes of `lanes` rows.
  int64_t (*group_bytes)(int32_t kind, int32_t columns);
  // Packs rows [first, first + lanes) from a file's blocks; rows past the end become zero.
  void (*pack)(int32_t ggml_type, const uint8_t *blocks, int32_t rows, int32_t columns,
               int32_t first, uint8_t *out);
  // One row back as floats.
  void (*unpack_row)(const Matrix &matrix, int32_t row, float *out);
  // Product of groups [begin, end) of `lanes` rows with all tokens.
  void (*multiply)(const Matrix &matrix, const Activations &input, int32_t begin, int32_t end,
                   const Output &output);
  void (*quantize)(const float *input, int32_t size, int32_t token, const Activations &output);
  void (*rms_norm)(const float *input, const float *weight, float eps, int32_t size,
                   float *output);
  // Rotates heads of one token in place by its row of cosines and sines [head_dim / 2].
  void (*rotate)(float *heads, int32_t num_heads, int32_t head_dim, const float *cosines,
                 const float *sines);
  void (*write_kv)(const Pages &pages, int64_t slot, const float *key, const float *value);
  // gate[i] = silu(gate[i]) * up[i]
  void (*swiglu)(float *gate, const float *up, int32_t size);
  // Floats of scratch memory that attend needs.
  int64_t (*scratch_floats)(int32_t num_queries, int32_t head_dim);
  void (*attend)(const Pages &pages, const Queries &queries, float *scratch);
  // Takes in values at places from `first` on, which lie behind those before.
  void (*take_largest)(const float *values, int32_t count, int32_t first, Largest &best);
};

} // namespace pagewire
