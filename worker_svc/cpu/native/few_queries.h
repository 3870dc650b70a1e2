// Scores and sums of few queries over a tile, which is read from the cache as it lies there.
// Included by a variant after kv_tile.h. Both add up in the order of multiply_floats.
#pragma once

#include "kernels.h"
#include "kv_tile.h"

namespace pagewire {
namespace {

constexpr int kFewQueries = 4;

// Vectors whose sums registers hold, for so many rows.
constexpr int vectors_for(int num_rows) { return num_rows <= 3 ? 4 : 2; }

// scores[r][position] = sum over d of queries[r][d] * key[d], of all parts of a tile.
template <int kRows>
void score_rows(const KvTile &tile, int block_size, int dim, const float *queries, float *scores) {
  constexpr int kVectors = vectors_for(kRows);
  for (int first = 0; first < kKeyTile / kLanes; first += kVectors) {
    if (first * kLanes >= tile.count) return;
    const uint16_t *keys[kVectors];
    Vector sums[kRows][kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int place = first + v;
      keys[v] = tile.keys[place / kPartVectors] + place % kPartVectors * kLanes;
      for (int r = 0; r < kRows; ++r) sums[r][v] = splat(0.0f);
    }
    for (int d = 0; d < dim; ++d)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Vector key = load_half(keys[v] + int64_t{d} * block_size);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
          sums[r][v] = fma(splat(queries[r * dim + d]), key, sums[r][v]);
      }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v)
        store(scores + r * kKeyTile + (first + v) * kLanes, sums[r][v]);
  }
}

// out[r][...] += sum over positions of weights[r][position] * value[...], of kVectors vectors.
template <int kRows, int kVectors>
void add_columns(const KvTile &tile, int dim, int first, const float *weights, float *out) {
  Vector sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = load(out + r * dim + first + v * kLanes);
  for (int part = 0; part * kPart < tile.count; ++part) {
    const uint16_t *values = tile.values[part] + first;
    const float *weight = weights + part * kPart;
    for (int i = tile.length(part); i > 0; --i, values += dim, ++weight)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Vector value = load_half(values + v * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
          sums[r][v] = fma(splat(weight[r * kKeyTile]), value, sums[r][v]);
      }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(out + r * dim + first + v * kLanes, sums[r][v]);
}

template <int kRows> void add_rows(const KvTile &tile, int dim, const float *weights, float *out) {
  constexpr int kVectors = vectors_for(kRows);
  int first = 0;
  for (; first + kVectors * kLanes <= dim; first += kVectors * kLanes)
    add_columns<kRows, kVectors>(tile, dim, first, weights, out);
  for (; first < dim; first += kLanes) add_columns<kRows, 1>(tile, dim, first, weights, out);
}

// Scores of at most kFewQueries queries.
inline void score_few(const KvTile &tile, int block_size, int dim, const float *queries, int rows,
                      float *scores) {
  switch (rows) {
  case 1:
    return score_rows<1>(tile, block_size, dim, queries, scores);
  case 2:
    return score_rows<2>(tile, block_size, dim, queries, scores);
  case 3:
    return score_rows<3>(tile, block_size, dim, queries, scores);
  default:
    return score_rows<4>(tile, block_size, dim, queries, scores);
  }
}

// Adds the weighted values, all of which are finite.
inline void add_few(const KvTile &tile, int dim, const float *weights, int rows, float *out) {
  switch (rows) {
  case 1:
    return add_rows<1>(tile, dim, weights, out);
  case 2:
    return add_rows<2>(tile, dim, weights, out);
  case 3:
    return add_rows<3>(tile, dim, weights, out);
  default:
    return add_rows<4>(tile, dim, weights, out);
  }
}

} // namespace
} // namespace pagewire
