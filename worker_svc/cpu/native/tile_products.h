// Products of packed weights with quantized activations in tiles, for tokens that are not few.
// Included by a variant after simd_amx.h and matrix.h.
//
// Tiles multiply bytes, so codes of 16 bits are split into a high and a low byte, and
// dot = 256 * (high bytes times weights) + low bytes times weights, in whole numbers, which is
// exact. Then the same operations in float32 follow, in the same order, as in products.h: a row of
// a product has the bits that it has there.
#pragma once

#include "kernels.h"
#include "matrix.h"
#include "products.h"

namespace pagewire {
namespace {

constexpr int kFewestTiled = 4; // tokens; fewer are not worth it to split weights into bytes
static_assert(kTileRows == kRows && kTileTokens == kLanes);

// Tokens in blocks of one size, so that a call shapes tiles once, which takes as long as several
// products. The last block may lack some tokens: it has numbers of earlier products in their place,
// or zeros, and nobody reads what comes of them.
struct TokenBlocks {
  int count, size;
  explicit TokenBlocks(int num_tokens)
      : count((num_tokens + kTileTokens - 1) / kTileTokens),
        size((num_tokens + count - 1) / count) {}
};

void quantize_and_split(const float *input, int32_t size, int32_t token,
                        const Activations &output) {
  quantize(input, size, token, output);
  if (output.num_tokens < kFewestTiled) return;
  const TokenBlocks blocks(output.num_tokens);
  const int num_groups = size / kGroup, row = token % blocks.size;
  const int16_t *codes = output.codes + place_of(token, num_groups) * kGroup;
  TokenTiles *tiles = output.tiles + int64_t{token / blocks.size} * num_groups;
  for (int g = 0; g < num_groups; ++g)
    split_codes(codes + int64_t{g} * kTokens * kGroup, tiles[g].high[row], tiles[g].low[row]);
}

// A span of columns of row groups, as tiles have them.
template <typename Rows> struct TileWeights : SpanScales<Rows> {
  alignas(64) int8_t codes[kSpan][kRows][kGroup / 4][kTileBytes];

  void fill(const Packed<Rows> &packed, int begin, int end) {
    for (int g = begin; g < end; ++g) {
      packed.prefetch(g);
      for (int r = 0; r < kRows; ++r) {
        this->fill_scales(packed, g, r, g - begin);
        for (int i = 0; i < Packed<Rows>::kVectors; ++i)
          fill_vector(packed.words(g, r, i), codes[g - begin][r] + i * Rows::Codes::kPairs / 2);
      }
    }
    have_stored(codes);
  }

private:
  static void fill_vector(Integers words, int8_t (*rows)[kTileBytes]) {
    if constexpr (Rows::Codes::kPairs == Codes8::kPairs) {
      store_bytes(rows[0], ordered_bytes(words));
    } else {
      store_bytes(rows[0], ordered_nibbles<0>(words));
      store_bytes(rows[1], ordered_nibbles<1>(words));
    }
  }
};

// Products of `count` row groups of a matrix, 1 or kRows.
template <typename Rows> struct TileProduct {
  const Matrix &matrix;
  const Activations &input;
  const Output &output;
  const TokenBlocks blocks;
  const int num_groups; // of columns
  int64_t places[kMaxTokens]; // of scales of the first group
  TileWeights<Rows> weights;
  alignas(64) float sums[kMaxTokens][kRows][kLanes];
  alignas(64) TileDots dots;

  TileProduct(const Matrix &the_matrix, const Activations &tokens, const Output &results)
      : matrix(the_matrix), input(tokens), output(results), blocks(tokens.num_tokens),
        num_groups(the_matrix.columns / kGroup) {
    for (int token = 0; token < tokens.num_tokens; ++token)
      places[token] = place_of(token, num_groups);
  }

  void run(int row_group, int count) {
    const Packed<Rows> packed(matrix, row_group, count);
    for (int token = 0; token < input.num_tokens; ++token)
      for (int r = 0; r < kRows; ++r) store(sums[token][r], splat(0.0f));
    const int num_spans = (num_groups + kSpan - 1) / kSpan;
    for (int span = 0; span < num_spans; ++span) {
      const int begin = num_groups * span / num_spans, end = num_groups * (span + 1) / num_spans;
      weights.fill(packed, begin, end);
      for (int block = 0; block < blocks.count; ++block)
        for (int g = begin; g < end; ++g) add_group(block, g, g - begin);
    }
    for (int r = 0; r < count; ++r)
      for (int token = 0; token < input.num_tokens; ++token)
        finish(matrix, output, (row_group + r) * kLanes, token, load(sums[token][r]));
  }

private:
  // Products of a block of tokens with the group of columns at `place` of the span.
  void add_group(int block, int group, int place) {
    constexpr int kColumns = kGroup / Rows::kScales, kTileRowsOfPart = kColumns / 4;
    const TokenTiles &tokens = input.tiles[int64_t{block} * num_groups + group];
    for (int part = 0; part < Rows::kScales; ++part) {
      multiply_tiles(tokens, part * kColumns, weights.codes[place][0][part * kTileRowsOfPart],
                     weights.codes[place][1][part * kTileRowsOfPart], dots);
      add_dots(block, group, place, part);
    }
  }
  // What add_groups of products.h does with its whole numbers.
  void add_dots(int block, int group, int place, int part) {
    const int first = block * blocks.size, left = input.num_tokens - first;
    const int count = left < blocks.size ? left : blocks.size;
    Vector scales[kRows], offsets[kRows];
    for (int r = 0; r < kRows; ++r) {
      scales[r] = weights.scale(place, part, r);
      if constexpr (Rows::kHasOffsets) offsets[r] = weights.offset(place, r);
    }
    const float *token_scales = input.scales + int64_t{group} * kTokens;
    const float *token_sums = input.sums + int64_t{group} * kTokens;
    for (int t = 0; t < count; ++t) {
      const int64_t at = places[first + t];
      const Vector scale = splat(token_scales[at]);
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
        float *sum = sums[first + t][r];
        const Vector dot = to_floats(joined(dots[0][r][t], dots[1][r][t]));
        Vector added = fma(mul(scales[r], scale), dot, load(sum));
        // Formats with offsets have one scale for a group, so that these come last.
        if constexpr (Rows::kHasOffsets) added = fma(offsets[r], splat(token_sums[at]), added);
        store(sum, added);
      }
    }
  }
};

template <typename Rows>
void multiply_in_tiles(const Matrix &matrix, const Activations &input, int32_t begin, int32_t end,
                       const Output &output) {
  static_assert(!Rows::kHasOffsets || Rows::kScales == 1);
  TileProduct<Rows> product(matrix, input, output);
  shape_tiles(product.blocks.size, kGroup / Rows::kScales);
  for (int32_t i = begin; i < end; i += kRows) product.run(i, end - i < kRows ? end - i : kRows);
  release_tiles();
}

void multiply_matrix_in_tiles(const Matrix &matrix, const Activations &input, int32_t begin,
                              int32_t end, const Output &output) {
  if (is_float(matrix.kind) || input.num_tokens < kFewestTiled)
    return multiply_matrix(matrix, input, begin, end, output);
  with_form(matrix, [&](auto form) {
    multiply_in_tiles<typename decltype(form)::Rows>(matrix, input, begin, end, output);
  });
}

} // namespace
} // namespace pagewire
